// The actions on a conversation: send, answer, continue, regenerate, edit, branch, stop. The view shows what they change.

import { ApiError, events, explain } from "./api.js";
import { Pieces, addCalls, read } from "./events.js";
import { faultOf } from "./images.js";
import { optionsOf, renderedRequest, requestOf } from "./requests.js";
import { addTurn, choose, isEmpty, leaf, newConversation, pathTo, placeOfQuestion, siblings, touched } from "./tree.js";

const TEXT_BYTES = 1 << 20; // of a request, which are left to its texts

export class Chat {
  /**
   * @param history stores conversations
   * @param settings of the next request
   * @param server has `config` and `model`
   * @param view has `render()`, `grown(turn)`, `failed(error, conversation)`, `refused(fault)`
   */
  constructor(history, settings, server, view) {
    Object.assign(this, { history, settings, server, view });
    this.jobs = new Map(); // {stop, turn} by conversation
    this.conversation = newConversation();
  }

  get busy() {
    return this.jobs.has(this.conversation.id);
  }

  open(conversation) {
    this.conversation = conversation;
    this.view.render();
  }

  /** Return whether an answer is being written, here or in another tab. */
  written(conversation, turn) {
    return this.jobs.get(conversation.id)?.turn === turn || this.history.elsewhere(conversation, turn);
  }

  /** Store and show what has changed: turns, or only the view. */
  changed(conversation, ...turns) {
    for (const turn of turns) touched(conversation, turn);
    this.history.save(conversation, ...turns);
    if (conversation === this.conversation) this.view.render();
  }

  /**
   * Return whether no request can begin now: one runs, the settings are wrong, the server was never reached, or it does
   * not take these images with those before.
   */
  blocked(images = []) {
    const waits = "The server does not answer yet. Wait until it is ready.";
    const fault = this.settings.fault() ?? (this.server.config ? this.imageFault(images) : waits);
    if (fault) this.view.refused(fault);
    return Boolean(fault) || this.busy;
  }

  imageFault(images) {
    if (!images.length) return null;
    const context = this.imageContext();
    return context ? faultOf([...context.before, ...images], context) : "This model does not read images. Remove them.";
  }

  /** Return limits of the images of the next question, and those of the conversation; null if the model reads none. */
  imageContext() {
    const { conversation, server } = this;
    const mode = leaf(conversation).role === "root" ? server.config && server.mode() : conversation.mode;
    if (!server.config?.model.image_limits || mode !== "chat") return null;
    const path = pathTo(conversation, this.place());
    const bytes = server.config.server.max_body_bytes - TEXT_BYTES;
    return { limits: server.config.model.image_limits, bytes, before: path.flatMap((turn) => turn.images ?? []) };
  }

  /** Return the turn below which the next question goes. */
  place() {
    return placeOfQuestion(this.conversation, (turn) => this.written(this.conversation, turn));
  }

  send(text, images = []) {
    const { conversation } = this;
    if (leaf(conversation).role === "root") conversation.mode = this.server.mode();
    const shown = images.length ? { images } : {};
    return this.answer(this.add(this.place().id, { role: "user", content: text, ...shown }));
  }

  /** Add a turn to the conversation that is shown. */
  add(parent, fields) {
    const turn = addTurn(this.conversation, parent, fields);
    this.history.save(this.conversation, turn);
    return turn;
  }

  /** Answer a turn: a new sibling of the answers that it has. */
  answer(turn) {
    return this.begin(this.add(turn.id, { role: "assistant", ...emptyAnswer() }));
  }

  regenerate(turn) {
    if (this.blocked()) return;
    return this.answer(this.conversation.turns[turn.parent]);
  }

  /** Ask again for an answer of which nothing came. */
  retry(turn) {
    if (this.blocked()) return;
    turn.parts = [];
    return this.begin(turn);
  }

  /** Give a question or an answer another text, as a sibling; a question is answered. */
  edit(turn, text) {
    if (this.blocked()) return;
    const own = { role: "assistant", ...emptyAnswer(), reasoning: turn.reasoning, edited: true };
    const fields = turn.role === "assistant" ? own : { role: turn.role, ...(turn.images ? { images: turn.images } : {}) };
    const made = this.add(turn.parent, { ...fields, content: text });
    if (turn.role !== "assistant") return this.answer(made);
    made.finish = "edited";
    this.changed(this.conversation, made);
  }

  /** Go on where the answer ended. */
  continueAnswer(turn) {
    if (this.blocked()) return;
    return this.begin(turn, { continues: true });
  }

  /** Go on from an alternative token: a sibling with the text before it and the token. */
  branchAt(turn, place, alternative) {
    if (this.blocked()) return;
    const before = turn.pieces.slice(0, place);
    const content = before.filter(({ kind }) => kind === "content").map(({ text }) => text);
    const chosen = {
      kind: "content",
      text: alternative.text,
      entries: [{ ...turn.pieces[place].entries[0], ...alternative }],
    };
    const fields = { ...emptyAnswer(), reasoning: turn.reasoning, content: content.join("") + alternative.text };
    const made = this.add(turn.parent, {
      role: "assistant",
      ...fields,
      pieces: [...before, chosen],
      odds: true,
    });
    return this.begin(made, { continues: true });
  }

