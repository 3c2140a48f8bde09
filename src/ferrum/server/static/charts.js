// Live charts of /metrics: what the server computes, with labelled scales and gaps where nothing was measured.

import { el } from "./dom.js";
import { getText } from "./api.js";

const SECONDS = 60;
const SVG = "http://www.w3.org/2000/svg";
const [LEFT, RIGHT, TOP, BOTTOM, WIDTH, HEIGHT] = [40, 6, 8, 20, 300, 120];

/** Charts, their units, and their series: functions of the change between two readings; null without a value. */
const CHARTS = [
  [
    "Tokens per second",
    "",
    { generated: rate("vllm:generation_tokens_total"), prompts: rate("vllm:prompt_tokens_total") },
  ],
  ["Sequences", "", { running: now("vllm:num_requests_running"), waiting: now("vllm:num_requests_waiting") }],
  ["KV cache in use", "%", { pages: (change) => 100 * change.after["vllm:kv_cache_usage_perc"] }],
  ["Time to the first token", "ms", { mean: meanOf("vllm:time_to_first_token_seconds") }],
  ["Time between tokens", "ms", { mean: meanOf("vllm:inter_token_latency_seconds") }],
];

function rate(name) {
  return ({ before, after, seconds }) => (after[name] - before[name]) / seconds;
}

function now(name) {
  return ({ after }) => after[name];
}

/** Return the mean of a histogram's new observations, in milliseconds. */
function meanOf(name) {
  return ({ before, after }) => {
    const count = after[`${name}_count`] - before[`${name}_count`];
    return count ? (1000 * (after[`${name}_sum`] - before[`${name}_sum`])) / count : null;
  };
}

/** Return values by name, summed over labels. */
export function parse(text) {
  const values = {};
  for (const line of text.split("\n")) {
    const found = /^(vllm:\w+)(?:\{[^}]*\})? (\S+)$/.exec(line);
    if (found) values[found[1]] = (values[found[1]] ?? 0) + Number(found[2]);
  }
  return values;
}

/** Prepare charts in `place`; return a function that starts readings, which go on while `shown()`. */
export function watchCharts(place, shown) {
  const charts = CHARTS.map(([title, unit, series]) => new Chart(place, title, unit, series));
  let before = null;
  let timer = null;
  const read = async () => {
    const text = await getText("metrics").catch(() => null);
    const at = performance.now() / 1000;
    const after = text && parse(text);
    const since = "vllm:generation_tokens_created"; // a restarted server counts from zero
    const comparable = after && before && before.after[since] === after[since] && at - before.at < 5;
    const change = comparable ? { before: before.after, after, seconds: at - before.at } : null;
    for (const chart of charts) chart.add(at, change);
    before = after && "vllm:num_requests_running" in after ? { at, after } : null;
  };
  const turn = async () => {
    if (!document.hidden && shown()) await read();
    timer = shown() ? setTimeout(turn, 1000) : null;
  };
  return (wanted) => {
    if (wanted && timer === null) turn();
  };
}

function svg(tag, attributes, text = "") {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = text;
  return made;
}

class Chart {
  constructor(place, title, unit, series) {
    Object.assign(this, { title, unit });
    this.series = Object.entries(series).map(([name, value]) => ({ name, value, points: [] }));
    this.items = this.series.map(({ name }) => el("li", {}, `${name} –`));
    this.svg = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}: no reading yet` });
    this.paths = this.series.map((_, at) => svg("path", { class: `series-${at}` }));
    this.grid = svg("g", { class: "grid" });
    this.svg.append(this.grid, ...this.paths);
    place.append(
      el("figure", {}, el("figcaption", {}, unit ? `${title}, ${unit}` : title), el("ul", {}, this.items), this.svg),
    );
  }

  /** Add a reading; without a change it is a gap. */
  add(at, change) {
    for (const each of this.series) {
      const value = change && each.value(change);
      each.points.push({ at, value: Number.isFinite(value) ? value : null });
      while (each.points[0].at < at - SECONDS) each.points.shift();
    }
    const top = niceTop(Math.max(...this.series.flatMap(({ points }) => points.map(({ value }) => value ?? 0))));
    const readings = this.series.map(({ name, points }) => `${name} ${short(points.at(-1).value)}`);
    this.items.forEach((element, place) => (element.textContent = readings[place]));
    this.paths.forEach((path, place) => path.setAttribute("d", line(this.series[place].points, at, top)));
    this.svg.setAttribute(
      "aria-label",
      `${this.title}, the last ${SECONDS} seconds, last: ${readings.join(", ")} ${this.unit}`,
    );
    this.drawGrid(top);
  }

  drawGrid(top) {
    const levels = [0, 0.5, 1].flatMap((part) => {
      const y = heightOf(part);
      const label = svg("text", { x: LEFT - 5, y: y + 4, "text-anchor": "end" }, short(part * top));
      return [svg("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y, y2: y }), label];
    });
    const times = [60, 30, 0].map((ago) => {
      const anchor = ago === 60 ? "start" : ago ? "middle" : "end";
      return svg("text", { x: placeOf(ago), y: HEIGHT - 5, "text-anchor": anchor }, ago ? `${ago} s ago` : "now");
    });
    this.grid.replaceChildren(...levels, ...times);
  }
}

const placeOf = (ago) => LEFT + (WIDTH - LEFT - RIGHT) * (1 - ago / SECONDS);
const heightOf = (part) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - part);

/** Return a path through the points, with gaps for null; a single point is a dot. */
function line(points, at, top) {
  let path = "";
  let drawing = false;
  for (const { at: moment, value } of points) {
    if (value !== null) {
      const place = `${placeOf(at - moment).toFixed(1)} ${heightOf(value / top).toFixed(1)}`;
      path += drawing ? `L${place}` : `M${place}L${place}`;
    }
    drawing = value !== null;
  }
  return path;
}

/** Return the smallest of 1, 2, 5, 10, ... that is at least the value. */
function niceTop(value) {
  const decade = 10 ** Math.floor(Math.log10(Math.max(value, 1)));
  return [1, 2, 5, 10].map((each) => each * decade).find((each) => each >= value) ?? decade;
}

function short(value) {
  if (value === null) return "–";
  if (value >= 10_000) return `${Number((value / 1000).toPrecision(3))}k`;
  return value >= 100 ? value.toFixed(0) : Number(value.toPrecision(3)).toString();
}
