// Anthropic's official Node SDK: messages, the streaming helper, tools, counts of tokens.
import assert from "node:assert/strict";
import { test } from "node:test";
import Anthropic from "@anthropic-ai/sdk";

const anthropic = new Anthropic({ baseURL: process.env.AGENT_URL, apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "What is the weather in Paris?" }];
const common = { model: "scripted", max_tokens: 600, messages };
const weather = {
  name: "get_weather",
  input_schema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
};
const agent = { ...common, tools: [weather], thinking: { type: "adaptive" } };
const withoutId = ({ content }) => content.map(({ type, text, thinking, name, input }) => ({ type, text, thinking, name, input }));

test("a stream folds into the message that is sent whole", async () => {
  const whole = await anthropic.messages.create(agent);
  const folded = await anthropic.messages.stream(agent).finalMessage();
  assert.deepEqual(withoutId(folded), withoutId(whole));
  assert.equal(folded.stop_reason, "tool_use");
  assert.equal(folded.usage.output_tokens, whole.usage.output_tokens);
});

test("a result of a tool makes an answer", async () => {
  const asked = await anthropic.messages.create(agent);
  const call = asked.content.find(({ type }) => type === "tool_use");
  assert.deepEqual(call.input, { city: "Paris" });
  const result = { type: "tool_result", tool_use_id: call.id, content: "sunny" };
  const history = [...messages, { role: "assistant", content: asked.content }, { role: "user", content: [result] }];
  const answer = await anthropic.messages.create({ ...agent, messages: history });
  assert.match(answer.content.at(-1).text, /sunny$/);
});

test("tokens are counted, and errors have their classes", async () => {
  const { input_tokens } = await anthropic.messages.countTokens({ model: "scripted", messages });
  const { usage } = await anthropic.messages.create(common);
  assert.equal(input_tokens, usage.input_tokens + usage.cache_read_input_tokens);
  const long = [{ role: "user", content: "a".repeat(70_000) }];
  await assert.rejects(anthropic.messages.create({ ...common, messages: long }), /Prompt is too long/);
  await assert.rejects(anthropic.messages.create({ ...common, model: "other" }), Anthropic.NotFoundError);
});
