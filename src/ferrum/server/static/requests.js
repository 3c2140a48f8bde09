// The requests of a conversation: a turn and its options become the body of a chat or a completion.

import { postJson } from "./api.js";
import { pathTo } from "./tree.js";

const SAMPLING = [
  ...["temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"],
  ...["max_tokens", "seed"],
];
const COMPLETION_TOKENS = 256; // a text without an end of its own would fill the context
const COMPLETION_TOP = 5;

/** Return the options of a request from the settings: fields of its body, and the system prompt. */
export function optionsOf(settings, config, mode) {
  const named = SAMPLING.filter((name) => settings[name] !== "" && settings[name] !== undefined);
  const options = Object.fromEntries(named.map((name) => [name, Number(settings[name])]));
  options.seed ??= crypto.getRandomValues(new Uint32Array(1))[0];
  const stop = (settings.stop ?? "").split("\n").filter(Boolean);
  if (stop.length) options.stop = stop;
  if (settings.structured && settings.schema.trim()) {
    const schema = JSON.parse(settings.schema);
    options.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  }
  if (mode === "complete") options.max_tokens ??= COMPLETION_TOKENS;
  else Object.assign(options, chatOptions(settings));
  if (settings.probabilities) Object.assign(options, probabilityOptions(config, mode));
  return options;
}

function chatOptions(settings) {
  return {
    ...(settings.system.trim() ? { system: settings.system } : {}),
    ...(settings.tools.trim() ? { tools: JSON.parse(settings.tools) } : {}),
    ...(settings.effort ? { reasoning_effort: settings.effort } : {}),
  };
}

/** Return the fields that ask for probabilities. */
export function probabilityOptions(config, mode) {
  const most = config.server.max_logprobs;
  if (mode === "complete") return { logprobs: most < 0 ? COMPLETION_TOP : Math.min(COMPLETION_TOP, most) };
  return { logprobs: true, top_logprobs: most < 0 ? 8 : Math.min(8, most) };
}

/** Return the content of a question; its images come before its text. */
function contentOf({ content, images }) {
  if (!images?.length) return content;
  const shown = images.map(({ url }) => ({ type: "image_url", image_url: { url } }));
  return content.trim() ? [...shown, { type: "text", text: content }] : shown;
}

function messageOf(turn) {
  if (turn.role === "tool") return { role: "tool", tool_call_id: turn.call, name: turn.name, content: turn.content };
  if (turn.role === "user") return { role: "user", content: contentOf(turn) };
  const calls = turn.calls?.map(({ id, type, name, arguments: text }) => {
    return type === "custom"
      ? { id, type, custom: { name, input: text } }
      : { id, type, function: { name, arguments: text } };
  });
  return {
    role: "assistant",
    content: turn.content || (calls?.length ? null : ""),
    ...(turn.reasoning ? { reasoning_content: turn.reasoning } : {}),
    ...(calls?.length ? { tool_calls: calls } : {}),
  };
}

/**
 * Return the path and body of the request for a part of an answer.
 *
 * A part has the options and `from`, the length of the text that was there before: it continues that text.
 */
export function requestOf(conversation, turn, part, model) {
  const { system, ...options } = part.options;
  const before = pathTo(conversation, turn, { included: false });
  const begun = turn.content.slice(0, part.from);
  if (conversation.mode === "complete") {
    return {
      path: "v1/completions",
      body: { model, ...options, prompt: before.map((each) => each.content).join("") + begun },
    };
  }
  const messages = before.map(messageOf);
  if (system) messages.unshift({ role: "system", content: system });
  const body = { model, ...options, messages };
  if (part.continues) {
    messages.push(messageOf({ role: "assistant", content: begun, reasoning: turn.reasoning }));
    Object.assign(body, { continue_final_message: true, add_generation_prompt: false });
  }
  return { path: "v1/chat/completions", body };
}

/** Return the request that continues the text after the rendered prompt, for templates that change the text. */
export async function renderedRequest({ body }, config) {
  const { messages, continue_final_message, add_generation_prompt, tools, reasoning_effort, top_logprobs, ...rest } =
    body;
  const shown = { model: body.model, messages: messages.slice(0, -1), tools, reasoning_effort };
  const { prompt } = await postJson("v1/chat/completions/render", shown);
  const logprobs = rest.logprobs ? probabilityOptions(config, "complete").logprobs : undefined;
  const max_tokens = rest.max_tokens ?? 1024;
  const whole = prompt + messages.at(-1).content;
  return { path: "v1/completions", body: { ...rest, max_tokens, logprobs, prompt: whole, add_special_tokens: false } };
}
