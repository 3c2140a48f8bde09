// Small dialogs: a question with yes or no, a text, the API key. The browser traps the focus and closes them on Escape.

import { apiKey } from "./api.js";
import { byId, el } from "./dom.js";

/** Show a form with a field or without one; resolve to its value, to true, or to null if it was closed. */
function ask({ title, text, label, value, type = "text", yes, danger = false }) {
  const dialog = byId("ask");
  const field = label ? el("input", { id: "ask-field", type, autocomplete: "off", required: true, dir: "auto" }) : null;
  if (field && value) field.value = value;
  const accept = el("button", { type: "submit", value: "yes", class: danger ? "danger" : "primary" }, yes);
  const form = el(
    "form",
    { method: "dialog" },
    el("h2", { id: "ask-title" }, title),
    text && el("p", {}, text),
    field && el("label", { for: "ask-field" }, label),
    field,
    el(
      "div",
      { class: "row" },
      accept,
      el("button", { type: "button", class: "quiet", onclick: () => dialog.close("no") }, "Cancel"),
    ),
  );
  dialog.replaceChildren(form);
  dialog.returnValue = "no";
  dialog.showModal();
  (field ?? accept).focus();
  field?.select();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue !== "yes" ? null : (field?.value ?? true)), {
      once: true,
    });
  });
}

export const confirmed = (title, text, yes) => ask({ title, text, yes, danger: true });
export const textOf = (title, label, value, yes) => ask({ title, label, value, yes });

/** Ask for the API key, which stays in this tab. Returns whether one was entered. */
export async function askForKey(text) {
  const key = await ask({ title: "API key", text, label: "Key", type: "password", yes: "Use this key" });
  if (key === null) return false;
  apiKey.set(key.trim());
  return true;
}
