// Elements, icons, and the clipboard: what all parts of the page use. No part of the page writes HTML text here.

const SVG = "http://www.w3.org/2000/svg";

/** Paths of icons on a grid of 24, drawn as lines. */
const ICONS = {
  menu: "M4 7h16M4 12h16M4 17h16",
  plus: "M12 5v14M5 12h14",
  sliders: "M4 7h9M19 7h1M4 17h3M13 17h7M16 4.5v5M10 14.5v5",
  close: "M6 6l12 12M18 6L6 18",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  check: "M5 12.5l4.5 4.5L19 7.5",
  edit: "M4 20l1-4L16 5l3 3L8 19zM14 7l3 3",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
  again: "M19 12a7 7 0 1 1-2-5M19 4v4h-4",
  left: "M14 6l-6 6 6 6",
  right: "M10 6l6 6-6 6",
  down: "M12 5v14M6 13l6 6 6-6",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M7 7h10v10H7z",
  columns: "M4 5h16v14H4zM12 5v14",
  odds: "M5 19v-5M10 19V5M15 19v-9M20 19v-3",
  same: "M5 9h14M5 15h14",
  forward: "M5 6l7 6-7 6zM13 6l7 6-7 6z",
  search: "M11 5a6 6 0 1 0 0 12 6 6 0 0 0 0-12M15.5 15.5L20 20",
};

/**
 * Return an element. Properties that begin with "on" are listeners, `class` and others are attributes; null, undefined
 * and false leave an attribute out. Children are nodes or texts.
 */
export function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

/** Return an icon, which screen readers skip. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  svg.setAttribute("class", "icon");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

/** Return a button with an icon and a name; with `shown` the name is visible, else it is a tooltip. */
export function button(name, iconName, onclick, { shown = false, ...properties } = {}) {
  const label = shown ? [el("span", {}, name)] : [];
  const named = shown ? {} : { "aria-label": name, title: name };
  const kind = shown ? "quiet" : "quiet round";
  return el("button", { type: "button", class: kind, onclick, ...named, ...properties }, icon(iconName), ...label);
}

export const byId = (id) => document.getElementById(id);

/** Return a random id; `crypto.randomUUID` exists only on secure origins. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Copy text. Origins without TLS have no `navigator.clipboard`: there a selected text area is copied. */
async function copyText(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = el("textarea", { class: "offscreen" });
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

/** Return a button that copies what `text()` returns, and says so. */
export function copyButton(text, name = "Copy") {
  const made = button(name, "copy", async () => {
    await copyText(text());
    made.replaceChildren(icon("check"));
    say("Copied");
    setTimeout(() => made.replaceChildren(icon("copy")), 1500);
  });
  return made;
}

/** Let screen readers announce a text. */
export function say(text) {
  byId("announcer").textContent = text;
}

/** Offer a text as a file to save. */
export function download(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
