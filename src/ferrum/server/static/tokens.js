// Generated text as tokens that show their probability on pointer, touch and arrow keys.

const ARROWS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };

/** Text with tokens to inspect: `output` contains it, `panel` shows a token's probabilities. */
export class TokenText {
  constructor(output, panel) {
    this.output = output;
    this.panel = panel;
    this.shown = null;
    this.byKey = false;
    this.entries = new WeakMap();
    const at = (event) => event.target.closest?.(".token");
    output.addEventListener("pointerover", (event) => {
      this.byKey = false;
      this.show(at(event));
    });
    output.addEventListener("pointerleave", () => this.show(null));
    output.addEventListener("click", (event) => this.show(at(event)));
    output.addEventListener("scroll", () => this.byKey || this.show(null));
    output.addEventListener("blur", () => this.show(null));
    output.addEventListener("keydown", (event) => this.move(event));
  }

  /** Begin a text inside `parent`; the returned function appends pieces. */
  begin(parent) {
    let pending = [];
    return ({ text, tokens }) => {
      pending.push(...tokens);
      if (!text) return;
      const follows = this.output.scrollHeight - this.output.scrollTop - this.output.clientHeight < 40;
      // A character of several tokens is one piece of text, which their entries share.
      const apart = pending.map((each) => each.text).join("") === text;
      const parts = apart ? pending.map((each) => [each.text, [each]]) : [[text, pending]];
      for (const [part, entries] of parts) parent.append(this.span(part, entries));
      pending = [];
      if (follows) this.output.scrollTop = this.output.scrollHeight;
    };
  }

  span(text, entries) {
    const span = document.createElement("span");
    span.className = "token";
    span.textContent = text;
    this.entries.set(span, entries);
    if (entries.length) span.style.setProperty("--doubted", 1 - Math.exp(Math.min(...entries.map((each) => each.logprob))));
    return span;
  }

  clear() {
    this.show(null);
    this.output.replaceChildren();
  }

  move(event) {
    if (event.key === "Escape") return this.show(null);
    const step = ARROWS[event.key];
    const all = [...this.output.querySelectorAll(".token")];
    if (!step || !all.length) return;
    event.preventDefault();
    const place = all.indexOf(this.shown) + step;
    const next = all[this.shown ? Math.min(Math.max(place, 0), all.length - 1) : step > 0 ? 0 : all.length - 1];
    this.byKey = true;
    next.scrollIntoView({ block: "nearest" });
    this.show(next);
  }

  /** Show a token's probabilities next to it; hide them for null. */
  show(token) {
    this.shown?.classList.remove("shown");
    this.shown = token ?? null;
    const entries = token ? this.entries.get(token) : [];
    this.panel.hidden = !entries?.length;
    if (this.panel.hidden) return;
    token.classList.add("shown");
    this.panel.replaceChildren(...entries.map(table));
    const box = token.getBoundingClientRect();
    const { width, height } = this.panel.getBoundingClientRect();
    const below = box.bottom + height + 8 < window.innerHeight;
    this.panel.style.left = `${Math.max(8, Math.min(box.left, window.innerWidth - width - 8))}px`;
    this.panel.style.top = `${below ? box.bottom + 4 : Math.max(8, box.top - height - 4)}px`;
  }
}

/** Return a table of the chosen token and the top tokens. */
function table({ text, logprob, top }) {
  const made = document.createElement("table");
  const rows = top.some((each) => each.text === text) ? top : [...top, { text, logprob }];
  for (const each of rows) {
    const row = made.insertRow();
    if (each.text === text) row.className = "chosen";
    row.insertCell().textContent = visible(each.text);
    row.insertCell().textContent = percent(each.logprob);
  }
  return made;
}

/** Return the text with visible marks for white space. */
const visible = (text) => text.replaceAll(" ", "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥") || "(nothing)";

function percent(logprob) {
  const part = 100 * Math.exp(logprob);
  return part < 0.01 ? "< 0.01 %" : `${part.toPrecision(3)} %`;
}
