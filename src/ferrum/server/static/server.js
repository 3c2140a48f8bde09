// The server: its properties, and whether it answers. The header shows its state; the page tries again until it is ready.

import { ApiError, apiKey, getJson, getText } from "./api.js";

const CHECK_MS = 5000;
const RETRY_MS = [500, 1000, 2000, 3000, 5000];

export class Server {
  /**
   * @param onstate learns `(state, text)`; states: connecting, loading, ready, gone, key
   * @param settings has the chosen mode and model
   */
  constructor(onstate, settings) {
    Object.assign(this, { onstate, settings, config: null, models: [], state: "connecting" });
    this.failures = 0;
    this.timer = null;
  }

  get model() {
    const { model } = this.settings.values;
    return this.models.includes(model) ? model : this.config.model.name;
  }

  /** Return the mode of a new conversation: `chat`, or `complete` for a model without a chat template. */
  mode() {
    return this.config.model.chat_template && this.settings.values.mode !== "complete" ? "chat" : "complete";
  }

  become(state, text) {
    this.state = state;
    this.onstate(state, text);
  }

  /** Check now, and again and again. A hidden page does not ask. */
  async watch() {
    clearTimeout(this.timer);
    if (!document.hidden || this.state !== "ready") await this.check();
    const wait = this.state === "ready" ? CHECK_MS : RETRY_MS[Math.min(this.failures, RETRY_MS.length - 1)];
    if (this.state !== "key") this.timer = setTimeout(() => this.watch(), wait);
  }

  async check() {
    try {
      if (this.state === "ready") await getText("health");
      else await this.connect();
      this.failures = 0;
    } catch (error) {
      this.failures += 1;
      if (error.status === 401)
        this.become("key", apiKey.get() ? "This API key is not accepted" : "The server wants an API key");
      else if (error.status === 503) this.become("loading", "The server is loading or shutting down. Trying again");
      else
        this.become(
          "gone",
          error instanceof ApiError && error.status ? error.message : "The server does not answer. Trying again",
        );
    }
  }

  async connect() {
    const [config, list] = await Promise.all([getJson("v1/config"), getJson("v1/models")]);
    this.config = config;
    this.models = list.data.map(({ id }) => id);
    this.become("ready", `context ${config.model.max_model_len.toLocaleString("en")} tokens`);
  }
}
