// Conversations of this browser, shared by its tabs. Nothing here sends anything to a server.

import { newId } from "./dom.js";
import { Storage, recordsOf, viewOf } from "./storage.js";
import { join, removeTurn, treeOf } from "./tree.js";

const CHANNEL = "ferrum-tabs";
const keyOf = (conversation, turn) => `${conversation.id}/${turn.id}`;

/**
 * All conversations, and writes of changed turns. A turn is written by the tab that changed it; the others add it to
 * their trees. `onfault(text)` learns that something cannot be stored, `onother(id)` that another tab has changed a
 * conversation.
 */
export class History {
  constructor(onfault, onother) {
    Object.assign(this, { onfault, onother, storage: null, cost: 0 });
    this.byId = new Map();
    this.timers = new Map(); // of conversations with changes, by id
    this.changed = new Map(); // changed turns, by conversation
    this.stored = new Set(); // conversations that need no record of themselves any more
    this.removed = new Set(); // of this session: ids of conversations, and keys of turns
    this.own = new Set(); // answers that are being written here
    this.others = new Map(); // and those of other tabs, by tab
    this.tab = newId();
    this.tabs = new BroadcastChannel(CHANNEL);
    this.before = Promise.resolve(); // messages are read one after the other
    this.tabs.onmessage = ({ data }) => (this.before = this.before.catch(() => {}).then(() => this.heard(data)));
  }

  /** Read all conversations. Without storage (a private window) they last as long as the page. */
  async load() {
    try {
      const old = "An older version of this page is open in another tab. Close it to see your conversations.";
      this.storage ??= await Storage.open(() => this.onfault(old));
      const { conversations, turns, views, removals } = await this.storage.all();
      for (const { conversation, turn } of removals) this.forget(conversation, turn ? [turn] : null);
      const of = grouped(turns);
      const chosen = new Map(views.map((view) => [view.conversation, view.chosen]));
      for (const about of conversations) {
        this.take({ about, records: of.get(about.id) ?? [], chosen: chosen.get(about.id) });
      }
    } catch {
      this.storage = null;
      this.onfault("This browser stores nothing: conversations last until the page is closed.");
    }
    this.post({ hello: true });
  }

  /** Return conversations by their last change that have a text in their title or turns. */
  list(search = "") {
    const wanted = search.trim().toLowerCase();
    const has = (conversation) =>
      conversation.title.toLowerCase().includes(wanted) ||
      Object.values(conversation.turns).some((turn) => turn.content?.toLowerCase().includes(wanted));
    return [...this.byId.values()].filter((each) => !wanted || has(each)).sort((a, b) => b.updated - a.updated);
  }

  /** Return whether a turn has not been removed, in whichever tab. */
  has(conversation, turn) {
    return !this.removed.has(conversation.id) && conversation.turns[turn.id] === turn;
  }

  // Changes of this tab

  /** Store changed turns soon: once a second, or less often if they are so large that storing them takes long. */
  save(conversation, ...turns) {
    const { id } = conversation;
    if (this.removed.has(id)) return; // its answer may still come
    this.byId.set(id, conversation);
    this.changed.set(id, new Set([...(this.changed.get(id) ?? []), ...turns]));
    if (this.timers.has(id)) return;
    const wait = Math.max(1000, 50 * this.cost);
    this.timers.set(
      id,
      setTimeout(() => this.write(conversation), wait),
    );
  }

  /** Store changed turns now, with all that waits. */
  async write(conversation, ...turns) {
    const { id } = conversation;
    clearTimeout(this.timers.get(id));
    this.timers.delete(id);
    if (this.removed.has(id)) return;
    this.byId.set(id, conversation);
    const all = new Set([...(this.changed.get(id) ?? []), ...turns]);
    const changed = [...all].filter((turn) => this.has(conversation, turn));
    this.changed.delete(id);
    const records = { ...recordsOf(conversation, changed), views: [viewOf(conversation)] };
    if (this.stored.has(id)) delete records.conversations; // another tab may have given it a title
    this.stored.add(id);
    const began = performance.now();
    const written = this.storage?.write(records); // copies them at once
    this.cost = performance.now() - began;
    if (await this.finished(written, { id, turns: changed.map((turn) => turn.id) })) return;
    this.stored.delete(id); // the next write tries all of it again
    this.changed.set(id, new Set([...changed, ...(this.changed.get(id) ?? [])]));
  }

