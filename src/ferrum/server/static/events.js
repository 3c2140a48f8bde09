// What one event of a stream adds to an answer. Events of chats and completions differ in form.

/**
 * Return `{content, reasoning, calls, entries, finish, usage, ...}` of an event. `entries` are tokens with their
 * log-probabilities: `{text, logprob, top: [{text, logprob}]}`, with `top` by probability.
 */
export function read(event) {
  const choice = event.choices?.[0];
  const common = { id: event.id, fingerprint: event.system_fingerprint, usage: event.usage ?? null };
  if (!choice) return { ...common, content: "", reasoning: "", calls: [], entries: [], finish: null };
  const delta = choice.delta;
  return {
    ...common,
    content: (delta ? delta.content : choice.text) ?? "",
    reasoning: delta?.reasoning ?? delta?.reasoning_content ?? "",
    calls: delta?.tool_calls ?? [],
    entries: delta ? chatEntries(choice.logprobs) : completionEntries(choice.logprobs),
    finish: choice.finish_reason ?? null,
  };
}

function chatEntries(logprobs) {
  return (logprobs?.content ?? []).map((each) => ({
    text: each.token,
    logprob: each.logprob,
    top: each.top_logprobs.map((one) => ({ text: one.token, logprob: one.logprob })),
  }));
}

function completionEntries(logprobs) {
  return (logprobs?.tokens ?? []).map((text, place) => ({
    text,
    logprob: logprobs.token_logprobs[place],
    top: Object.entries(logprobs.top_logprobs?.[place] ?? {})
      .map(([other, logprob]) => ({ text: other, logprob }))
      .sort((one, other) => other.logprob - one.logprob),
  }));
}

/** Groups tokens into pieces of text: a character of several tokens is one piece, which their entries share. */
export class Pieces {
  constructor(pieces) {
    this.pieces = pieces;
    this.pending = [];
  }

  /** Add an event; return the new pieces `{kind, text, entries}`. */
  add({ content, reasoning, entries }) {
    this.pending.push(...entries);
    const text = reasoning || content;
    if (!text) return [];
    const kind = reasoning ? "reasoning" : "content";
    const apart = this.pending.map((each) => each.text).join("") === text;
    const made = apart
      ? this.pending.map((entry) => ({ kind, text: entry.text, entries: [entry] }))
      : [{ kind, text, entries: this.pending }];
    this.pending = [];
    this.pieces.push(...made);
    return made;
  }
}

/** Add the deltas of tool calls to a turn's calls `{id, name, arguments}`. */
export function addCalls(calls, deltas) {
  for (const delta of deltas) {
    const part = delta.function ?? delta.custom ?? {};
    const call = (calls[delta.index] ??= { id: "", type: "function", name: "", arguments: "" });
    if (delta.id) call.id = delta.id;
    if (delta.type) call.type = delta.type;
    if (part.name) call.name = part.name;
    call.arguments += part.arguments ?? part.input ?? "";
  }
}
