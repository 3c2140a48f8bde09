// Tool calls of an answer, and the form in which the reader gives their results.

import { el, icon } from "./dom.js";

/** Return calls as cards. With `send` their results can be typed and sent. */
export function callCards(calls, send) {
  const boxes = calls.map(({ name }) =>
    el("textarea", {
      rows: 2,
      required: true,
      "aria-label": `Result of ${name}`,
      placeholder: "Result of the tool",
      dir: "auto",
    }),
  );
  const cards = calls.map((call, place) =>
    el(
      "div",
      { class: "card" },
      el("p", { class: "card-head" }, "Call of ", el("code", {}, call.name)),
      el("pre", { tabindex: 0, dir: "ltr" }, pretty(call.arguments)),
      send && boxes[place],
    ),
  );
  if (!send) return cards;
  const submit = el(
    "button",
    { class: "primary", type: "submit" },
    icon("send"),
    el("span", {}, calls.length > 1 ? "Send results" : "Send result"),
  );
  const onsubmit = (event) => {
    event.preventDefault();
    send(boxes.map(({ value }) => value));
  };
  return [el("form", { class: "calls", onsubmit }, cards, submit)];
}

/** Return the result of a call as a card. */
export function resultCard(turn) {
  const head = el("p", { class: "card-head" }, "Result of ", el("code", {}, turn.name));
  return el("div", { class: "card" }, head, el("pre", { tabindex: 0, dir: "auto" }, pretty(turn.content)));
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
