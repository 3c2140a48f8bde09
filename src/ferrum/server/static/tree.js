// A conversation as a tree of turns. Edits and regenerations make siblings; the active path goes from the root to a leaf.
//
// A turn: `{id, parent, role, created, children, chosen}` and the fields of its role. `chosen` is the child on the active
// path. `children` and `chosen` follow from the other turns and from the view: a record of a turn has neither.

import { newId } from "./dom.js";

export const ROOT = "root";

export function newConversation(mode = "chat") {
  return treeOf({ id: newId(), title: "", mode, created: Date.now() });
}

/** Return a conversation of records; `chosen` are the turns that the view has chosen among their siblings. */
export function treeOf(about, records = [], chosen = []) {
  const root = { id: ROOT, parent: null, role: "root", children: [], chosen: null };
  // Without a prototype no name of a turn is taken.
  const turns = Object.assign(Object.create(null), { [ROOT]: root });
  const conversation = { ...about, updated: about.created, turns };
  join(conversation, records);
  const wanted = new Set(chosen);
  for (const turn of Object.values(turns)) {
    turn.chosen = turn.children.find((id) => wanted.has(id)) ?? turn.children.at(-1) ?? null;
  }
  return conversation;
}

/** Add turns to a conversation, or replace their fields. A turn whose parent is unknown is left out. */
export function join(conversation, records) {
  let waiting = [...records].sort(byTime);
  for (let before = Infinity; waiting.length < before;) {
    before = waiting.length;
    waiting = waiting.filter((record) => !link(conversation, record));
  }
}

const byTime = (one, other) => one.created - other.created || (one.id < other.id ? -1 : 1);

/** Add a turn, which is chosen where it has no sibling; return whether its parent is known. */
function link(conversation, record) {
  const { turns } = conversation;
  const parent = turns[record.parent];
  if (!parent) return false;
  if (turns[record.id]) {
    Object.assign(turns[record.id], record);
  } else {
    turns[record.id] = { ...record, children: [], chosen: null };
    parent.children = [...parent.children, record.id].sort((one, other) => byTime(turns[one], turns[other]));
    parent.chosen ??= record.id;
  }
  touched(conversation, record);
  return true;
}

/** Note that a turn has changed: conversations are listed by their last change. */
export function touched(conversation, turn) {
  const began = turn.parts?.at(-1)?.began ?? 0;
  conversation.updated = Math.max(conversation.updated, turn.created, began);
}

/** Return what is stored of a turn. */
export function recordOf(turn) {
  const { children, chosen, running, ...record } = turn;
  return record;
}

/** Return the chosen children of a conversation, for `treeOf`. */
export function chosenOf({ turns }) {
  return Object.values(turns)
    .map(({ chosen }) => chosen)
    .filter(Boolean);
}

/** Add a turn below a parent and choose it. */
export function addTurn(conversation, parentId, fields) {
  const { turns } = conversation;
  const parent = turns[parentId];
  const created = Math.max(Date.now(), (turns[parent.children.at(-1)]?.created ?? 0) + 1);
  const turn = { id: newId(), parent: parentId, children: [], chosen: null, created, ...fields };
  turns[turn.id] = turn;
  parent.children.push(turn.id);
  parent.chosen = turn.id;
  touched(conversation, turn);
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

/** Return whether a turn is an answer that ended before anything came of it. */
export function isEmpty({ role, content, reasoning, calls, finish }) {
  return role === "assistant" && !content && !reasoning && !calls.length && isCut(finish);
}

/** Return whether an answer with this end was cut; the page that wrote it may have gone before it could say so. */
export const isCut = (finish) => [null, "stopped", "cut"].includes(finish);

/**
 * Return the turn below which the next question goes: the last one that is complete. A question without an answer, or
 * with one that is still `written`, stays as a branch.
 */
export function placeOfQuestion(conversation, written) {
  let turn = leaf(conversation);
  while (turn.role === "user" || isEmpty(turn) || written(turn)) turn = conversation.turns[turn.parent];
  return turn;
}

/** Return a turn's place among its siblings: `{place, ids}`. */
export function siblings(conversation, turn) {
  const ids = conversation.turns[turn.parent].children;
  return { place: ids.indexOf(turn.id), ids };
}

export function choose(conversation, turn) {
  conversation.turns[turn.parent].chosen = turn.id;
}

/** Remove a turn and all below it; a sibling is chosen in its place. Returns the ids of the removed turns. */
export function removeTurn(conversation, turn) {
  const parent = conversation.turns[turn.parent];
  const place = parent.children.indexOf(turn.id);
  parent.children.splice(place, 1);
  if (parent.chosen === turn.id) parent.chosen = parent.children[Math.max(0, place - 1)] ?? null;
  const removed = [turn.id];
  for (const id of removed) {
    removed.push(...conversation.turns[id].children); // the loop reaches them, too
    delete conversation.turns[id];
  }
  return removed;
}

/** Return the title: the given one, or the start of the first question. */
export function titleOf(conversation) {
  const first = Object.values(conversation.turns).find((turn) => turn.role === "user");
  const question = first?.content.trim() || first?.images?.[0].name || "";
  return conversation.title || question.replace(/\s+/g, " ").slice(0, 60) || "New conversation";
}
