// Conversations of files: every field that the page reads has its type, or is mended; damaged trees are refused.

import { newId } from "./dom.js";
import { isImage } from "./images.js";
import { ROOT, treeOf } from "./tree.js";

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const isText = (value) => typeof value === "string";
const isNumber = (value) => Number.isFinite(value);
const isWhole = (value) => Number.isInteger(value) && value >= 0;
const isFlag = (value) => typeof value === "boolean";
const listOf = (is) => (value) => Array.isArray(value) && value.every(is);

const text = (value) => (isText(value) ? value : "");
const number = (value, other) => (isNumber(value) ? value : other);
const list = (value) => (Array.isArray(value) ? value.filter(isObject) : []);

/** Return the fields of a value that have their types. */
function fields(value, types) {
  const sound = Object.entries(types).filter(([name, is]) => Object.hasOwn(value, name) && is(value[name]));
  return Object.fromEntries(sound.map(([name]) => [name, value[name]]));
}

const NUMBERS = [
  ...["temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"],
  ...["max_tokens", "seed", "top_logprobs"],
];
const OPTIONS = {
  ...Object.fromEntries(NUMBERS.map((name) => [name, isNumber])),
  ...{ system: isText, reasoning_effort: isText, stop: listOf(isText), tools: listOf(isObject) },
  ...{ response_format: isObject, logprobs: (value) => isFlag(value) || isNumber(value) },
};
const PART = {
  ...{ from: isWhole, piecesFrom: isWhole, began: isNumber, first: isNumber, seconds: isNumber },
  ...{ continues: isFlag, rendered: isFlag, model: isText, finish: isText, id: isText, fingerprint: isText },
};
const TOKEN = { text: isText, logprob: isNumber };
const USAGE = { prompt_tokens: isWhole, completion_tokens: isWhole };
const DETAILS = { prompt_tokens_details: "cached_tokens", completion_tokens_details: "reasoning_tokens" };

const isOf = (types) => (value) => isObject(value) && Object.entries(types).every(([name, is]) => is(value[name]));
const isEntry = isOf({ ...TOKEN, top: listOf(isOf(TOKEN)) });
const isPiece = isOf({
  kind: (kind) => ["content", "reasoning"].includes(kind),
  text: isText,
  entries: listOf(isEntry),
});

function usageOf(usage) {
  if (!isOf(USAGE)(usage)) return null;
  const detail = ([name, count]) => [name, fields(usage[name] ?? {}, { [count]: isWhole })];
  return { ...fields(usage, USAGE), ...Object.fromEntries(Object.entries(DETAILS).map(detail)) };
}

function partOf(part) {
  const known = fields(part, PART);
  return { finish: null, model: "", ...known, options: fields(part.options, OPTIONS), usage: usageOf(part.usage) };
}

function callOf(call) {
  const type = call.type === "custom" ? "custom" : "function";
  return { id: text(call.id), type, name: text(call.name), arguments: text(call.arguments) };
}

/** Return the fields of an answer. The parts of a text begin within it, one after the other. */
function answerOf(turn) {
  const { content } = turn;
  const isPart = ({ options, from }) => isObject(options) && isWhole(from) && from <= content.length;
  return {
    content,
    reasoning: text(turn.reasoning),
    calls: list(turn.calls).map(callOf),
    parts: list(turn.parts).filter(isPart).map(partOf),
    pieces: listOf(isPiece)(turn.pieces) ? turn.pieces : null,
    finish: turn.finish === null ? "cut" : text(turn.finish) || "stop",
    fault: text(turn.fault) || null,
    odds: turn.odds === true,
    edited: turn.edited === true,
    replay: null,
  };
}

const hasImages = (images) => Array.isArray(images) && images.length > 0 && images.every(isImage);
const imageOf = ({ name, url, width, height }) => ({ name, url, width, height });

const FIELDS = {
  user: ({ content, images }) => ({ content, ...(hasImages(images) ? { images: images.map(imageOf) } : {}) }),
  assistant: answerOf,
  tool: ({ content, call, name }) => ({ content, call: text(call), name: text(name) }),
};

/** Return whether a turn is linked with its parent and its children. */
function isSound(turns, id) {
  const turn = turns[id];
  if (!isObject(turn)) return false;
  const known = id === ROOT ? turn.role === "root" : Object.hasOwn(FIELDS, turn.role) && isText(turn.content);
  const above = turns[turn.parent]?.children;
  const linked = id === ROOT || (Array.isArray(above) && above.includes(id));
  const children = listOf(isText)(turn.children) && turn.children.every((child) => turns[child]?.parent === id);
  return turn.id === id && known && linked && children && new Set(turn.children).size === turn.children.length;
}

/** Return the records of a sound tree, siblings in their order. */
function recordsOf(turns, earliest) {
  const records = [];
  const reached = [ROOT];
  for (const parent of reached) {
    let last = -Infinity;
    for (const id of turns[parent].children) {
      const { role, ...turn } = turns[id];
      last = Math.max(number(turn.created, earliest), last + 1);
      records.push({ id, parent, role, created: last, ...FIELDS[role](turn) });
      reached.push(id); // the loop goes on with it
    }
  }
  return records;
}

/** Return a conversation of a file, with all that the page reads. Throws an Error that says what is wrong. */
export function checked(conversation) {
  if (!isText(conversation?.id) || !isObject(conversation.turns) || !Object.hasOwn(conversation.turns, ROOT)) {
    throw new Error("a conversation has no id or no turns");
  }
  const { id } = conversation;
  const turns = Object.assign(Object.create(null), conversation.turns);
  const wrong = Object.keys(turns).find((each) => !isSound(turns, each));
  if (wrong !== undefined) throw new Error(`turn ${wrong} of conversation ${id} is damaged`);
  const created = number(conversation.created, number(conversation.updated, 0));
  const records = recordsOf(turns, created);
  if (records.length + 1 < Object.keys(turns).length) throw new Error(`turns of conversation ${id} have no beginning`);
  const mode = conversation.mode === "complete" ? "complete" : "chat";
  // The address names a conversation by its id.
  const about = { id: /^[\w-]{1,64}$/.test(id) ? id : newId(), title: text(conversation.title), mode, created };
  return treeOf(
    about,
    records,
    Object.values(turns).map(({ chosen }) => chosen),
  );
}

/** Return a text that is equal for conversations that differ in id, in what is shown, or in the order of names only. */
export function canonical(conversation) {
  const { title, mode, turns } = checked(conversation);
  const records = Object.values(turns).map(({ children, chosen, odds, ...record }) => record);
  const sorted = (_, value) => (isObject(value) ? Object.fromEntries(Object.entries(value).sort()) : value);
  return JSON.stringify({ title, mode, records: records.sort((one, other) => (one.id < other.id ? -1 : 1)) }, sorted);
}
