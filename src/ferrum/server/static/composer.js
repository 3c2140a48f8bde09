// The box at the bottom: Enter sends, Shift+Enter breaks the line. Enter that ends the input of a character does neither.

import { byId } from "./dom.js";
import { Attached } from "./images.js";

const TALLEST = 0.4; // of the window

export class Composer {
  /**
   * @param actions `{send(text, images), stop()}`; `send` returns whether they were taken
   * @param context see `Attached`
   */
  constructor(actions, context) {
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
    this.attached = new Attached(this, context);
  }

  send() {
    const text = this.box.value;
    const { images, busy } = this.attached;
    if ((!text.trim() && !images.length) || busy || byId("send").disabled || byId("send").hidden) return;
    if (!this.actions.send(text, images)) return;
    this.set("");
    this.attached.set([]);
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

  /** Images are still read, or the server is away: nothing can be sent. */
  changed() {
    this.submit.disabled = !this.ready || Boolean(this.attached.busy);
  }

  /** Show an error, or none. */
  warn(text) {
    this.alert.textContent = text;
    this.alert.parentElement.hidden = !text;
  }

  /** Show whether an answer is being written here, and whether the server takes requests. */
  state(busy, ready) {
    this.ready = ready;
    this.attached.offer();
    const stop = byId("stop");
    const focused = [this.submit, stop].includes(document.activeElement);
    stop.hidden = !busy;
    this.submit.hidden = busy;
    this.changed();
    if (focused) (busy ? stop : this.box).focus();
  }
}
