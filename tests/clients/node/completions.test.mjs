// Completions, embeddings and models, as the SDK's users call them.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { MODEL, all, busy, complete, openai, textOf } from "./kit.mjs";

test("a reply has the shape that the SDK declares", async () => {
  const reply = await complete();
  assert.match(reply.id, /^cmpl-/);
  assert.equal(reply.object, "text_completion");
  assert.deepEqual([reply.choices[0].finish_reason, reply.choices[0].logprobs], ["length", null]);
  assert.equal(reply.usage.completion_tokens, 12);
});

test("a prompt is a text, tokens, or several of either", async () => {
  const prompts = ["import os\n", "class A:\n"];
  const { choices } = await complete({ prompt: prompts, n: 2, temperature: 1, seed: 3 });
  assert.deepEqual(choices.map(({ index }) => index), [0, 1, 2, 3]);
  const whole = await complete({ prompt: prompts });
  assert.deepEqual(whole.choices.map(({ text }) => text), [
    textOf(await complete({ prompt: prompts[0] })),
    textOf(await complete({ prompt: prompts[1] })),
  ]);
  const ids = [300, 301, 302];
  assert.equal(textOf(await complete({ prompt: ids })), textOf(await complete({ prompt: [ids] })));
  assert.equal((await complete({ prompt: ids })).usage.prompt_tokens, 3);
});

test("echo and logprobs score the prompt", async () => {
  const prompt = "def read(path):\n";
  const reply = await complete({ prompt, echo: true, logprobs: 2, max_tokens: 0 });
  assert.equal(textOf(reply), prompt);
  const { tokens, token_logprobs: logprobs, top_logprobs: top, text_offset: offsets } = reply.choices[0].logprobs;
  assert.equal(tokens.join(""), prompt);
  assert.equal(logprobs[0], null);
  assert.ok(logprobs.slice(1).every((each) => each <= 0));
  assert.ok(top.slice(1).every((each) => Object.keys(each).length >= 2));
  tokens.forEach((token, place) => assert.equal(prompt.slice(offsets[place]).indexOf(token), 0));
  assert.equal(reply.usage.completion_tokens, 0);
});

test("best_of returns the likeliest", async () => {
  const drawn = { temperature: 1.5, seed: 2, max_tokens: 6 };
  const best = await complete({ ...drawn, best_of: 4 });
  assert.equal(best.choices.length, 1);
  assert.equal(best.usage.completion_tokens, 24);
  const { choices } = await complete({ ...drawn, n: 4 });
  assert.ok(choices.some(({ text }) => text === textOf(best)));
});

test("a suffix is written up to, by a model that has marks for it", async () => {
  const asked = { model: "fake", prompt: "ab", max_tokens: 4, temperature: 0 };
  const plain = await busy().completions.create(asked);
  const filled = await busy().completions.create({ ...asked, suffix: "yz" });
  assert.equal(filled.usage.prompt_tokens, plain.usage.prompt_tokens + 5, "three marks and two letters");
  assert.notEqual(textOf(filled), textOf(plain));
});

test("sampling fields and stop mean what they mean in chats", async () => {
  const drawn = { temperature: 1.5, max_tokens: 24 };
  assert.equal(textOf(await complete({ ...drawn, seed: 7 })), textOf(await complete({ ...drawn, seed: 7 })));
  assert.notEqual(textOf(await complete({ ...drawn, seed: 7 })), textOf(await complete({ ...drawn, seed: 8 })));
  assert.equal(textOf(await complete({ temperature: 2, top_p: 1e-9 })), textOf(await complete()));
  const plain = textOf(await complete({ max_tokens: 48 }));
  for (const field of ["frequency_penalty", "presence_penalty"])
    assert.notEqual(textOf(await complete({ max_tokens: 48, [field]: 2 })), plain);
  const biased = await complete({ logit_bias: { 300: 100 }, logprobs: 0, max_tokens: 3 });
  assert.equal(new Set(biased.choices[0].logprobs.tokens).size, 1);
  const stopped = await complete({ max_tokens: 48, stop: [plain.slice(5, 8)] });
  assert.equal(textOf(stopped), plain.slice(0, plain.indexOf(plain.slice(5, 8))));
  assert.equal((await complete({ user: "u" }).asResponse()).headers.get("x-ferrum-ignored"), "user");
});

test("a stream is its reply in pieces", async () => {
  const events = await all(await complete({ stream: true, logprobs: 1, stream_options: { include_usage: true } }));
  const reply = await complete({ logprobs: 1 });
  assert.equal(events.flatMap(({ choices }) => choices.map(({ text }) => text)).join(""), textOf(reply));
  const logprobs = events.flatMap(({ choices }) => choices.flatMap((each) => each.logprobs?.token_logprobs ?? []));
  assert.deepEqual(logprobs, reply.choices[0].logprobs.token_logprobs);
  assert.equal(events.at(-1).usage.completion_tokens, 12);
});

const REFUSED = { prompt: [], logprobs: 6, best_of: 21, n: 129, temperature: -1, max_tokens: -1, logit_bias: { 99999999: 1 }, suffix: "x" };
for (const [param, value] of Object.entries(REFUSED)) {
  test(`a ${param} that cannot be served is refused by name`, async () => {
    await assert.rejects(complete({ [param]: value }), (error) => {
      assert.ok(error instanceof OpenAI.BadRequestError);
      assert.equal(error.param, param);
      return true;
    });
  });
}

test("embeddings come as numbers, whatever the SDK asks for on the way", async () => {
  const input = ["import os", "class A:"];
  const asked = await openai.embeddings.create({ model: MODEL, input });
  const floats = await openai.embeddings.create({ model: MODEL, input, encoding_format: "float" });
  asked.data.forEach(({ embedding, index }, place) => {
    assert.equal(index, place);
    assert.ok(Math.abs(Math.hypot(...embedding) - 1) < 1e-5);
    embedding.forEach((each, at) => assert.ok(Math.abs(each - floats.data[place].embedding[at]) < 1e-7));
  });
  assert.equal(asked.usage.total_tokens, asked.usage.prompt_tokens);
  const tokens = await openai.embeddings.create({ model: MODEL, input: [300, 301] });
  assert.equal(tokens.usage.prompt_tokens, 2);
  const packed = await openai.embeddings.create({ model: MODEL, input: "x", encoding_format: "base64" });
  assert.equal(Buffer.from(packed.data[0].embedding, "base64").length, 4 * asked.data[0].embedding.length);
  const size = asked.data[0].embedding.length;
  assert.equal((await openai.embeddings.create({ model: MODEL, input, dimensions: size, user: "u" })).data.length, 2);
  const refused = openai.embeddings.create({ model: MODEL, input, dimensions: 7 });
  await assert.rejects(refused, (error) => error.status === 400 && error.param === "dimensions");
});

test("models are listed and found", async () => {
  const listed = await all(await openai.models.list());
  assert.deepEqual(listed.map(({ id, object, owned_by: owner }) => [id, object, owner]), [[MODEL, "model", "ferrum"]]);
  assert.equal((await openai.models.retrieve(MODEL)).id, MODEL);
  await assert.rejects(openai.models.retrieve("other"), OpenAI.NotFoundError);
});
