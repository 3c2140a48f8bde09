// Chats: every field works as the SDK's users expect, or is refused with its name.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { MODEL, USER, all, chat, openai, textOf } from "./kit.mjs";

const text = async (body) => textOf(await chat(body));

test("a reply has the shape that the SDK declares", async () => {
  const reply = await chat();
  assert.match(reply.id, /^chatcmpl-/);
  assert.equal(reply.object, "chat.completion");
  assert.equal(reply.model, MODEL);
  assert.equal(typeof reply.created, "number");
  assert.equal(typeof reply.system_fingerprint, "string");
  const [choice] = reply.choices;
  assert.deepEqual([choice.index, choice.finish_reason, choice.message.role], [0, "length", "assistant"]);
  assert.equal(choice.message.refusal, null);
  assert.equal(reply.usage.completion_tokens, 12);
  assert.equal(reply.usage.total_tokens, reply.usage.prompt_tokens + 12);
  assert.equal(typeof reply.usage.prompt_tokens_details.cached_tokens, "number");
});

test("both names of the limit are served", async () => {
  const limited = await chat({ max_completion_tokens: 3, max_tokens: undefined });
  assert.equal(limited.usage.completion_tokens, 3);
  assert.equal((await chat({ max_tokens: 5 })).usage.completion_tokens, 5);
});

test("messages may have parts, names and all roles", async () => {
  const content = [{ type: "text", text: "read" }, { type: "text", text: "a file" }];
  assert.equal(await text({ messages: [{ role: "user", content }] }), await text({ messages: [{ role: "user", content: "read\na file" }] }));
  const messages = [
    { role: "developer", content: "be brief" },
    { role: "user", content: "hi", name: "ann" },
    { role: "assistant", content: "yes" },
    { role: "tool", content: "4", tool_call_id: "a" },
  ];
  assert.equal((await chat({ messages })).choices.length, 1);
  assert.notEqual(await text({ messages }), await text());
});

test("temperature, top_p and seed steer the draws", async () => {
  const drawn = { temperature: 1.5, max_tokens: 24 };
  assert.equal(await text({ ...drawn, seed: 7 }), await text({ ...drawn, seed: 7 }));
  assert.notEqual(await text({ ...drawn, seed: 7 }), await text({ ...drawn, seed: 8 }));
  assert.equal(await text({ temperature: 2, top_p: 1e-9, seed: 1 }), await text());
});

test("n choices are drawn apart", async () => {
  const { choices } = await chat({ n: 3, temperature: 1.5, seed: 1 });
  assert.deepEqual(choices.map(({ index }) => index).sort(), [0, 1, 2]);
  assert.equal(new Set(choices.map(({ message }) => message.content)).size, 3);
});

test("stop ends the text before itself", async () => {
  const whole = await text();
  const stop = whole.slice(4, 6);
  for (const given of [stop, [stop, "never there"]]) {
    const reply = await chat({ stop: given });
    assert.equal(textOf(reply), whole.slice(0, whole.indexOf(stop)));
    assert.equal(reply.choices[0].finish_reason, "stop");
  }
});

test("penalties and biases change what is chosen", async () => {
  const plain = await text({ max_tokens: 48 });
  assert.notEqual(await text({ max_tokens: 48, frequency_penalty: 2 }), plain);
  assert.notEqual(await text({ max_tokens: 48, presence_penalty: 2 }), plain);
  const { choices } = await chat({ logit_bias: { 300: 100 }, logprobs: true, max_tokens: 4 });
  assert.equal(new Set(choices[0].logprobs.content.map(({ token }) => token)).size, 1);
});

test("logprobs are those of each token and of the likeliest ones", async () => {
  const { choices } = await chat({ logprobs: true, top_logprobs: 3 });
  const { content, refusal } = choices[0].logprobs;
  assert.equal(refusal, null);
  assert.equal(content.map(({ token }) => token).join(""), choices[0].message.content);
  for (const { token, logprob, bytes, top_logprobs: top } of content) {
    assert.equal(Buffer.from(bytes).toString(), token);
    assert.equal(top.length, 3);
    assert.deepEqual([top[0].token, top[0].logprob], [token, logprob], "greedy");
  }
  assert.equal((await chat()).choices[0].logprobs, null);
});

test("a stream is its reply in pieces", async () => {
  const events = await all(await chat({ stream: true, stream_options: { include_usage: true }, n: 1 }));
  assert.equal(events[0].choices[0].delta.role, "assistant");
  assert.equal(events.flatMap(({ choices }) => choices.map(({ delta }) => delta.content ?? "")).join(""), await text());
  assert.equal(events.at(-2).choices[0].finish_reason, "length");
  assert.deepEqual(events.at(-1).choices, []);
  assert.equal(events.at(-1).usage.completion_tokens, 12);
  assert.equal(new Set(events.map(({ id }) => id)).size, 1);
});

test("the SDK's stream helper folds a stream into the reply", async () => {
  const runner = openai.chat.completions.stream({ model: MODEL, messages: USER, max_tokens: 12, temperature: 0 });
  let seen = "";
  runner.on("content", (delta) => (seen += delta));
  const folded = await runner.finalChatCompletion();
  assert.equal(seen, await text());
  assert.equal(folded.choices[0].message.content, seen);
  assert.equal(folded.choices[0].finish_reason, "length");
});

test("a prediction changes nothing but the usage", async () => {
  const whole = await text();
  const details = [];
  for (const content of [whole, "never this at all"]) {
    const reply = await chat({ prediction: { type: "content", content } });
    assert.equal(textOf(reply), whole);
    details.push(reply.usage.completion_tokens_details);
  }
  assert.ok(details[0].accepted_prediction_tokens > 0);
  assert.equal(details[1].accepted_prediction_tokens, 0);
  assert.ok(details[1].rejected_prediction_tokens > 0);
  await assert.rejects(chat({ prediction: { type: "content" } }), (error) => error.param === "prediction.content");
});

test("fields without an effect are served, and named in a header", async () => {
  const body = {
    user: "u", metadata: { a: "b" }, store: false, service_tier: "auto", safety_identifier: "s",
    prompt_cache_key: "k", verbosity: "low",
  };
  const { data, response } = await chat(body).withResponse();
  assert.equal(textOf(data), await text());
  const ignored = response.headers.get("x-ferrum-ignored").split(", ");
  assert.deepEqual(new Set(ignored), new Set(Object.keys(body)));
  assert.equal(await text({ response_format: { type: "text" }, modalities: ["text"] }), await text());
});

test("a reasoning_effort is served", async () => {
  assert.ok((await chat({ reasoning_effort: "low" })).choices[0].message.content);
});

const REFUSED = {
  temperature: 3, top_p: 0, n: 0, presence_penalty: 3, frequency_penalty: -3, top_logprobs: 2, stop: "", max_tokens: 0,
  logit_bias: { nothing: 1 }, messages: [], guided_regex: "(", modalities: ["audio"],
  tools: [{ type: "function", function: { name: "f", parameters: {} } }],
  stream_options: { include_usage: true },
};
for (const [param, value] of Object.entries(REFUSED)) {
  test(`a ${param} that cannot be served is refused by name`, async () => {
    await assert.rejects(chat({ [param]: value }), (error) => {
      assert.ok(error instanceof OpenAI.BadRequestError);
      assert.equal(error.param, param);
      assert.equal(error.type, "invalid_request_error");
      return true;
    });
  });
}
