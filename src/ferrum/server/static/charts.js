// Live SVG charts of /metrics.

const SECONDS = 60;
const SVG = "http://www.w3.org/2000/svg";

/** Charts and their series: functions of the change between two readings; null without a value. */
const CHARTS = [
  ["Tokens per second", { generated: rate("vllm:generation_tokens_total"), prompts: rate("vllm:prompt_tokens_total") }],
  ["Sequences", { running: now("vllm:num_requests_running"), waiting: now("vllm:num_requests_waiting") }],
  ["KV cache in use, %", { pages: (change) => 100 * change.after["vllm:kv_cache_usage_perc"] }],
  ["To the first token, ms", { mean: meanOf("vllm:time_to_first_token_seconds") }],
  ["Between tokens, ms", { mean: meanOf("vllm:inter_token_latency_seconds") }],
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

/** Draw into `place`, with a reading per second while the page is visible. */
export function watch(place) {
  const charts = CHARTS.map(([title, series]) => new Chart(place, title, series));
  let before = null;
  const read = async () => {
    if (document.hidden) return;
    const response = await fetch("metrics").catch(() => null);
    if (!response?.ok) return;
    const reading = { at: performance.now() / 1000, values: parse(await response.text()) };
    if ("vllm:num_requests_running" in reading.values) {
      const since = "vllm:generation_tokens_created"; // a restarted server counts from zero
      if (before && before.values[since] === reading.values[since]) {
        const change = { before: before.values, after: reading.values, seconds: reading.at - before.at };
        for (const chart of charts) chart.add(reading.at, change);
      }
      before = reading;
    }
  };
  const turn = () => read().finally(() => setTimeout(turn, 1000));
  turn();
}

class Chart {
  constructor(place, title, series) {
    this.title = title;
    this.series = Object.entries(series).map(([name, value]) => ({ name, value, points: [] }));
    const figure = document.createElement("figure");
    const caption = document.createElement("figcaption");
    caption.textContent = title;
    const list = document.createElement("ul");
    this.items = this.series.map(({ name }) => list.appendChild(item(`${name} –`)));
    this.svg = document.createElementNS(SVG, "svg");
    this.svg.setAttribute("viewBox", "0 0 100 100");
    this.svg.setAttribute("preserveAspectRatio", "none");
    this.svg.setAttribute("role", "img");
    this.svg.setAttribute("aria-label", `${title}: no reading yet`);
    const base = document.createElementNS(SVG, "line");
    for (const [name, value] of Object.entries({ x1: 0, x2: 100, y1: 100, y2: 100 })) base.setAttribute(name, value);
    this.paths = this.series.map(() => document.createElementNS(SVG, "path"));
    this.svg.append(...this.paths, base);
    this.scale = document.createElement("div");
    this.scale.className = "scale";
    figure.append(caption, list, this.svg, this.scale);
    place.append(figure);
  }

  add(at, change) {
    for (const each of this.series) {
      each.points.push({ at, value: each.value(change) });
      while (each.points[0].at < at - SECONDS) each.points.shift();
    }
    const values = this.series.flatMap(({ points }) => points.map(({ value }) => value ?? 0));
    const top = niceTop(Math.max(...values));
    const readings = this.series.map(({ name, points }) => {
      return `${name} ${short(points.findLast(({ value }) => value !== null)?.value ?? null)}`;
    });
    this.items.forEach((element, place) => (element.textContent = readings[place]));
    this.paths.forEach((path, place) => path.setAttribute("d", line(this.series[place].points, at, top)));
    this.svg.setAttribute("aria-label", `${this.title}, the last ${SECONDS} seconds, last: ${readings.join(", ")}`);
    this.scale.replaceChildren(item(`${SECONDS} s ago`, "span"), item(`0 to ${short(top)}`, "span"));
  }
}

function item(text, kind = "li") {
  const made = document.createElement(kind);
  made.textContent = text;
  return made;
}

/** Return a path through the points, with gaps for null; a single point is a dot. */
function line(points, at, top) {
  let path = "";
  let drawing = false;
  for (const { at: moment, value } of points) {
    if (value !== null) {
      const place = `${(100 * (1 - (at - moment) / SECONDS)).toFixed(2)} ${(100 * (1 - value / top)).toFixed(2)}`;
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
  return value >= 100 ? value.toFixed(0) : Number(value.toPrecision(3)).toString();
}
