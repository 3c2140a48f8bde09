// "Run again: same bits": the server replays its record of an answer, or the page asks again and compares.

import { ApiError, events, postJson } from "./api.js";
import { Pieces, read } from "./events.js";
import { probabilityOptions, renderedRequest, requestOf } from "./requests.js";
import { isCut } from "./tree.js";

/** Run an answer again; return `{same, text}` in plain words. */
export async function runAgain(chat, conversation, turn, signal) {
  const { config } = chat.server;
  const found = [];
  for (const [place, part] of turn.parts.entries()) {
    const recorded = config.model.recorded && part.id ? await replayed(part.id, signal) : null;
    found.push(recorded ?? (await askedAgain(chat, conversation, turn, place, signal)));
    if (!found.at(-1).same) break;
  }
  return found.length === 1 ? found[0] : (found.find(({ same }) => !same) ?? { same: true, text: found.at(-1).text });
}

async function replayed(id, signal) {
  try {
    const reply = await postJson(`v1/requests/${encodeURIComponent(id)}/replay`, {}, signal);
    const tokens = reply.replays.flatMap(({ choices }) => choices.flatMap((choice) => choice.tokens)).length;
    if (reply.same)
      return {
        same: true,
        text: `Same bits: the server replayed its record, ${tokens} tokens with their log-probabilities.`,
      };
    const [first] = reply.replays.flatMap(({ differences }) => differences);
    return { same: false, text: `Not the same: ${JSON.stringify(first)}` };
  } catch (error) {
    if (error instanceof ApiError && [404, 409].includes(error.status)) return null;
    throw error;
  }
}

/** Ask for a part again with the same seed and compare texts, and log-probabilities where the answer has them. */
async function askedAgain(chat, conversation, turn, place, signal) {
  const end = turn.parts[place + 1]?.from ?? turn.content.length;
  const expected = {
    content: turn.content.slice(turn.parts[place].from, end),
    reasoning: place ? null : turn.reasoning,
  };
  const got = await again(chat, conversation, turn, place, {}, signal, expected);
  const cut = isCut(turn.parts[place].finish);
  const differs = got.content !== expected.content && !(cut && got.content.startsWith(expected.content));
  if (differs)
    return {
      same: false,
      text: `Not the same: the text differs from character ${difference(got.content, expected.content)} on.`,
    };
  const next = turn.parts[place + 1]?.piecesFrom;
  const [before, after] = [turn.pieces?.slice(turn.parts[place].piecesFrom, next), got.pieces].map(entriesOf);
  if (cut || !before.length || before.length !== after.length) {
    return {
      same: true,
      text: "Same text. With probabilities on, every bit of the log-probabilities is compared, too.",
    };
  }
  const wrong = before.findIndex(({ text, logprob }, at) => text !== after[at].text || logprob !== after[at].logprob);
  if (wrong >= 0) return { same: false, text: `Not the same: token ${wrong + 1} or its log-probability differs.` };
  return { same: true, text: `Same bits: ${before.length} tokens and their log-probabilities are equal.` };
}

const entriesOf = (pieces) => (pieces ?? []).flatMap(({ entries }) => entries);

/** Stream a part's request again; return its texts and pieces. A text that was cut is read as far as it went. */
async function again(chat, conversation, turn, place, extra, signal, expected) {
  const part = turn.parts[place];
  let request = requestOf(conversation, turn, part, part.model);
  if (part.rendered) request = await renderedRequest(request, chat.server.config);
  const body = { ...request.body, ...extra };
  const got = { content: "", reasoning: "", pieces: body.logprobs ? [] : null };
  const pieces = body.logprobs ? new Pieces(got.pieces) : null;
  const cut = isCut(part.finish);
  for await (const event of events(request.path, body, signal)) {
    const delta = read(event);
    got.content += delta.content;
    got.reasoning += delta.reasoning;
    pieces?.add(delta);
    if (
      cut &&
      got.content.length >= expected.content.length &&
      (expected.content || got.reasoning.length >= turn.reasoning.length)
    )
      break;
  }
  return got;
}

/** Ask again for the probabilities of an answer that has none; the same seed gives the same tokens. */
export async function findProbabilities(chat, conversation, turn, signal) {
  const extra = probabilityOptions(chat.server.config, conversation.mode);
  const pieces = [];
  for (const place of turn.parts.keys()) {
    const { from } = turn.parts[place];
    const end = turn.parts[place + 1]?.from ?? turn.content.length;
    if (!place && from) pieces.push({ kind: "content", text: turn.content.slice(0, from), entries: [] });
    const expected = { content: turn.content.slice(from, end) };
    const got = await again(chat, conversation, turn, place, extra, signal, expected);
    if (!got.content.startsWith(expected.content)) throw new Error("the answer came out differently");
    turn.parts[place].piecesFrom = pieces.length;
    pieces.push(...got.pieces);
  }
  turn.pieces = pieces;
}

function difference(one, other) {
  let place = 0;
  while (place < one.length && one[place] === other[place]) place += 1;
  return place + 1;
}
