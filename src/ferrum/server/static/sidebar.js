// The list of conversations: open, search, rename, delete, export, import.

import { canonical, checked } from "./checks.js";
import { confirmed, textOf } from "./dialogs.js";
import { button, byId, download, el, newId, say } from "./dom.js";
import { titleOf } from "./tree.js";

const FORMAT = "ferrum-conversations";

export class Sidebar {
  /** @param actions `{open(conversation), removed(conversation), warn(text)}` */
  constructor(history, chat, actions) {
    Object.assign(this, { history, chat, actions });
    this.list = byId("conversations");
    byId("search").addEventListener("input", () => this.render());
    byId("export").addEventListener("click", () => this.export());
    byId("import").addEventListener("click", () => byId("import-file").click());
    byId("import-file").addEventListener("change", (event) => this.import(event.target));
  }

  render() {
    const found = this.history.list(byId("search").value);
    const focused = this.list.contains(document.activeElement)
      ? document.activeElement.getAttribute("aria-label")
      : null;
    this.list.replaceChildren(...found.map((each) => this.row(each)));
    byId("no-conversations").hidden = found.length > 0;
    if (focused) this.list.querySelector(`[aria-label="${CSS.escape(focused)}"]`)?.focus();
  }

  row(conversation) {
    const title = titleOf(conversation);
    const current = conversation.id === this.chat.conversation.id;
    const open = () => this.actions.open(conversation);
    const properties = {
      type: "button",
      class: "open",
      dir: "auto",
      "aria-current": current ? "page" : null,
      "aria-label": title,
      onclick: open,
    };
    return el(
      "li",
      { class: current ? "current" : null },
      el("button", properties, title),
      button(`Rename ${title}`, "edit", () => this.rename(conversation)),
      button(`Delete ${title}`, "trash", () => this.remove(conversation)),
    );
  }

  async rename(conversation) {
    const title = await textOf("Rename conversation", "Title", titleOf(conversation), "Rename");
    if (title === null) return;
    await this.history.rename(conversation, title.trim());
    this.render();
  }

  async remove(conversation) {
    if (
      !(await confirmed(
        "Delete conversation?",
        `"${titleOf(conversation)}" and all its branches are deleted from this browser.`,
        "Delete",
      ))
    )
      return;
    await this.history.remove(conversation.id);
    this.actions.removed(conversation);
    this.render();
    byId("search").focus();
  }

  export() {
    const conversations = this.history.list().map(checked);
    const day = new Date().toISOString().slice(0, 10);
    download(
      `ferrum-conversations-${day}.json`,
      JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 1),
    );
    say(`${conversations.length} conversations exported`);
  }

  /** Add the conversations of a file, except those that are here. One that differs is added as another one. */
  async import(input) {
    const [file] = input.files;
    input.value = "";
    try {
      const saved = JSON.parse(await file.text());
      const { format, conversations } = saved ?? {};
      if (format !== FORMAT || !Array.isArray(conversations)) throw new Error(`it has no "format": "${FORMAT}"`);
      const added = await this.add(conversations.map(checked));
      this.actions.warn("");
      say(`${added} of ${conversations.length} conversations added`);
    } catch (error) {
      this.actions.warn(`${file.name} cannot be imported: ${error.message}. Choose a file that this page exported.`);
    }
    this.render();
  }

  async add(conversations) {
    const { byId: here, removed } = this.history;
    const known = new Set([...here.values()].map(canonical));
    let added = 0;
    for (const conversation of conversations) {
      const text = canonical(conversation);
      if (known.has(text)) continue;
      known.add(text);
      const { id } = conversation;
      await this.history.add(here.has(id) || removed.has(id) ? { ...conversation, id: newId() } : conversation);
      added += 1;
    }
    return added;
  }
}
