// An answer as tokens with their probabilities: pointer, touch and arrow keys show the alternatives of a token.

import { byId, el } from "./dom.js";

const SPECIAL = /^(?:<[|/]?[\w|]+\|?>|\[\/?[A-Z_]+\])$/;
const HIDE_AFTER = 250;

/** The only panel: the alternatives of one token. */
class Panel {
  constructor() {
    this.element = byId("alternatives");
    this.owner = null;
    this.timer = null;
    this.element.addEventListener("pointerenter", () => clearTimeout(this.timer));
    this.element.addEventListener("pointerleave", () => this.hideSoon());
    this.element.addEventListener("keydown", (event) => this.move(event));
    byId("scroller").addEventListener("scroll", () => this.token && this.place(), { passive: true });
    document.addEventListener(
      "pointerdown",
      ({ target }) => this.element.contains(target) || this.owner?.element.contains(target) || this.hide(),
    );
  }

  show(owner, token, piece, choose) {
    clearTimeout(this.timer);
    this.hide();
    Object.assign(this, { owner, token });
    token.classList.add("shown");
    const hint =
      piece.kind === "reasoning" && el("p", { class: "hint" }, "Branches begin in the answer, after the reasoning.");
    this.element.replaceChildren(
      ...[...piece.entries.map((entry) => this.list(entry, piece, choose)), hint].filter(Boolean),
    );
    this.element.hidden = false;
    this.place();
  }

  /** Put the panel below its token, or above it. */
  place() {
    const box = this.token.getBoundingClientRect();
    const { width, height } = this.element.getBoundingClientRect();
    const below = box.bottom + height + 8 < window.innerHeight;
    this.element.style.left = `${Math.max(8, Math.min(box.left, window.innerWidth - width - 8))}px`;
    this.element.style.top = `${below ? box.bottom + 2 : Math.max(8, box.top - height - 2)}px`;
  }

  list(entry, piece, choose) {
    const rows = entry.top.some(({ text }) => text === entry.text) ? entry.top : [...entry.top, entry];
    const alone = piece.entries.length === 1 && piece.kind === "content" && choose;
    return el(
      "ul",
      {},
      rows.map((each) => {
        const current = each.text === entry.text;
        const able = alone && !current && each.text && !each.text.includes("�") && !SPECIAL.test(each.text);
        const row = el(
          "button",
          { type: "button", disabled: !able, "aria-current": current ? "true" : null, onclick: () => choose(each) },
          el("span", { class: "token-text" }, visible(each.text)),
          el("span", { class: "bar" }),
          el("span", { class: "percent" }, percent(each.logprob)),
        );
        row.style.setProperty("--part", Math.exp(each.logprob));
        return el("li", {}, row);
      }),
    );
  }

  move(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const rows = [...this.element.querySelectorAll("button:enabled")];
    if (event.key === "Escape") {
      const { owner } = this;
      this.hide();
      owner?.element.focus();
    } else if (step && rows.length) {
      event.preventDefault();
      rows[(rows.indexOf(document.activeElement) + step + rows.length) % rows.length].focus();
    }
  }

  focus() {
    this.element.querySelector("button:enabled")?.focus();
  }

  hideSoon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.element.contains(document.activeElement) || this.hide(), HIDE_AFTER);
  }

  hide() {
    this.token?.classList.remove("shown");
    Object.assign(this, { owner: null, token: null });
    this.element.hidden = true;
  }
}

let panel = null;

export function hideAlternatives() {
  panel?.hide();
}

/** The tokens of an answer. `choose(place, alternative)` goes on from an alternative. */
export class TokenText {
  constructor(choose) {
    panel ??= new Panel();
    this.choose = choose;
    this.pieces = [];
    this.spans = [];
    const help = "Left and right choose a token, down its alternatives.";
    this.element = el("div", {
      class: "tokens",
      tabindex: 0,
      role: "group",
      "aria-label": `Tokens. ${help}`,
      dir: "auto",
    });
    // Not pointerover: text that grows under a pointer at rest opens nothing.
    this.element.addEventListener("pointermove", (event) => this.showAt(event));
    this.element.addEventListener("click", (event) => this.showAt(event));
    this.element.addEventListener("pointerleave", () => panel.hideSoon());
    this.element.addEventListener("keydown", (event) => this.move(event));
  }

  /** Add the pieces that are not shown yet. */
  update(pieces) {
    this.pieces = pieces;
    for (const piece of pieces.slice(this.spans.length)) {
      const span = el("span", { class: `token ${piece.kind}`, "data-doubt": doubt(piece) }, piece.text);
      this.spans.push(span);
      this.element.append(span);
    }
  }

  showAt(event) {
    const place = this.spans.indexOf(event.target);
    if (place >= 0) this.show(place);
    else if (event.type === "click") panel.hide();
  }

  show(place) {
    const piece = this.pieces[place];
    if (panel.token === this.spans[place] || !piece.entries.length) return;
    panel.show(this, this.spans[place], piece, this.choose && ((alternative) => this.choose(place, alternative)));
  }

  move(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === "Escape") return panel.hide();
    if (event.key === "ArrowDown" && panel.owner === this) {
      event.preventDefault();
      return panel.focus();
    }
    if (!step || !this.spans.length) return;
    event.preventDefault();
    const at = panel.owner === this ? this.spans.indexOf(panel.token) : step > 0 ? -1 : this.spans.length;
    const next = Math.min(Math.max(at + step, 0), this.spans.length - 1);
    this.spans[next].scrollIntoView({ block: "nearest" });
    this.show(next);
  }
}

/** Return how unlikely a piece was: "2" below 10 %, "1" below 50 %, else null. */
function doubt({ entries }) {
  const least = Math.exp(Math.min(0, ...entries.map(({ logprob }) => logprob)));
  return least < 0.1 ? "2" : least < 0.5 ? "1" : null;
}

/** Return the text with visible marks for white space. */
const visible = (text) => text.replaceAll(" ", "␣").replaceAll("\n", "⏎").replaceAll("\t", "⇥") || "(nothing)";

function percent(logprob) {
  const part = 100 * Math.exp(logprob);
  return part < 0.01 ? "< 0.01 %" : `${part.toPrecision(3)} %`;
}
