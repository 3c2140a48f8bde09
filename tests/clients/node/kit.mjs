// Clients of the servers that ../test_clients.py runs.
import OpenAI from "openai";

export const MODEL = "tiny";
export const USER = [{ role: "user", content: "read a file" }];

/** The official client, without retries unless asked for. */
export const client = (options = {}) =>
  new OpenAI({ baseURL: `${process.env.REAL_URL}/v1`, apiKey: "none", maxRetries: 0, ...options });

/** A client of the server that is slow and takes one request at a time. */
export const busy = (options = {}) => client({ baseURL: `${process.env.BUSY_URL}/v1`, ...options });

export const openai = client();

export const chat = (body = {}, options = {}) =>
  openai.chat.completions.create({ model: MODEL, messages: USER, max_tokens: 12, temperature: 0, ...body }, options);

export const complete = (body = {}, options = {}) =>
  openai.completions.create({ model: MODEL, prompt: "def read(path):\n", max_tokens: 12, temperature: 0, ...body }, options);

export const textOf = (reply) => reply.choices[0].message?.content ?? reply.choices[0].text;

export async function all(stream) {
  const events = [];
  for await (const event of stream) events.push(event);
  return events;
}
