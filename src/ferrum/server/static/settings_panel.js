// The panel of settings: fields with the checkpoint's recommendations as placeholders.

import { button, el } from "./dom.js";
import { jsonFault } from "./settings.js";

/** Number fields: name, label, and attributes. */
const NUMBERS = [
  ["temperature", "Temperature", { min: 0, max: 2, step: "any" }],
  ["top_p", "Top p", { min: 0, max: 1, step: "any" }],
  ["top_k", "Top k", { min: 0, step: 1 }],
  ["min_p", "Min p", { min: 0, max: 1, step: "any" }],
  ["repetition_penalty", "Repetition penalty", { min: 0, step: "any" }],
  ["presence_penalty", "Presence penalty", { min: -2, max: 2, step: "any" }],
  ["frequency_penalty", "Frequency penalty", { min: -2, max: 2, step: "any" }],
  ["max_tokens", "Max tokens", { min: 1, step: 1 }],
  ["seed", "Seed", { min: -9007199254740991, max: 9007199254740991, step: 1 }],
];
const ENGINE = {
  temperature: 1,
  top_p: 1,
  top_k: 0,
  min_p: 0,
  repetition_penalty: 1,
  presence_penalty: 0,
  frequency_penalty: 0,
};

export class SettingsPanel {
  constructor(element, settings) {
    Object.assign(this, { element, settings, fields: {} });
  }

  /** Draw the panel for a server's properties. */
  draw({ config, models }) {
    const recommended = config?.sampling ?? {};
    const own = (name) => recommended[name] ?? ENGINE[name] ?? { max_tokens: "no limit", seed: "random" }[name];
    const numbers = NUMBERS.map(([name, label, limits]) => this.number(name, label, limits, String(own(name))));
    const effort = efforts(config?.model.reasoning ?? []);
    const parts = [
      models.length > 1 &&
        this.select(
          "model",
          "Model",
          models.map((name) => [name, name]),
        ),
      config?.model.chat_template &&
        this.select("mode", "New conversations", [
          ["chat", "Chat"],
          ["complete", "Plain completion"],
        ]),
      this.text("system", "System prompt", "Tell the model how to answer", null),
      effort.length && this.select("effort", "Reasoning", effort),
      el("h3", {}, "Sampling"),
      el("p", { class: "hint" }, "Empty fields use what the checkpoint recommends, shown in grey."),
      el("div", { class: "numbers" }, numbers),
      this.text("stop", "Stop strings", "One per line", null),
      el("h3", {}, "Structured output"),
      this.check("structured", "Answer in JSON of a schema"),
      this.text("schema", "JSON schema", '{"type": "object", "properties": {}}', "object"),
      el("h3", {}, "Tools"),
      this.text("tools", "Tools as JSON", '[{"type": "function", "function": {"name": "…"}}]', "array"),
      el("h3", {}, "Page"),
      this.select("theme", "Colours", [
        ["auto", "As the system"],
        ["light", "Light"],
        ["dark", "Dark"],
      ]),
      button("Reset settings", "again", () => this.settings.reset(), { shown: true }),
    ];
    this.element.replaceChildren(...parts.filter(Boolean));
  }

  /** Show the values, which have changed elsewhere. */
  show() {
    for (const [name, field] of Object.entries(this.fields)) {
      const value = this.settings.values[name];
      if (field.type === "checkbox") field.checked = value;
      else if (field.value !== value) field.value = value;
      field.dispatchEvent(new Event("reset-fault"));
    }
  }

  keep(name, field, value = () => field.value) {
    this.fields[name] = field;
    field.id = `set-${name}`;
    field.addEventListener("input", () => this.settings.set(name, value()));
    return field;
  }

  number(name, label, limits, placeholder) {
    const field = el("input", { type: "number", inputmode: "decimal", placeholder, ...limits });
    field.value = this.settings.values[name];
    const fault = el("p", { class: "fault", id: `fault-${name}` });
    this.keep(name, field, () => (field.validity.valid ? field.value : ""));
    const check = () => {
      fault.textContent = field.validity.valid ? "" : field.validationMessage;
      field.setAttribute("aria-invalid", String(!field.validity.valid));
    };
    field.setAttribute("aria-describedby", fault.id);
    for (const event of ["input", "reset-fault"]) field.addEventListener(event, check);
    return el("div", { class: "field" }, el("label", { for: field.id }, label), field, fault);
  }

  /** Return a box of text; one with a kind must be JSON of that kind, which is checked while it is written. */
  text(name, label, placeholder, kind) {
    const field = el("textarea", {
      rows: kind ? 4 : 2,
      placeholder,
      dir: "auto",
      spellcheck: kind ? "false" : null,
      class: kind ? "mono" : null,
    });
    field.value = this.settings.values[name];
    this.keep(name, field);
    const fault = el("p", { class: "fault", id: `fault-${name}`, role: "status" });
    const check = () => {
      const wrong = kind && field.value.trim() ? jsonFault(field.value, kind) : null;
      fault.textContent = wrong ? `Not valid: ${wrong}` : "";
      field.setAttribute("aria-invalid", String(Boolean(wrong)));
    };
    if (kind) {
      field.setAttribute("aria-describedby", fault.id);
      for (const event of ["input", "reset-fault"]) field.addEventListener(event, check);
      check();
    }
    return el("div", { class: "field" }, el("label", { for: field.id }, label), field, fault);
  }

  select(name, label, options) {
    const field = el(
      "select",
      {},
      options.map(([value, text]) => el("option", { value }, text)),
    );
    field.value = this.settings.values[name];
    if (field.selectedIndex < 0) field.selectedIndex = 0;
    this.keep(name, field);
    return el("div", { class: "field" }, el("label", { for: field.id }, label), field);
  }

  check(name, label) {
    const field = el("input", { type: "checkbox" });
    field.checked = this.settings.values[name];
    this.keep(name, field, () => field.checked);
    return el("label", { class: "check" }, field, label);
  }
}

/** Return the choices of reasoning that a model's template knows. */
function efforts(variables) {
  if (variables.includes("reasoning_effort")) {
    return [
      ["", "Default"],
      ...["none", "low", "medium", "high"].map((each) => [each, each[0].toUpperCase() + each.slice(1)]),
    ];
  }
  return variables.length
    ? [
        ["", "Default"],
        ["medium", "On"],
        ["none", "Off"],
      ]
    : [];
}
