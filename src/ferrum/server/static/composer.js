// The box at the bottom: Enter sends, Shift+Enter breaks the line. Enter that ends the input of a character does neither.

import { byId } from "./dom.js";

const TALLEST = 0.4; // of the window

export class Composer {
  /** @param actions `{send(text), stop()}`; `send` returns whether the text was taken */
  constructor(actions) {
    this.actions = actions;
    this.box = byId("prompt");
    this.submit = byId("send");
    this.alert = byId("alert");
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    this.box.addEventListener("input", () => this.fit());
    this.box.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229) return;
      event.preventDefault();
      this.send();
    });
    byId("stop").addEventListener("click", () => actions.stop());
  }

  send() {
    const text = this.box.value;
    if (!text.trim() || byId("send").disabled || byId("send").hidden) return;
    if (this.actions.send(text)) this.set("");
  }

  set(text) {
    this.box.value = text;
    this.fit();
  }

  fit() {
    this.box.style.height = "auto";
    const tallest = window.innerHeight * TALLEST;
    this.box.style.height = `${Math.min(this.box.scrollHeight, tallest)}px`;
    this.box.classList.toggle("scrolls", this.box.scrollHeight > tallest);
  }

  /** Show an error, or none. */
  warn(text) {
    this.alert.textContent = text;
    this.alert.parentElement.hidden = !text;
  }

  /** Show whether an answer is being written here, and whether the server takes requests. */
  state(busy, ready) {
    const stop = byId("stop");
    const focused = [this.submit, stop].includes(document.activeElement);
    stop.hidden = !busy;
    this.submit.hidden = busy;
    this.submit.disabled = !ready;
    if (focused) (busy ? stop : this.box).focus();
  }
}
