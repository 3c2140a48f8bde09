// Markdown of answers as safe elements. Two barriers: HTML in an answer is shown as text, and a sanitiser reads the result.

import { codeHtml, escaped } from "./code.js";
import { copyButton, el } from "./dom.js";
import { Marked } from "./vendor/marked.js";
import "./vendor/purify.js";

const HARMLESS = /^<(?:br ?\/?|\/?(?:b|i|u|s|em|strong|sub|sup|kbd|mark|small))>$/i;
const ADDRESS = /^(?:https?:\/\/|mailto:)/i;
const DIRECTED = new Set(["P", "LI", "H1", "H2", "H3", "H4", "H5", "H6", "TD", "TH", "BLOCKQUOTE"]);

const CLEAN = {
  ALLOWED_TAGS: [
    ...["a", "b", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "i", "kbd", "li"],
    ...["mark", "ol", "p", "pre", "s", "small", "span", "strong", "sub", "sup", "table", "tbody", "td", "th", "thead"],
    ...["tr", "u", "ul"],
  ],
  ALLOWED_ATTR: ["href", "class", "start", "align", "data-language"],
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  ALLOWED_URI_REGEXP: ADDRESS,
  ADD_URI_SAFE_ATTR: ["start", "align", "data-language"],
  RETURN_DOM_FRAGMENT: true,
};

const renderer = {
  html({ text }) {
    return HARMLESS.test(text.trim()) ? text : escaped(text);
  },
  image({ href, text }) {
    return link(href, escaped(text || "image"));
  },
  link({ href, tokens }) {
    return link(href, this.parser.parseInline(tokens));
  },
  code({ text, lang }) {
    const language = /^[\w+#-]*/.exec(lang ?? "")[0].toLowerCase();
    return `<pre data-language="${language}"><code>${codeHtml(text, language)}\n</code></pre>`;
  },
  checkbox({ checked }) {
    return checked ? "☑ " : "☐ ";
  },
};

function link(href, html) {
  return ADDRESS.test(href) ? `<a href="${escaped(href)}">${html}</a>` : html;
}

const marked = new Marked({ gfm: true, breaks: true, renderer });
const purify = globalThis.DOMPurify;

/** Return blocks of Markdown as sanitised elements with copy buttons, open links and directions. */
function fragmentOf(tokens) {
  const fragment = purify.sanitize(marked.parser(tokens), CLEAN);
  for (const each of fragment.querySelectorAll("*")) if (DIRECTED.has(each.tagName)) each.dir = "auto";
  for (const each of fragment.querySelectorAll("a")) openElsewhere(each);
  for (const each of fragment.querySelectorAll("pre")) frame(each);
  for (const each of fragment.querySelectorAll("table")) {
    const box = el("div", { class: "table", tabindex: 0 });
    each.replaceWith(box);
    box.append(each);
  }
  return fragment;
}

/** Links show where they lead, and the page that opens learns nothing about this one. */
function openElsewhere(anchor) {
  const address = anchor.getAttribute("href");
  if (!address) return;
  anchor.target = "_blank";
  anchor.rel = "noopener noreferrer";
  anchor.title = address;
  const host = URL.canParse(address) ? new URL(address).host : "";
  if (host && !anchor.textContent.includes(host)) anchor.dataset.host = host;
}

/** Put code into a box with its language and a copy button. */
function frame(pre) {
  const code = pre.querySelector("code");
  const language = pre.dataset.language;
  pre.tabIndex = 0;
  pre.dir = "ltr";
  const header = el("div", { class: "code-head" }, el("span", {}, language || "text"));
  header.append(copyButton(() => code.textContent.replace(/\n$/, ""), "Copy code"));
  const block = el("div", { class: "code" }, header);
  pre.replaceWith(block);
  block.append(pre);
}

/** A growing Markdown text in an element. Finished blocks stay; only the last two are rendered again. */
export class MarkdownView {
  constructor(element) {
    this.element = element;
    this.reset();
  }

  reset() {
    this.finished = 0;
    this.tail = [];
    this.whole = null;
    this.element.replaceChildren();
  }

  /** Show the text, which begins with the text shown before. `final`: it will not grow. */
  update(text, final) {
    const whole = text.replace(/\r\n?/g, "\n");
    if (final && whole === this.whole) return;
    if (this.whole !== null) this.reset(); // it was final, and grows on
    if (final && /^ {0,3}\[[^\]]+\]:/m.test(whole)) this.reset(); // a definition of a link anywhere counts everywhere
    this.whole = final ? whole : null;
    const tokens = marked.lexer(whole.slice(this.finished));
    const kept = final ? tokens.length : stable(tokens);
    for (const node of this.tail) node.remove();
    if (kept) {
      this.element.append(fragmentOf(tokens.slice(0, kept)));
      this.finished += tokens.slice(0, kept).reduce((sum, { raw }) => sum + raw.length, 0);
    }
    const rest = fragmentOf(tokens.slice(kept));
    this.tail = [...rest.childNodes];
    this.element.append(rest);
  }
}

/** Return how many blocks no further text can change: all but the last two, since a list may go on after a gap. */
function stable(tokens) {
  const blocks = tokens.flatMap(({ type }, place) => (type === "space" ? [] : [place]));
  return blocks.at(-2) ?? 0;
}
