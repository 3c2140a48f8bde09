// One turn on the page: its text, its buttons, and the arrows between its branches.

import { Answer } from "./answer.js";
import { button, copyButton, el } from "./dom.js";
import { thumbnails } from "./images.js";
import { receiptOf } from "./receipt.js";
import { resultCard } from "./tool_calls.js";
import { isEmpty, siblings } from "./tree.js";

/** Return a question's images and its text. */
export function question({ content, images }) {
  const shown = images?.length ? [el("div", { class: "shots" }, thumbnails(images))] : [];
  return content.trim() || !shown.length ? [...shown, el("div", { class: "bubble", dir: "auto" }, content)] : shown;
}

const NAMES = { user: "You", assistant: "Answer", tool: "Tool result" };
const NOTICES = new Map([
  ["length", ["Stopped at the limit of tokens.", "Continue"]],
  ["stopped", ["You stopped this answer.", "Continue"]],
  ["cut", ["The connection broke before the end.", "Continue"]],
  ["edited", ["You wrote this answer.", "Continue"]],
]);
const NOTHING_STOPPED = "You stopped this question before its answer began.";
const NOTHING_CAME = "No answer came.";

export class TurnView {
  /**
   * @param turn is shown
   * @param chat has the conversation and the actions
   * @param actions of the page: see `Transcript`
   */
  constructor(turn, chat, actions) {
    Object.assign(this, { turn, chat, actions, editing: false });
    this.conversation = chat.conversation;
    this.content = el("div", { class: "turn-content" });
    this.notice = el("div", { class: "notice", hidden: true });
    this.fault = el("div", { class: "alert", hidden: true });
    this.bar = el("div", { class: "turn-bar" });
    this.receipt = el("details", { class: "receipt" });
    const name = NAMES[turn.role];
    const heading = el("h2", { class: "offscreen" }, name);
    this.element = el(
      "article",
      { class: `turn ${turn.role}`, "data-turn": turn.id, "aria-label": name },
      heading,
      this.content,
      this.fault,
      this.notice,
      this.bar,
    );
    if (turn.role === "assistant") {
      this.answer = new Answer(turn, actions, this.conversation.mode === "complete");
      this.content.append(this.answer.element);
    } else this.showText();
  }

  get streaming() {
    return this.chat.written(this.conversation, this.turn);
  }

  showText() {
    const { turn } = this;
    this.content.replaceChildren(...(turn.role === "tool" ? [resultCard(turn)] : question(turn)));
  }

  /** Show the state of the turn and of its branches. */
  render() {
    if (this.editing) return;
    const streaming = this.turn.role === "assistant" && this.streaming;
    this.answer?.update(streaming);
    this.showFault(streaming);
    this.showNotice(streaming);
    this.bar.replaceChildren(...this.arrows(), ...(streaming ? [] : this.buttons()));
    if (this.turn.running) this.bar.append(el("span", { role: "status" }, "Running again…"));
    if (this.turn.role === "assistant" && this.turn.parts.length && !streaming) {
      this.receipt.replaceChildren(...receiptOf(this.turn, this.againButton()));
      this.bar.append(this.receipt);
    }
  }

  /** Show why an answer ended early, and how it goes on. */
  showNotice(streaming) {
    const { content, reasoning, calls, children, finish } = this.turn;
    const ended = finish ?? "cut"; // the page that wrote it is gone
    const empty = isEmpty(this.turn);
    const nothing = [ended === "stopped" ? NOTHING_STOPPED : NOTHING_CAME, "Send again"];
    const [text, goOn] = empty ? nothing : (NOTICES.get(ended) ?? []);
    const last = !children.length && !calls?.length;
    this.notice.hidden = this.turn.role !== "assistant" || streaming || !text || (!last && ended === "edited");
    if (this.notice.hidden) return;
    const action = reasoning && !content ? "Answer now" : goOn;
    const run = () => (empty ? this.chat.retry(this.turn) : this.chat.continueAnswer(this.turn));
    const go = button(action, "forward", run, { shown: true });
    this.notice.replaceChildren(el("span", {}, text), ...(last && !this.chat.busy ? [go] : []));
  }

  /** Show the error of the last request for this answer. */
  showFault(streaming) {
    const { fault } = this.turn;
    this.fault.hidden = !fault || streaming;
    if (this.fault.hidden || this.fault.firstChild?.textContent === fault) return;
    const close = button("Dismiss", "close", () => this.actions.dismiss(this.turn));
    this.fault.replaceChildren(el("p", { role: "alert" }, fault), close);
  }

  arrows() {
    const { place, ids } = siblings(this.conversation, this.turn);
    if (ids.length < 2) return [];
    const to = (step) => () => this.actions.choose(this.conversation.turns[ids[place + step]]);
    return [
      button("Previous branch", "left", to(-1), { disabled: place === 0 || this.chat.busy }),
      el("span", { class: "branch" }, `${place + 1} / ${ids.length}`),
      button("Next branch", "right", to(1), { disabled: place === ids.length - 1 || this.chat.busy }),
      button("Compare branches", "columns", () => this.actions.compare(this.turn)),
    ];
  }

  buttons() {
    const { turn, chat, actions } = this;
    const disabled = chat.busy;
    const remove = button("Delete", "trash", () => actions.remove(turn), { disabled });
    if (turn.role === "tool") return [copyButton(() => turn.content), remove];
    if (isEmpty(turn)) return [remove]; // and "Send again" of its notice
    const edit = button("Edit", "edit", () => this.edit(), { disabled });
    const common = [copyButton(() => turn.content), edit];
    if (turn.role === "user") return [...common, remove];
    const pressed = String(Boolean(turn.odds && turn.pieces));
    const odds = button("Probabilities", "odds", () => actions.toggleOdds(turn), { "aria-pressed": pressed, disabled });
    return [...common, button("Regenerate", "again", () => chat.regenerate(turn), { disabled }), odds, remove];
  }

  againButton() {
    const title = "Asks for this answer again and compares every token";
    const run = () => this.actions.runAgain(this.turn);
    return button("Run again: same bits?", "same", run, {
      shown: true,
      title,
      disabled: this.chat.busy || Boolean(this.turn.running),
    });
  }

  /** Replace the text by a box; saving makes a branch. */
  edit() {
    this.editing = true;
    const asks = this.turn.role === "user";
    const box = el("textarea", {
      class: "edit-box",
      rows: 4,
      dir: "auto",
      "aria-label": asks ? "Your message" : "The answer",
    });
    box.value = this.turn.content;
    const done = () => {
      this.editing = false;
      form.remove();
      this.element.classList.remove("editing");
      this.render();
      this.bar.querySelector('[aria-label="Edit"]')?.focus();
    };
    const onsubmit = (event) => {
      event.preventDefault();
      if (this.chat.blocked()) return;
      done();
      if (box.value.trim() || this.turn.images) this.actions.edit(this.turn, box.value);
    };
    const save = el("button", { type: "submit", class: "primary" }, asks ? "Send as a branch" : "Save as a branch");
    const form = el(
      "form",
      { class: "edit", onsubmit },
      box,
      el("div", { class: "row" }, save, el("button", { type: "button", class: "quiet", onclick: done }, "Cancel")),
    );
    box.addEventListener("keydown", (event) => {
      if (event.key === "Escape") done();
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing && asks) {
        event.preventDefault();
        form.requestSubmit();
      }
    });
    this.element.classList.add("editing");
    this.content.after(form);
    box.focus();
  }
}