  /** Send the results of an answer's calls: a turn each, and their answer. */
  sendResults(turn, results) {
    if (this.blocked()) return;
    let last = turn;
    turn.calls.forEach(({ id, name }, place) => {
      last = this.add(last.id, { role: "tool", call: id, name, content: results[place] });
    });
    return this.answer(last);
  }

  choose(turn) {
    if (!this.history.has(this.conversation, turn)) return;
    choose(this.conversation, turn);
    this.changed(this.conversation);
  }

  /** Make a turn's path the active one; another tab may have removed it. */
  show(turn) {
    if (!this.history.has(this.conversation, turn)) return;
    for (const each of pathTo(this.conversation, turn)) choose(this.conversation, each);
    this.changed(this.conversation);
  }

  remove(turn) {
    if (!this.history.has(this.conversation, turn)) return;
    this.history.removeTurn(this.conversation, turn);
    this.changed(this.conversation);
  }

  stop(conversation = this.conversation) {
    this.jobs.get(conversation.id)?.job.abort();
  }

  /** Stop answers that another tab has removed. */
  stopRemoved() {
    for (const { job, turn, conversation } of this.jobs.values()) {
      if (!this.history.has(conversation, turn)) job.abort();
    }
  }

  /** Ask for a part of an answer and add what comes. */
  async begin(turn, { continues = false } = {}) {
    const { conversation, server, history } = this;
    const options = optionsOf(this.settings.values, server.config, conversation.mode);
    const from = turn.content.length;
    const part = { options, continues, from, model: server.model, began: Date.now(), usage: null, finish: null };
    const job = new AbortController();
    const before = { finish: turn.finish, pieces: turn.pieces, text: turn.content + turn.reasoning };
    this.jobs.set(conversation.id, { job, turn, conversation });
    Object.assign(turn, { finish: null, fault: null, parts: [...turn.parts, part] });
    history.begin(conversation, turn);
    this.changed(conversation, turn);
    let failure = null;
    try {
      await this.stream(conversation, turn, part, job.signal);
    } catch (error) {
      failure = error;
    }
    this.jobs.delete(conversation.id);
    if (failure && history.has(conversation, turn)) this.fail(conversation, turn, failure, before);
    this.changed(conversation);
    await history.end(conversation, turn);
  }

  async stream(conversation, turn, part, signal) {
    const request = requestOf(conversation, turn, part, part.model);
    try {
      await this.receive(conversation, request, turn, part, signal);
    } catch (error) {
      const refused = part.continues && error instanceof ApiError && error.param === "continue_final_message";
      if (!refused || pathTo(conversation, turn).some((each) => each.images)) throw error; // a text has no images
      part.rendered = true;
      await this.receive(conversation, await renderedRequest(request, this.server.config), turn, part, signal);
    }
  }

  async receive(conversation, { path, body }, turn, part, signal) {
    const asked = performance.now();
    const pieces = body.logprobs ? new Pieces((turn.pieces ??= withoutOdds(turn))) : null;
    if (pieces) Object.assign(turn, { odds: turn.odds ?? true });
    else turn.pieces = null;
    part.piecesFrom = turn.pieces?.length;
    for await (const event of events(path, body, signal)) {
      const delta = read(event);
      Object.assign(part, { id: delta.id ?? part.id, fingerprint: delta.fingerprint ?? part.fingerprint });
      if (delta.content || delta.reasoning || delta.calls.length) part.first ??= performance.now() - asked;
      turn.content += delta.content;
      turn.reasoning += delta.reasoning;
      addCalls(turn.calls, delta.calls);
      pieces?.add(delta);
      part.usage = delta.usage ?? part.usage;
      part.finish = turn.finish = delta.finish ?? turn.finish;
      part.seconds = (performance.now() - asked) / 1000;
      this.history.save(conversation, turn);
      this.view.grown(turn);
    }
  }

  /** Keep what came of an answer, with its error. One without text gives way to its sibling. */
  fail(conversation, turn, failure, before) {
    const stopped = failure.name === "AbortError";
    const part = turn.parts.at(-1);
    let shown = turn;
    if (turn.content + turn.reasoning !== before.text || turn.calls.length) {
      part.finish = turn.finish = stopped ? "stopped" : "cut";
    } else {
      Object.assign(turn, { parts: turn.parts.slice(0, -1), pieces: before.pieces });
      turn.finish = before.finish ?? (stopped ? "stopped" : "cut");
      if (isEmpty(turn) && siblings(conversation, turn).ids.length > 1) {
        this.history.removeTurn(conversation, turn);
        shown = conversation.turns[conversation.turns[turn.parent].chosen];
      }
    }
    if (stopped) return;
    shown.fault = explain(failure);
    this.changed(conversation, shown);
    this.view.failed(failure, conversation);
  }
}

/** Return the text that a turn has so far as pieces without probabilities. */
function withoutOdds({ reasoning, content }) {
  const pieces = [
    { kind: "reasoning", text: reasoning, entries: [] },
    { kind: "content", text: content, entries: [] },
  ];
  return pieces.filter(({ text }) => text);
}

function emptyAnswer() {
  return { content: "", reasoning: "", calls: [], pieces: null, parts: [], finish: null, fault: null };
}
