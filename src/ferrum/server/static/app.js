// The page: connects the parts. Each part is a module with one idea; none of them knows the page.

import { apiKey, explain } from "./api.js";
import { watchCharts } from "./charts.js";
import { Chat } from "./chat.js";
import { loadHighlighter } from "./code.js";
import { compareBranches } from "./compare.js";
import { Composer } from "./composer.js";
import { askForKey, confirmed } from "./dialogs.js";
import { byId, say } from "./dom.js";
import { Follower } from "./follow.js";
import { History } from "./history.js";
import { SidePanel, tabs } from "./panels.js";
import { findProbabilities, runAgain } from "./replay.js";
import { Server } from "./server.js";
import { Settings } from "./settings.js";
import { SettingsPanel } from "./settings_panel.js";
import { Sidebar } from "./sidebar.js";
import { Transcript, welcome } from "./transcript.js";
import { newConversation, pathBelow, titleOf } from "./tree.js";

const settings = new Settings((name) => settingChanged(name));
const server = new Server((state, text) => serverChanged(state, text), settings);
const history = new History((text) => composer.warn(text), changedElsewhere);
const composer = new Composer({ send, stop: () => chat.stop() }, () => chat.imageContext());
const refused = (fault) => composer.warn(fault);
const chat = new Chat(history, settings, server, { render, grown: (turn) => transcript.grown(turn), failed, refused });
const follower = new Follower(byId("scroller"), byId("transcript"), byId("to-end"));
const sidebar = new Sidebar(history, chat, { open: openConversation, removed, warn: (text) => composer.warn(text) });
const settingsPanel = new SettingsPanel(byId("settings"), settings);
const leftPanel = new SidePanel("left", "toggle-left");
const rightPanel = new SidePanel("right", "toggle-right", {
  onopen: () => charts(byId("charts-tab").ariaSelected === "true"),
});
const transcript = new Transcript(byId("transcript"), chat, {
  choose: (turn) => chat.choose(turn),
  compare: (turn) => compareBranches(chat, turn),
  edit: (turn, text) => follow(() => chat.edit(turn, text)),
  branchAt: (turn, place, alternative) => chat.branchAt(turn, place, alternative),
  sendResults: (turn, results) => follow(() => chat.sendResults(turn, results)),
  remove: removeTurn,
  dismiss: (turn) => {
    turn.fault = null;
    chat.changed(chat.conversation, turn);
  },
  toggleOdds,
  runAgain: checkAgain,
});
let charts = () => {};

function follow(action) {
  follower.follow();
  return action();
}

function send(text, images) {
  composer.warn("");
  if (chat.blocked(images)) return false;
  follow(() => chat.send(text, images));
  if (named() !== chat.conversation.id) goTo(`#${chat.conversation.id}`, { replace: true });
  return true;
}

function failed(error, conversation) {
  const shown = conversation === chat.conversation;
  if (shown && error.status === 401) enterKey(explain(error));
  else if (error.status === 0 || error.status === 503) server.watch();
}

async function enterKey(text) {
  if (await askForKey(text)) {
    composer.warn("");
    server.become("connecting", "Connecting");
    await server.watch();
  }
  composer.box.focus();
}

function serverChanged(state, text) {
  byId("state").dataset.state = state;
  byId("state-text").textContent = text;
  byId("enter-key").hidden = state !== "key";
  byId("model").textContent = server.config ? server.model : "";
  if (state === "ready") {
    settingsPanel.draw(server);
    byId("odds").disabled = server.config.server.max_logprobs === 0;
    loadHighlighter().then((loaded) => loaded && transcript.refresh());
  }
  render();
}

let wasBusy = false;
function render() {
  transcript.render();
  sidebar.render();
  const empty = !byId("transcript").children.length;
  byId("welcome").hidden = !empty;
  if (empty) byId("welcome").replaceChildren(...welcome(server.config));
  const { busy } = chat;
  composer.state(busy, server.state === "ready");
  if (busy !== wasBusy) say(busy ? "The answer is being written" : "The answer is complete");
  wasBusy = busy;
  document.title = empty ? "ferrum" : `${titleOf(chat.conversation)} · ferrum`;
}

function settingChanged(name) {
  document.documentElement.dataset.theme = settings.values.theme;
  byId("odds").setAttribute("aria-pressed", String(settings.values.probabilities));
  if (name === null) settingsPanel.show();
  if (server.config) byId("model").textContent = server.model;
  composer.attached.offer();
}

