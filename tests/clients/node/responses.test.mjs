// The Responses API and its store: the official SDK.
import assert from "node:assert/strict";
import { test } from "node:test";
import { all, client } from "./kit.mjs";

const openai = client({ baseURL: `${process.env.AGENT_URL}/v1` });
const model = "scripted";
const input = "What is the weather in Paris?";
const weather = {
  type: "function",
  name: "get_weather",
  strict: false,
  parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
};

test("a stored response is continued and retrieved", async () => {
  const first = await openai.responses.create({ model, input, tools: [weather] });
  const call = first.output.at(-1);
  assert.deepEqual(JSON.parse(call.arguments), { city: "Paris" });
  const result = { type: "function_call_output", call_id: call.call_id, output: "sunny" };
  const second = await openai.responses.create({ model, input: [result], tools: [weather], previous_response_id: first.id });
  assert.match(second.output_text, /sunny$/);
  const stored = await openai.responses.retrieve(second.id);
  assert.deepEqual(stored.output, second.output);
});

test("a stream is what is stored", async () => {
  const final = await openai.responses.stream({ model, input, tools: [weather] }).finalResponse();
  const stored = await openai.responses.retrieve(final.id);
  assert.deepEqual(stored.output.map(({ id }) => id), final.output.map(({ id }) => id));
  assert.equal(stored.output.at(-1).arguments, final.output.at(-1).arguments);
});

test("input items are listed in pages and a response is deleted", async () => {
  const sent = [1, 2, 3].map((place) => ({ role: "user", content: `no tool ${place}` }));
  const response = await openai.responses.create({ model, input: sent });
  const listed = await all(openai.responses.inputItems.list(response.id, { limit: 2, order: "asc" }));
  assert.deepEqual(listed.map(({ content }) => content[0].text), sent.map(({ content }) => content));
  await openai.responses.delete(response.id);
  await assert.rejects(openai.responses.retrieve(response.id), { status: 404 });
});

test("a background response is streamed again and cancelled", async () => {
  const events = await all(await openai.responses.create({ model, input: "no tool", background: true, stream: true }));
  const { id } = events[0].response;
  assert.equal(events.at(-1).type, "response.completed");
  const again = await all(await openai.responses.retrieve(id, { stream: true, starting_after: 2 }));
  assert.deepEqual(again, events.slice(3));
  assert.equal((await openai.responses.cancel(id)).status, "completed");
  const other = await openai.responses.create({ model, input: "no tool" });
  await assert.rejects(openai.responses.cancel(other.id), { status: 400 });
});

test("tokens are counted", async () => {
  const { input_tokens } = await openai.responses.inputTokens.count({ model, input });
  assert.equal((await openai.responses.create({ model, input })).usage.input_tokens, input_tokens);
});
