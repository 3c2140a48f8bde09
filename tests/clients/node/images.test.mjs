// Images by the official Node SDKs and the Vercel AI SDK: sent unchanged, the prompt and the answer are those of a plain request.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { before, test } from "node:test";
import Anthropic from "@anthropic-ai/sdk";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText } from "ai";
import OpenAI from "openai";

const baseURL = `${process.env.SEEING_URL}/v1`;
const text = "Which?";
const limit = 16;
const options = { baseURL, apiKey: "none" };
const picture = await readFile(process.env.IMAGE);
const data = picture.toString("base64");
const url = `data:image/png;base64,${data}`;
const content = [{ type: "image_url", image_url: { url } }, { type: "text", text }];
let expected;

before(async () => {
  const body = { messages: [{ role: "user", content }], temperature: 0, max_tokens: limit };
  const headers = { "content-type": "application/json" };
  const reply = await fetch(`${baseURL}/chat/completions`, { method: "POST", headers, body: JSON.stringify(body) });
  const { choices, usage } = await reply.json();
  expected = { text: choices[0].message.content, tokens: usage.prompt_tokens };
  assert.ok(expected.tokens > 128);
});

test("OpenAI's SDK", async () => {
  const client = new OpenAI({ ...options, maxRetries: 0 });
  const messages = [{ role: "user", content }];
  const reply = await client.chat.completions.create({ model: "seer", messages, temperature: 0, max_tokens: limit });
  assert.deepEqual({ text: reply.choices[0].message.content, tokens: reply.usage.prompt_tokens }, expected);
  assert.ok(reply.usage.prompt_tokens_details.cached_tokens >= 64);
});

test("Anthropic's SDK", async () => {
  const client = new Anthropic({ baseURL: process.env.SEEING_URL, apiKey: "none", maxRetries: 0 });
  const source = { type: "base64", media_type: "image/png", data };
  const messages = [{ role: "user", content: [{ type: "image", source }, { type: "text", text }] }];
  const reply = await client.messages.create({ model: "seer", messages, temperature: 0, max_tokens: limit });
  const tokens = reply.usage.input_tokens + reply.usage.cache_read_input_tokens;
  assert.deepEqual({ text: reply.content[0].text, tokens }, expected);
});

const models = {
  chat: createOpenAI(options).chat("seer"),
  responses: createOpenAI(options).responses("seer"),
  messages: createAnthropic(options)("seer"),
  compatible: createOpenAICompatible({ ...options, name: "ferrum" })("seer"),
};

for (const [name, model] of Object.entries(models)) {
  for (const [form, shown] of Object.entries({ bytes: new Uint8Array(picture), "a data URL": url })) {
    test(`the AI SDK with ${form} by ${name}`, async () => {
      const parts = [{ type: "file", data: shown, mediaType: "image/png" }, { type: "text", text }];
      const messages = [{ role: "user", content: parts }];
      const reply = await generateText({ model, messages, temperature: 0, maxOutputTokens: limit, maxRetries: 0 });
      assert.deepEqual({ text: reply.text, tokens: reply.usage.inputTokens }, expected);
    });
  }
}
