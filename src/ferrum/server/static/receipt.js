// The receipt of an answer: tokens, speed, the prefix that was found, seed and fingerprint, and whether it comes out again.

import { el } from "./dom.js";

const FINISH = new Map([
  ["stop", "the model ended it"],
  ["length", "the limit of tokens"],
  ["tool_calls", "it calls a tool"],
  ["stopped", "you stopped it"],
  ["cut", "the connection broke"],
]);

/** Return the line of an answer: tokens, speed and wait. */
function summaryOf(turn) {
  const part = turn.parts.at(-1);
  if (!part?.usage) return "Receipt";
  const tokens = part.usage.completion_tokens;
  const seconds = part.seconds - part.first / 1000;
  const speed = tokens > 1 && seconds > 0 ? ` · ${((tokens - 1) / seconds).toFixed(1)} per second` : "";
  return `${tokens} tokens${speed}`;
}

/** Return rows `[name, value]` of a part of an answer. */
function rowsOf(part) {
  const { usage, options } = part;
  const cached = usage?.prompt_tokens_details?.cached_tokens;
  const reasoning = usage?.completion_tokens_details?.reasoning_tokens;
  const { seed, system, tools, response_format, ...others } = options;
  const long = [system && "a system prompt", tools && `${tools.length} tools`, response_format && "a JSON schema"];
  const short = Object.entries(others).map(([name, value]) => `${name} ${JSON.stringify(value)}`);
  const settings = [...short, ...long.filter(Boolean)];
  return [
    ["Prompt", usage && `${usage.prompt_tokens} tokens, ${cached ?? 0} found in the cache`],
    ["Answer", usage && `${usage.completion_tokens} tokens${reasoning ? `, ${reasoning} of them reasoning` : ""}`],
    ["First token", part.first !== undefined && `after ${part.first.toFixed(0)} ms`],
    ["End", FINISH.get(part.finish)],
    ["Seed", String(seed)],
    ["Settings", settings.join(", ") || "the checkpoint's"],
    ["Model", part.model],
    ["Fingerprint", part.fingerprint],
    ["Request", part.id],
  ].filter(([, value]) => value);
}

/** Return the folded receipt of an answer; `again` is the button that runs it again. */
export function receiptOf(turn, again) {
  const lists = turn.parts.map((part) =>
    el(
      "dl",
      {},
      rowsOf(part).flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]),
    ),
  );
  const result =
    turn.replay && el("p", { class: turn.replay.same ? "same" : "differs", role: "status" }, turn.replay.text);
  return [el("summary", {}, summaryOf(turn)), el("div", { class: "receipt-body" }, lists, again, result)];
}
