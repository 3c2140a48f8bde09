// Conversations in the browser's own storage (IndexedDB). Nothing here sends anything to a server.

const DATABASE = "ferrum";
const STORE = "conversations";

function opened() {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open(DATABASE, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "id" });
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

/**
 * All conversations, and writes of changed ones. `onfault` learns that nothing can be stored, `onother(id)` that another
 * tab has changed or removed a conversation.
 */
export class History {
  constructor(onfault, onother) {
    this.byId = new Map();
    this.timers = new Map();
    this.removed = new Set();
    this.cost = 0;
    this.database = null;
    this.onfault = onfault;
    this.onother = onother;
    this.tabs = new BroadcastChannel(DATABASE);
    this.tabs.onmessage = ({ data }) => this.heard(data);
  }

  /** Read all conversations. Without storage (a private window) they last as long as the page. */
  async load() {
    try {
      this.database = await opened();
      const stored = await this.done((store) => store.getAll());
      for (const conversation of stored) this.byId.set(conversation.id, conversation);
    } catch {
      this.onfault();
    }
  }

  done(operation, mode = "readonly") {
    return new Promise((resolve, reject) => {
      const request = operation(this.database.transaction(STORE, mode).objectStore(STORE));
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => reject(request.error);
    });
  }

  /** Return conversations by their last change that have a text in their title or turns. */
  list(search = "") {
    const wanted = search.trim().toLowerCase();
    const has = (conversation) =>
      conversation.title.toLowerCase().includes(wanted) ||
      Object.values(conversation.turns).some((turn) => turn.content?.toLowerCase().includes(wanted));
    return [...this.byId.values()].filter((each) => !wanted || has(each)).sort((a, b) => b.updated - a.updated);
  }

  /** Store a conversation soon: once a second, or less often if it is so large that storing it takes long. */
  save(conversation) {
    if (this.removed.has(conversation.id)) return; // its answer may still come
    this.byId.set(conversation.id, conversation);
    if (this.timers.has(conversation.id)) return;
    const wait = Math.max(1000, 50 * this.cost);
    this.timers.set(
      conversation.id,
      setTimeout(() => this.write(conversation), wait),
    );
  }

  /** Store a conversation now. */
  async write(conversation) {
    clearTimeout(this.timers.get(conversation.id));
    this.timers.delete(conversation.id);
    if (!this.database || !this.byId.has(conversation.id)) return;
    const put = (store) => {
      const began = performance.now();
      const request = store.put(conversation); // copies it at once
      this.cost = performance.now() - began;
      return request;
    };
    await this.done(put, "readwrite").catch(() => this.onfault());
    this.tabs.postMessage(conversation.id);
  }

  /** Take over what another tab has stored, unless this tab has changes of the same conversation. */
  async heard(id) {
    if (this.timers.has(id) || !this.database) return;
    const stored = await this.done((store) => store.get(id));
    if (stored) this.byId.set(id, stored);
    else this.byId.delete(id);
    this.onother(id);
  }

  /** Store all that waits: the page is about to go. */
  flush() {
    for (const id of [...this.timers.keys()]) this.write(this.byId.get(id));
  }

  async remove(id) {
    this.byId.delete(id);
    this.removed.add(id);
    if (this.database) await this.done((store) => store.delete(id), "readwrite");
    this.tabs.postMessage(id);
  }
}
