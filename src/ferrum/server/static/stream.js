// Reads server-sent events of chats and completions.

/** Post a body and yield the stream's events; throw an Error with `status` for an error response. */
export async function* events(path, body, headers, signal) {
  const response = await fetch(path, {
    method: "POST",
    headers: { "content-type": "application/json", ...headers },
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  if (!response.ok) throw await refusal(response);
  let rest = "";
  for await (const text of texts(response.body)) {
    const lines = (rest + text).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ")) continue;
      if (line === "data: [DONE]") return;
      const event = JSON.parse(line.slice(6));
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
  throw new Error("the stream was cut off");
}

/** Yield the parts of a body as text. Some browsers cannot iterate over streams. */
async function* texts(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  for (let part = await reader.read(); !part.done; part = await reader.read()) yield part.value;
}

/** Return the server's error message as an Error. */
export async function refusal(response) {
  const answer = await response.json().catch(() => null);
  const error = new Error(answer?.error?.message ?? `the server answered ${response.status}`);
  error.status = response.status;
  return error;
}

/**
 * Return the text of an event and its tokens: `{text, logprob, top: [{text, logprob}]}`, with `top` by probability.
 * Events of chats and completions differ in form.
 */
export function pieceOf(event) {
  const choice = event.choices?.[0];
  if (!choice) return { text: "", tokens: [] };
  if (choice.delta) {
    const tokens = (choice.logprobs?.content ?? []).map((each) => ({
      text: each.token,
      logprob: each.logprob,
      top: each.top_logprobs.map((one) => ({ text: one.token, logprob: one.logprob })),
    }));
    return { text: choice.delta.content ?? "", tokens };
  }
  const logprobs = choice.logprobs;
  const tokens = (logprobs?.tokens ?? []).map((text, place) => ({
    text,
    logprob: logprobs.token_logprobs[place],
    top: Object.entries(logprobs.top_logprobs?.[place] ?? {})
      .map(([other, logprob]) => ({ text: other, logprob }))
      .sort((one, other) => other.logprob - one.logprob),
  }));
  return { text: choice.text ?? "", tokens };
}
