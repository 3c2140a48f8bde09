// Requests to this server: keys, server-sent events, and errors in plain words with the next step.

const KEY = "ferrum.key";

export const apiKey = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (key) => sessionStorage.setItem(KEY, key),
};

/** An answer of the server that is an error, or no answer (status 0). */
export class ApiError extends Error {
  constructor(message, { status = 0, code = null, param = null } = {}) {
    super(message);
    Object.assign(this, { status, code, param });
  }
}

async function answered(path, { headers, ...options } = {}) {
  const key = apiKey.get();
  const all = { ...(key ? { authorization: `Bearer ${key}` } : {}), ...headers };
  let response;
  try {
    response = await fetch(path, { ...options, headers: all });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("the server does not answer");
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  throw new ApiError(body?.error?.message ?? `the server answered ${response.status}`, {
    ...body?.error,
    status: response.status,
  });
}

export const getJson = async (path) => (await answered(path)).json();
export const getText = async (path) => (await answered(path)).text();

function post(path, body, signal) {
  const headers = { "content-type": "application/json" };
  return answered(path, { method: "POST", headers, body: JSON.stringify(body), signal });
}

export const postJson = async (path, body, signal) => (await post(path, body, signal)).json();

/** Post a body and yield the stream's events. Throws ApiError, also for an error within the stream. */
export async function* events(path, body, signal) {
  const response = await post(path, { ...body, stream: true, stream_options: { include_usage: true } }, signal);
  let rest = "";
  for await (const text of texts(response.body)) {
    const lines = (rest + text).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ")) continue;
      if (line === "data: [DONE]") return;
      const event = JSON.parse(line.slice(6));
      if (event.error) throw new ApiError(event.error.message, { ...event.error, status: 500 });
      yield event;
    }
  }
  throw new ApiError("the answer was cut off");
}

/** Yield the parts of a body as text. Some browsers cannot iterate over streams. */
async function* texts(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (let part = await reader.read(); !part.done; part = await reader.read()) yield part.value;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("the connection to the server broke");
  }
}

const BY_CODE = {
  context_length_exceeded:
    "The conversation is longer than the model's context. Shorten your message, delete turns, or start a new conversation.",
  queue_full: "The server is busy with other requests. Wait a moment and send again.",
  rate_limit_exceeded: "The limit of your API key is reached. Wait a moment and send again.",
  missing_api_key: "The server wants an API key. Enter it and send again.",
  invalid_api_key: "The server does not know this API key. Enter another one and send again.",
};

/** Return an error in plain words with the next step. */
export function explain(error) {
  const known = BY_CODE[error.code];
  if (known) return known;
  if (!(error instanceof ApiError)) return `The page failed: ${error.message}. Reload it and send again.`;
  if (error.status === 0) {
    return `${sentence(error.message)} Check that ferrum serve is running; the page connects again as soon as it answers.`;
  }
  if (error.status === 503) return "The server is loading its model or shutting down. Send again when it is ready.";
  if (error.status === 400 && error.param) {
    return `The server refuses the field "${error.param}": ${sentence(error.message)} Change it in the settings and send again.`;
  }
  if (error.status >= 500) return `The server failed: ${sentence(error.message)} Send again; its log has the details.`;
  return `The server refuses the request: ${sentence(error.message)}`;
}

function sentence(text) {
  const first = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(first) ? first : `${first}.`;
}
