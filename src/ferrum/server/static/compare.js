// Two branches next to each other, each with arrows to choose it and a button to go on from it.

import { Answer } from "./answer.js";
import { button, byId, el, icon } from "./dom.js";
import { resultCard } from "./tool_calls.js";
import { pathBelow, siblings } from "./tree.js";
import { question } from "./turn.js";

/** Show the branches of a turn: its own and the one before it, or after the first. */
export function compareBranches(chat, turn) {
  const dialog = byId("compare");
  const { conversation } = chat;
  const { place, ids } = siblings(conversation, turn);
  const places = place > 0 ? [place - 1, place] : [0, 1];
  const columns = places.map((_, column) => el("section", { class: "column", "aria-label": `Branch ${column + 1}` }));
  const draw = () => columns.forEach((element, column) => element.replaceChildren(...contents(column)));
  const contents = (column) => {
    const at = places[column];
    const move = (step) => () => {
      places[column] = at + step;
      draw();
    };
    const shown = conversation.turns[ids[at]];
    const go = () => {
      dialog.close();
      columns.forEach((element) => element.remove());
      chat.show(shown);
    };
    const bar = el(
      "div",
      { class: "turn-bar" },
      button("Previous branch", "left", move(-1), { disabled: at === 0 }),
      el("span", { class: "branch" }, `${at + 1} / ${ids.length}`),
      button("Next branch", "right", move(1), { disabled: at === ids.length - 1 }),
      el(
        "button",
        { type: "button", class: "quiet", onclick: go },
        icon("check"),
        el("span", {}, "Go on with this one"),
      ),
    );
    return [
      bar,
      el(
        "div",
        { class: "column-turns", tabindex: 0 },
        [shown, ...pathBelow(conversation, shown.id)].map((each) => still(each, conversation)),
      ),
    ];
  };
  draw();
  dialog.querySelector(".columns").replaceChildren(...columns);
  dialog.addEventListener("close", () => columns.forEach((element) => element.remove()), { once: true });
  dialog.showModal();
}

/** Return a turn without buttons. */
function still(turn, conversation) {
  if (turn.role === "user")
    return el("article", { class: "turn user" }, ...question(turn));
  if (turn.role === "tool") return el("article", { class: "turn" }, resultCard(turn));
  const shown = { ...turn, odds: false, children: ["shown"] };
  const answer = new Answer(shown, {}, conversation.mode === "complete");
  answer.update(false);
  return el("article", { class: "turn assistant" }, answer.element);
}
