// A conversation as a tree of turns. Edits and regenerations make siblings; the active path goes from the root to a leaf.
//
// A turn: `{id, parent, role, children, chosen}` and the fields of its role. `chosen` is the child on the active path.

import { newId } from "./dom.js";

const ROOT = "root";

export function newConversation(mode = "chat") {
  const now = Date.now();
  const root = { id: ROOT, parent: null, role: "root", children: [], chosen: null };
  return { id: newId(), title: "", mode, created: now, updated: now, turns: { [ROOT]: root } };
}

/** Add a turn below a parent and choose it. */
export function addTurn(conversation, parent, fields) {
  const turn = { id: newId(), parent, children: [], chosen: null, created: Date.now(), ...fields };
  conversation.turns[turn.id] = turn;
  conversation.turns[parent].children.push(turn.id);
  conversation.turns[parent].chosen = turn.id;
  return turn;
}

/** Return the turns of the active path below a turn, without that turn. */
export function pathBelow(conversation, id = ROOT) {
  const path = [];
  for (let turn = conversation.turns[id]; turn.chosen;) {
    turn = conversation.turns[turn.chosen];
    path.push(turn);
  }
  return path;
}

/** Return the turns from the first one to a turn, which is the last of the list unless `until` excludes it. */
export function pathTo(conversation, turn, { included = true } = {}) {
  const path = [];
  for (let each = turn; each.id !== ROOT; each = conversation.turns[each.parent]) path.unshift(each);
  return included ? path : path.slice(0, -1);
}

/** Return the last turn of the active path, which is the root of an empty conversation. */
export function leaf(conversation) {
  return pathBelow(conversation).at(-1) ?? conversation.turns[ROOT];
}

/** Return a turn's place among its siblings: `{place, ids}`. */
export function siblings(conversation, turn) {
  const ids = conversation.turns[turn.parent].children;
  return { place: ids.indexOf(turn.id), ids };
}

export function choose(conversation, turn) {
  conversation.turns[turn.parent].chosen = turn.id;
}

/** Remove a turn and all below it; a sibling is chosen in its place. */
export function removeTurn(conversation, turn) {
  const parent = conversation.turns[turn.parent];
  const place = parent.children.indexOf(turn.id);
  parent.children.splice(place, 1);
  if (parent.chosen === turn.id) parent.chosen = parent.children[Math.max(0, place - 1)] ?? null;
  const below = [turn.id];
  while (below.length) {
    const id = below.pop();
    below.push(...conversation.turns[id].children);
    delete conversation.turns[id];
  }
}

/** Return the title: the given one, or the start of the first question. */
export function titleOf(conversation) {
  const first = Object.values(conversation.turns).find((turn) => turn.role === "user");
  return conversation.title || first?.content.trim().replace(/\s+/g, " ").slice(0, 60) || "New conversation";
}

const text = (value) => (typeof value === "string" ? value : "");
const list = (value, sound) =>
  Array.isArray(value) ? value.filter((each) => each && typeof each === "object" && sound(each)) : [];

/** Return an imported answer with all fields that the page reads; what is no answer's is left out. */
function answerOf(turn) {
  const calls = list(turn.calls, () => true).map((call) => ({
    id: text(call.id),
    type: call.type === "custom" ? "custom" : "function",
    name: text(call.name),
    arguments: text(call.arguments),
  }));
  const parts = list(
    turn.parts,
    ({ options, from }) => options && typeof options === "object" && Number.isInteger(from),
  );
  const sound = ({ top, logprob }) => Array.isArray(top) && typeof logprob === "number";
  const whole = (piece) => typeof piece.text === "string" && Array.isArray(piece.entries) && piece.entries.every(sound);
  const pieces =
    Array.isArray(turn.pieces) && list(turn.pieces, whole).length === turn.pieces.length ? turn.pieces : null;
  const finish = text(turn.finish) || "stop";
  return { ...turn, reasoning: text(turn.reasoning), calls, parts, pieces, finish, replay: null };
}

const ROLES = new Set(["user", "assistant", "tool"]);

/** Return whether a turn of an imported conversation is linked with its parent and its children. */
function isSound(turns, id) {
  const turn = turns[id];
  const known = id === ROOT ? turn.role === "root" : ROLES.has(turn.role) && typeof turn.content === "string";
  const linked = id === ROOT || turns[turn.parent]?.children?.includes(id);
  const sound = Array.isArray(turn.children) && turn.children.every((child) => turns[child]?.parent === id);
  return turn.id === id && known && linked && sound && (!turn.chosen || turn.children.includes(turn.chosen));
}

/** Return an imported conversation if its tree is sound. Throws an Error that says what is wrong. */
export function checked(conversation) {
  const turns = conversation?.turns;
  if (typeof conversation?.id !== "string" || typeof turns !== "object" || !turns?.[ROOT]) {
    throw new Error("a conversation has no id or no turns");
  }
  const wrong = Object.keys(turns).find((id) => !turns[id] || !isSound(turns, id));
  if (wrong) throw new Error(`turn ${wrong} of conversation ${conversation.id} is damaged`);
  const whole = Object.entries(turns).map(([id, turn]) => [id, turn.role === "assistant" ? answerOf(turn) : turn]);
  return {
    mode: conversation.mode === "complete" ? "complete" : "chat",
    id: conversation.id,
    title: text(conversation.title),
    created: Number(conversation.created) || Date.now(),
    updated: Number(conversation.updated) || Date.now(),
    turns: Object.fromEntries(whole),
  };
}
