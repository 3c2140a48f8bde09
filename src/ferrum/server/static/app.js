// The page: chat or complete with one server, and see its load.

import { watch } from "./charts.js";
import { events, pieceOf, refusal } from "./stream.js";
import { TokenText } from "./tokens.js";

const $ = (id) => document.getElementById(id);
const text = new TokenText($("output"), $("token"));
let messages = [];
let model = null;
let top = 5;
let running = null;

const mode = () => new FormData($("form")).get("mode");
const headers = () => ($("key").value ? { authorization: `Bearer ${$("key").value}` } : {});

/** Load the model's properties; select chat mode if it has a chat template, else disable it. */
async function connect() {
  const response = await fetch("v1/config", { headers: headers() });
  if (!response.ok) throw await refusal(response);
  const { model: config, server } = await response.json();
  model = config.name;
  top = Math.min(5, server.max_logprobs);
  $("model").textContent = `${model} · context ${config.max_model_len} · ${config.kernels}`;
  $("send").disabled = false;
  $("chat").checked = config.chat_template;
  $("chat").disabled = !config.chat_template;
  $("no-chat").hidden = config.chat_template;
}

/** Connect, and retry on failure: a loading server answers 503. */
async function keepConnecting() {
  try {
    await connect();
    $("alert").textContent = "";
  } catch (error) {
    $("model").textContent = error.message;
    if (error.status === 401) return;
    setTimeout(keepConnecting, 1000);
  }
}

/** Return the request fields of the options; empty ones use the server's defaults. */
function options() {
  const named = ["max_tokens", "temperature", "top_p", "seed"].filter((name) => $(name).value !== "");
  return Object.fromEntries(named.map((name) => [name, Number($(name).value)]));
}

function turn(role) {
  const made = document.createElement("span");
  made.className = "turn";
  made.dataset.role = role;
  $("output").append(made);
  return made;
}

/** Return the path and body of a request, and the element for its text. */
function request(prompt) {
  if (mode() === "complete") {
    text.clear();
    messages = [];
    const given = document.createElement("span");
    given.className = "given";
    given.textContent = prompt;
    $("output").append(given);
    return { chat: false, path: "v1/completions", body: { prompt, logprobs: top }, place: $("output") };
  }
  if (!messages.length) text.clear();
  messages.push({ role: "user", content: prompt });
  turn("you").append(prompt);
  const body = { messages: [...messages], logprobs: true, top_logprobs: top };
  return { chat: true, path: "v1/chat/completions", body, place: turn(model) };
}

/** Send the prompt and show the streamed text. */
async function send() {
  const prompt = $("prompt").value;
  const { chat, path, body, place } = request(prompt);
  const conversation = messages;
  const push = text.begin(place);
  const began = performance.now();
  let first = null;
  let answer = "";
  let usage = null;
  let ending = "done";
  running = new AbortController();
  busy(true);
  try {
    const signal = running.signal;
    for await (const event of events(path, { model, ...body, ...options() }, headers(), signal)) {
      const piece = pieceOf(event);
      if (piece.text) first ??= performance.now();
      answer += piece.text;
      usage = event.usage ?? usage;
      push(piece);
    }
  } catch (error) {
    ending = "stopped";
    if (error.name !== "AbortError") {
      ending = "failed";
      $("alert").textContent = error.message;
    }
  } finally {
    busy(false);
  }
  if (chat) finishTurn(conversation, answer, prompt);
  $("progress").textContent = summary(ending, usage, began, first);
}

/** Remove a turn without an answer, because roles must alternate, unless the conversation was cleared. */
function finishTurn(conversation, answer, prompt) {
  if (answer) {
    conversation.push({ role: "assistant", content: answer });
    if ($("prompt").value === prompt) $("prompt").value = ""; // unless the next prompt is being written
  } else {
    conversation.pop();
  }
}

function summary(ending, usage, began, first) {
  if (!usage || first === null) return ending;
  const seconds = (performance.now() - first) / 1000;
  const speed = usage.completion_tokens > 1 ? `, ${((usage.completion_tokens - 1) / seconds).toFixed(1)} per second` : "";
  const wait = `first after ${(first - began).toFixed(0)} ms`;
  return `${ending}: ${usage.prompt_tokens} tokens in, ${usage.completion_tokens} out, ${wait}${speed}`;
}

function busy(is) {
  const [used, other] = is ? [$("send"), $("stop")] : [$("stop"), $("send")];
  const focused = document.activeElement === used;
  $("output").setAttribute("aria-busy", String(is));
  other.disabled = false;
  used.disabled = true;
  if (focused) other.focus();
  if (is) {
    $("alert").textContent = "";
    $("progress").textContent = "generating";
  } else {
    running = null;
  }
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (!$("send").disabled) send();
});
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("form").requestSubmit();
});
$("stop").addEventListener("click", () => running?.abort());
$("clear").addEventListener("click", () => {
  running?.abort();
  messages = [];
  text.clear();
  $("alert").textContent = $("progress").textContent = "";
  $("prompt").focus();
});
$("key").addEventListener("change", keepConnecting);

if (document.body.dataset.keys === "needed") {
  $("model").textContent = "enter an API key in Options";
  $("options").open = true;
  $("key").closest("label").hidden = false;
  $("key").focus();
} else {
  keepConnecting();
}
watch($("charts"));
