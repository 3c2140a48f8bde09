// The turns of the active path. Turns keep their elements while the conversation changes around them.

import { el } from "./dom.js";
import { hideAlternatives } from "./probabilities.js";
import { pathBelow } from "./tree.js";
import { TurnView } from "./turn.js";

export class Transcript {
  /**
   * @param element holds the turns
   * @param chat has the conversation
   * @param actions `{choose, compare, remove, dismiss, edit, toggleOdds, runAgain, branchAt, sendResults}` of a turn
   */
  constructor(element, chat, actions) {
    Object.assign(this, { element, chat, actions });
    this.views = new Map();
    this.conversation = null;
  }

  render() {
    const { conversation } = this.chat;
    hideAlternatives();
    if (conversation !== this.conversation) {
      this.views.clear();
      this.conversation = conversation;
    }
    const path = pathBelow(conversation);
    const shown = path.map((turn) => this.viewOf(turn));
    const focused = this.focused();
    for (const view of shown) view.render();
    const elements = shown.map(({ element }) => element);
    if (
      elements.some((each, place) => this.element.children[place] !== each) ||
      this.element.children.length !== elements.length
    ) {
      this.element.replaceChildren(...elements);
    }
    focused();
  }

  /** Return a function that focuses the button that has the focus now, or one near it, after all were made again. */
  focused() {
    const active = document.activeElement;
    const place = [...this.element.children].findIndex((turn) => turn.contains(active));
    const name = active?.getAttribute("aria-label");
    return () => {
      if (place < 0 || !name || this.element.contains(document.activeElement)) return;
      const turn = this.element.children[place] ?? this.element.lastElementChild;
      const near = [`[aria-label="${CSS.escape(name)}"]:enabled`, ".branch ~ button:enabled", "button:enabled"];
      near
        .map((each) => turn?.querySelector(each))
        .find(Boolean)
        ?.focus();
    };
  }

  viewOf(turn) {
    if (!this.views.has(turn.id)) this.views.set(turn.id, new TurnView(turn, this.chat, this.actions));
    return this.views.get(turn.id);
  }

  /** Show what a streaming turn has now. */
  grown(turn) {
    this.views.get(turn.id)?.answer.grow();
  }

  /** Highlight code that was shown before the highlighter came. */
  refresh() {
    for (const { answer, turn } of this.views.values()) {
      if (answer && turn.content.includes("```") && !this.chat.written(this.chat.conversation, turn)) answer.refresh();
    }
  }
}

/** Return the text above an empty conversation. */
export function welcome(config) {
  const lines = [
    el("h2", {}, config ? "What do you want to know?" : "Connecting to the server"),
    config &&
      el(
        "p",
        {},
        config.model.chat_template
          ? "The same question with the same seed gets the same answer, to the last bit."
          : "This model has no chat template: it continues the text you write.",
      ),
  ];
  return lines.filter(Boolean);
}
