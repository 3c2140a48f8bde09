// The text of an answer: folded reasoning, Markdown or tokens, and calls. It grows with the stream.

import { el } from "./dom.js";
import { MarkdownView } from "./markdown.js";
import { TokenText } from "./probabilities.js";
import { callCards } from "./tool_calls.js";

export class Answer {
  /**
   * @param turn is shown
   * @param actions has `branchAt(turn, place, alternative)` and `sendResults(turn, results)`
   * @param plain shows the text as it is, without Markdown
   */
  constructor(turn, actions, plain) {
    Object.assign(this, { turn, actions, plain });
    this.reasoning = el("div", { class: "reasoning-text", dir: "auto" });
    this.label = el("summary", {}, "Reasoning");
    this.fold = el("details", { class: "reasoning", hidden: true }, this.label, this.reasoning);
    this.body = el("div", { class: "body" });
    this.calls = el("div", { class: "calls-box" });
    this.element = el("div", { class: "answer" }, this.fold, this.body, this.calls);
    this.markdown = null;
    this.tokens = null;
    this.cost = 0;
    this.due = null;
  }

  /** Show what the turn has now. While it streams, at most once a frame and a third of the time. */
  grow() {
    if (this.due !== null) return;
    const wait = Math.max(0, 3 * this.cost - 16);
    this.due = setTimeout(() => requestAnimationFrame(() => this.due !== null && this.update(true)), wait);
  }

  update(streaming) {
    clearTimeout(this.due);
    this.due = null;
    const began = performance.now();
    this.showReasoning(streaming);
    if (this.turn.odds && this.turn.pieces) this.showTokens(streaming);
    else this.showText(streaming);
    this.showCalls(streaming);
    this.element.classList.toggle("waiting", streaming && !this.turn.content && !this.turn.reasoning);
    this.element.setAttribute("aria-busy", String(streaming));
    this.cost = performance.now() - began;
  }

  showReasoning(streaming) {
    const { reasoning, content, odds, pieces } = this.turn;
    this.fold.hidden = !reasoning || Boolean(odds && pieces);
    this.label.textContent = streaming && !content ? "Reasoning…" : "Reasoning";
    const shown = this.reasoning.firstChild?.data ?? "";
    if (reasoning.startsWith(shown) && shown) this.reasoning.firstChild.appendData(reasoning.slice(shown.length));
    else this.reasoning.replaceChildren(document.createTextNode(reasoning));
  }

  showText(streaming) {
    this.tokens = null;
    if (this.plain) {
      this.body.className = "body plain";
      this.body.dir = "auto";
      this.body.textContent = this.turn.content;
      return;
    }
    if (!this.markdown) {
      this.body.className = "body markdown";
      this.markdown = new MarkdownView(this.body);
    }
    this.markdown.update(this.turn.content, !streaming);
  }

  showTokens(streaming) {
    this.markdown = null;
    if (!this.tokens || this.tokens.busy !== streaming || this.tokens.pieces !== this.turn.pieces) {
      const choose = streaming ? null : (place, alternative) => this.actions.branchAt(this.turn, place, alternative);
      const kept = this.tokens?.pieces === this.turn.pieces;
      if (kept) this.tokens.choose = choose;
      else this.tokens = new TokenText(choose);
      this.tokens.busy = streaming;
      this.body.className = "body";
      if (!kept) this.body.replaceChildren(this.tokens.element);
    }
    this.tokens.update(this.turn.pieces);
  }

  showCalls(streaming) {
    const { turn } = this;
    const answered = turn.children.length > 0;
    const state = `${turn.calls.length} ${streaming} ${answered}`;
    if (!turn.calls.length || (state === this.state && !streaming)) return;
    this.state = state;
    const send = streaming || answered ? null : (results) => this.actions.sendResults(turn, results);
    this.calls.replaceChildren(...callCards(turn.calls, send));
  }

  /** Render the Markdown again: the highlighter has loaded, or another view was shown. */
  refresh() {
    this.markdown = null;
    this.update(false);
  }
}
