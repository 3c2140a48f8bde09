// Records in the browser's own storage (IndexedDB). Each turn is one, so that tabs never write over each other's turns.

import { checked } from "./checks.js";
import { ROOT, chosenOf, recordOf } from "./tree.js";

const DATABASE = "ferrum";
const VERSION = 2;

/** Stores with the keys of their records. A removal outlasts what another tab still writes. */
const STORES = {
  conversations: "id", // {id, title, mode, created}
  turns: ["conversation", "id"],
  views: "conversation", // {conversation, chosen}: what the tab showed that wrote last
  removals: ["conversation", "turn"], // {conversation, turn}; turn "": the whole conversation
};

export class Storage {
  constructor(database) {
    this.database = database;
    database.onversionchange = () => database.close(); // a later version of this page
  }

  /** Open the storage; `onblocked` learns that it waits for tabs of an older page. Rejects where there is none. */
  static open(onblocked) {
    return new Promise((resolve, reject) => {
      const request = indexedDB.open(DATABASE, VERSION);
      request.onupgradeneeded = ({ oldVersion }) => upgrade(request, oldVersion);
      request.onblocked = onblocked;
      request.onsuccess = () => resolve(new Storage(request.result));
      request.onerror = () => reject(request.error);
    });
  }

  /** Run requests in a transaction; return their results. `operation(store)` gets stores by name. */
  run(mode, operation) {
    return new Promise((resolve, reject) => {
      const transaction = this.database.transaction(Object.keys(STORES), mode);
      const requests = operation((name) => transaction.objectStore(name));
      transaction.oncomplete = () => resolve(requests.map(({ result }) => result));
      transaction.onabort = () => reject(transaction.error);
      transaction.commit?.(); // else what is written as the page goes may be dropped
    });
  }

  /** Return all records: lists by the names of their stores. */
  async all() {
    const names = Object.keys(STORES);
    const lists = await this.run("readonly", (store) => names.map((name) => store(name).getAll()));
    return Object.fromEntries(names.map((name, place) => [name, lists[place]]));
  }

  /** Return what is stored of a conversation: `{about, chosen, records}`, with the records of some turns or of all. */
  async conversation(id, turns = null) {
    const [about, view, ...found] = await this.run("readonly", (store) => [
      store("conversations").get(id),
      store("views").get(id),
      ...(turns?.map((turn) => store("turns").get([id, turn])) ?? [store("turns").getAll(ofConversation(id))]),
    ]);
    return { about, chosen: view?.chosen ?? [], records: found.flat().filter(Boolean) };
  }

  /** Write records: lists by the names of their stores. */
  write(records) {
    const all = Object.entries(records).flatMap(([name, list]) => list.map((record) => [name, record]));
    return this.run("readwrite", (store) => all.map(([name, record]) => store(name).put(record)));
  }

  /** Remove turns of a conversation, or with null all of it. */
  remove(id, turns) {
    return this.run("readwrite", (store) => {
      if (turns) {
        const removals = turns.map((turn) => store("removals").put({ conversation: id, turn }));
        return [...removals, ...turns.map((turn) => store("turns").delete([id, turn]))];
      }
      const removal = store("removals").put({ conversation: id, turn: "" });
      const deletions = ["conversations", "views"].map((name) => store(name).delete(id));
      return [removal, ...deletions, store("turns").delete(ofConversation(id))];
    });
  }
}

const ofConversation = (id) => IDBKeyRange.bound([id], [id, []]);

/** Return the records of a conversation and of some of its turns. */
export function recordsOf({ id, title, mode, created }, turns) {
  return {
    conversations: [{ id, title, mode, created }],
    turns: turns.filter((turn) => turn.id !== ROOT).map((turn) => ({ ...recordOf(turn), conversation: id })),
  };
}

export const viewOf = (conversation) => ({ conversation: conversation.id, chosen: chosenOf(conversation) });

/** Make the stores. Until version 1 a conversation was one record with all its turns. */
function upgrade({ result: database, transaction }, oldVersion) {
  for (const [name, keyPath] of Object.entries(STORES)) {
    if (!database.objectStoreNames.contains(name)) database.createObjectStore(name, { keyPath });
  }
  if (oldVersion !== 1) return;
  const conversations = transaction.objectStore("conversations");
  conversations.getAll().onsuccess = ({ target }) => {
    for (const old of target.result) {
      try {
        const whole = checked(old);
        conversations.delete(old.id);
        const records = { ...recordsOf(whole, Object.values(whole.turns)), views: [viewOf(whole)] };
        for (const [name, list] of Object.entries(records)) {
          for (const record of list) transaction.objectStore(name).put(record);
        }
      } catch {
        // A damaged record stays as it is, and is not shown.
      }
    }
  };
}
