// The settings of requests, kept in this browser. Empty values are the checkpoint's defaults.

const KEY = "ferrum.settings";

const DEFAULTS = {
  ...{ model: "", mode: "chat", theme: "auto", probabilities: false },
  ...{ system: "", tools: "", structured: false, schema: "", effort: "", stop: "" },
  ...{ temperature: "", top_p: "", top_k: "", min_p: "", max_tokens: "", seed: "" },
  ...{ presence_penalty: "", frequency_penalty: "", repetition_penalty: "" },
};

/** Values by name, shared by all tabs. `onchange(name)` learns of each change; null: of many, in whichever tab. */
export class Settings {
  constructor(onchange) {
    this.onchange = onchange;
    this.values = { ...DEFAULTS, ...stored() };
    window.addEventListener("storage", ({ key }) => {
      if (key !== KEY) return;
      this.values = { ...DEFAULTS, ...stored() };
      this.onchange(null);
    });
  }

  set(name, value) {
    this.values = { ...this.values, ...stored(), [name]: value };
    localStorage.setItem(KEY, JSON.stringify(this.values));
    this.onchange(name);
  }

  /** Set all that change an answer back. */
  reset() {
    const { theme, model } = this.values;
    this.values = { ...DEFAULTS, theme, model };
    localStorage.setItem(KEY, JSON.stringify(this.values));
    this.onchange(null);
  }

  /** Return why a request cannot be sent, or null. */
  fault() {
    const { structured, schema, tools } = this.values;
    if (structured) {
      const wrong = jsonFault(schema, "object");
      if (wrong) return `The JSON schema in the settings is not valid: ${wrong}`;
    }
    const wrong = tools.trim() ? jsonFault(tools, "array") : null;
    return wrong && `The tools in the settings are not valid: ${wrong}`;
  }
}

/** Return the stored values that have their types. */
function stored() {
  try {
    const values = Object.entries(JSON.parse(localStorage.getItem(KEY)) ?? {});
    return Object.fromEntries(values.filter(([name, value]) => typeof value === typeof DEFAULTS[name]));
  } catch {
    return {};
  }
}

/** Return what is wrong with a JSON text, or null. */
export function jsonFault(text, kind) {
  try {
    const value = JSON.parse(text);
    const is = Array.isArray(value) ? "array" : typeof value;
    return is === kind && value !== null ? null : `it must be ${kind === "array" ? "a list" : "an object"}`;
  } catch (error) {
    return text.trim() ? error.message : "it is empty";
  }
}
