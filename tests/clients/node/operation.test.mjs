// Errors, keys, aborts, timeouts and retries, as the SDK deals with them.
import assert from "node:assert/strict";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import OpenAI from "openai";
import { MODEL, USER, all, busy, chat, client } from "./kit.mjs";

const FAKE = { model: "fake", messages: USER, temperature: 0 };

/** How many sequences a server holds. */
async function running(url) {
  const text = await (await fetch(`${url}/metrics`)).text();
  return Number(/^vllm:num_requests_running\{.*\} (\S+)$/m.exec(text)[1]);
}

async function idle(url) {
  for (let turn = 0; turn < 200 && (await running(url)); turn++) await sleep(20);
  assert.equal(await running(url), 0);
}

test("errors have the SDK's classes and the server's words", async () => {
  await assert.rejects(chat({ model: "other" }), (error) => {
    assert.ok(error instanceof OpenAI.NotFoundError);
    assert.deepEqual([error.code, error.param], ["model_not_found", "model"]);
    assert.match(error.requestID, /./);
    return true;
  });
  await assert.rejects(chat({ max_tokens: 100_000 }), (error) => error.code === "context_length_exceeded");
});

test("a reply has the id of its request, or the one it was given", async () => {
  const { request_id: id } = await chat().withResponse();
  assert.match(id, /^[0-9a-f]{32}$/);
  const given = await chat({}, { headers: { "x-request-id": "mine" } }).withResponse();
  assert.equal(given.request_id, "mine");
});

test("a key is asked for where keys are on", async () => {
  const keyed = { baseURL: `${process.env.KEYED_URL}/v1` };
  await assert.rejects(client({ ...keyed, apiKey: "wrong" }).models.list(), OpenAI.AuthenticationError);
  assert.equal((await client({ ...keyed, apiKey: "secret" }).models.list()).data[0].id, MODEL);
});

test("an aborted stream frees its place", async () => {
  const stream = await busy().chat.completions.create({ ...FAKE, max_tokens: 3000, stream: true });
  for await (const _ of stream) break;
  await idle(process.env.BUSY_URL);
  const abort = new AbortController();
  const reply = busy().chat.completions.create({ ...FAKE, max_tokens: 3000 }, { signal: abort.signal });
  setTimeout(() => abort.abort(), 200);
  await assert.rejects(reply, OpenAI.APIUserAbortError);
  await idle(process.env.BUSY_URL);
});

test("a timeout ends the request on both sides", async () => {
  const reply = busy().chat.completions.create({ ...FAKE, max_tokens: 3000 }, { timeout: 300 });
  await assert.rejects(reply, OpenAI.APIConnectionTimeoutError);
  await idle(process.env.BUSY_URL);
});

test("a full server is tried again when it said so, and then served", async () => {
  const statuses = [];
  const counting = async (...request) => {
    const response = await fetch(...request);
    statuses.push(response.status);
    return response;
  };
  const first = await busy().chat.completions.create({ ...FAKE, max_tokens: 60, stream: true });
  const began = first[Symbol.asyncIterator]();
  await began.next();
  await assert.rejects(busy().chat.completions.create({ ...FAKE, max_tokens: 4 }), (error) => {
    assert.ok(error instanceof OpenAI.RateLimitError);
    assert.ok(Number(error.headers.get("retry-after")) >= 1);
    return true;
  });
  const patient = busy({ maxRetries: 5, fetch: counting });
  const [reply] = await Promise.all([
    patient.chat.completions.create({ ...FAKE, max_tokens: 4 }),
    all({ [Symbol.asyncIterator]: () => began }),
  ]);
  assert.equal(reply.usage.completion_tokens, 4);
  assert.equal(statuses.at(-1), 200);
  assert.ok(statuses.length > 1 && statuses.slice(0, -1).every((status) => status === 429), String(statuses));
});