  /** Note that an answer is being written here, and store it. */
  begin(conversation, turn) {
    this.own.add(keyOf(conversation, turn));
    this.post({}); // before it is stored
    return this.write(conversation, turn);
  }

  end(conversation, turn) {
    this.own.delete(keyOf(conversation, turn));
    return this.write(conversation, turn);
  }

  async rename(conversation, title) {
    conversation.title = title;
    if (this.removed.has(conversation.id)) return;
    await this.finished(this.storage?.write(recordsOf(conversation, [])), { id: conversation.id, turns: [] });
  }

  /** Add a conversation of a file. */
  add(conversation) {
    return this.write(conversation, ...Object.values(conversation.turns));
  }

  /** Remove a turn and all below it. */
  async removeTurn(conversation, turn) {
    const removed = removeTurn(conversation, turn);
    for (const id of removed) this.removed.add(keyOf(conversation, { id }));
    await this.finished(this.storage?.remove(conversation.id, removed), { id: conversation.id, removed });
  }

  async remove(id) {
    this.forget(id, null);
    await this.finished(this.storage?.remove(id, null), { id, removed: null });
  }

  /** Store all that waits: the page is about to go. */
  flush() {
    for (const id of [...this.timers.keys()]) this.write(this.byId.get(id));
  }

  /** Report a change to other tabs as soon as it is stored; return whether it is. */
  async finished(written, change) {
    try {
      await written;
    } catch {
      this.onfault("This browser cannot store the conversation: it lasts until the page is closed.");
      return false;
    }
    this.post(change);
    return true;
  }

  // Changes of other tabs

  /** Return whether another tab is writing an answer. */
  elsewhere(conversation, turn) {
    const key = keyOf(conversation, turn);
    return [...this.others.values()].some((keys) => keys.includes(key));
  }

  post(message) {
    this.tabs.postMessage({ ...message, tab: this.tab, own: [...this.own] });
  }

  /** Say that no answer is written here any more: the page goes. */
  leave() {
    this.flush();
    this.own.clear();
    this.post({});
  }

  async heard({ tab, own, hello, id = null, turns, removed }) {
    if (removed !== undefined) {
      this.forget(id, removed);
    } else if (id && this.storage) {
      const lost = () => this.onfault("This browser cannot read what another tab has stored. Reload the page.");
      const stored = await this.storage.conversation(id, this.byId.has(id) ? turns : null).catch(lost);
      if (stored) this.take(stored);
    }
    this.others.set(tab, own);
    if (hello) this.post({});
    this.onother(id);
  }

  /** Take over what is stored of a conversation, except turns that this tab is changing. */
  take({ about, records, chosen }) {
    if (!about || this.removed.has(about.id)) return;
    const { id } = about;
    this.stored.add(id);
    const here = this.byId.get(id);
    const changed = new Set([...(this.changed.get(id) ?? [])].map((turn) => turn.id));
    const mine = (turn) => changed.has(turn.id) || this.own.has(keyOf(about, turn));
    const found = records.filter((turn) => !mine(turn) && !this.removed.has(keyOf(about, turn)));
    if (!here) {
      this.byId.set(id, treeOf(about, found, chosen));
      return;
    }
    here.title = about.title;
    join(here, found);
  }

  /** Drop turns, or with null the whole conversation. */
  forget(id, turns) {
    const conversation = this.byId.get(id);
    for (const turn of turns ?? []) {
      this.removed.add(keyOf({ id }, { id: turn }));
      if (conversation?.turns[turn]) removeTurn(conversation, conversation.turns[turn]);
    }
    if (turns) return;
    clearTimeout(this.timers.get(id));
    for (const map of [this.byId, this.timers, this.changed]) map.delete(id);
    this.removed.add(id);
  }
}

/** Return turns by their conversation. */
function grouped(turns) {
  const groups = new Map();
  for (const turn of turns) {
    if (!groups.has(turn.conversation)) groups.set(turn.conversation, []);
    groups.get(turn.conversation).push(turn);
  }
  return groups;
}