/** Return the id of the conversation that the address names, or "". */
function named() {
  return location.hash.slice(1);
}

/** Give the page another address. Back leads to the one before, unless it is replaced. */
function goTo(address, { replace = false } = {}) {
  window.history[replace ? "replaceState" : "pushState"](null, "", address || location.pathname + location.search);
}

function show(conversation) {
  leftPanel.closeIfNarrow();
  composer.warn("");
  chat.open(conversation);
  follower.follow();
}

function openConversation(conversation) {
  if (named() !== conversation.id) goTo(`#${conversation.id}`);
  show(conversation);
}

/** Show an empty conversation. It gets its address with the first question. */
function startConversation({ replace = false } = {}) {
  if (named()) goTo("", { replace });
  show(newConversation());
  composer.box.focus();
}

function removed(conversation) {
  chat.stop(conversation);
  if (conversation.id === chat.conversation.id) startConversation({ replace: true });
}

/** Show what another tab has made of a conversation. */
function changedElsewhere(id) {
  chat.stopRemoved();
  if (history.removed.has(chat.conversation.id)) startConversation({ replace: true });
  else if (id === null || id === chat.conversation.id) render();
  else sidebar.render();
}

async function removeTurn(turn) {
  const more = turn.children.length
    ? "It and all turns after it are deleted."
    : "It is deleted from this conversation.";
  if (await confirmed("Delete turn?", more, "Delete")) chat.remove(turn);
}

/** Show an answer's tokens or its text; an answer without probabilities is asked for again first. */
async function toggleOdds(turn) {
  const { conversation } = chat;
  if (!turn.pieces && !(await working(turn, (signal) => findProbabilities(chat, conversation, turn, signal)))) return;
  turn.odds = !turn.odds;
  chat.changed(conversation, turn);
}

async function checkAgain(turn) {
  const { conversation } = chat;
  turn.replay = null;
  const done = await working(turn, async (signal) => {
    turn.replay = await runAgain(chat, conversation, turn, signal);
  });
  if (!done) turn.replay = null;
  chat.changed(conversation, turn);
}

/** Run a request about an answer; report its error. Returns whether it succeeded. */
async function working(turn, action) {
  turn.running = true;
  render();
  try {
    await action(new AbortController().signal);
    return true;
  } catch (error) {
    composer.warn(explain(error));
    return false;
  } finally {
    delete turn.running;
  }
}

/** Show the conversation that the address names; without a name an empty one. */
function openNamed() {
  const conversation = history.byId.get(named());
  if (conversation) {
    if (conversation !== chat.conversation) show(conversation);
  } else if (pathBelow(chat.conversation).length) {
    startConversation({ replace: true });
  }
}

async function begin() {
  settingChanged(null);
  render();
  byId("new").addEventListener("click", () => startConversation());
  byId("skip").addEventListener("click", (event) => {
    event.preventDefault(); // the address names the conversation
    composer.box.focus();
  });
  byId("odds").addEventListener("click", () => settings.set("probabilities", !settings.values.probabilities));
  byId("enter-key").addEventListener("click", () => enterKey("The server wants an API key."));
  byId("alert-close").addEventListener("click", () => composer.warn(""));
  byId("compare-close").addEventListener("click", () => byId("compare").close());
  tabs(byId("tabs"), (tab) => charts(tab === "charts-tab"));
  charts = watchCharts(byId("charts"), () => rightPanel.open && !byId("charts").hidden);
  window.addEventListener("hashchange", openNamed);
  window.addEventListener("pagehide", () => history.leave());
  window.addEventListener("pageshow", async ({ persisted }) => {
    if (!persisted) return; // else the page has missed what other tabs reported
    await history.load();
    changedElsewhere(null);
  });
  document.addEventListener("visibilitychange", () => (document.hidden ? history.flush() : server.watch()));
  leftPanel.set(window.matchMedia("(min-width: 75rem)").matches, { focus: false });
  composer.box.focus();
  await history.load();
  openNamed();
  render();
  if (document.body.dataset.keys === "needed" && !apiKey.get()) {
    server.become("key", "The server wants an API key");
    await enterKey("The server wants an API key. It stays in this tab.");
  } else server.watch();
}

begin();
