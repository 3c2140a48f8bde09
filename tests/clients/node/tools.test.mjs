// Tools and structured output: the official SDK's helpers, and the Vercel AI SDK.
import assert from "node:assert/strict";
import { test } from "node:test";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Output, generateText, stepCountIs, streamText, tool } from "ai";
import { zodFunction, zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";
import { client } from "./kit.mjs";

const baseURL = `${process.env.AGENT_URL}/v1`;
const openai = client({ baseURL });
const model = "scripted";
const City = z.object({ city: z.string(), degrees: z.number().int() });
const asked = (content) => [{ role: "user", content }];
const question = asked("What is the weather in Paris?");
const weather = {
  type: "function",
  function: {
    name: "get_weather",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
};

test("a call is streamed as it is sent whole", async () => {
  const whole = await openai.chat.completions.create({ model, messages: question, tools: [weather] });
  const folded = await openai.chat.completions.stream({ model, messages: question, tools: [weather] }).finalChatCompletion();
  const calls = ({ choices: [{ message }] }) => message.tool_calls.map((call) => call.function);
  assert.deepEqual(calls(whole).map((call) => JSON.parse(call.arguments)), [{ city: "Paris" }]);
  assert.deepEqual(calls(folded).map(({ name, arguments: text }) => ({ name, arguments: text })), calls(whole));
  assert.equal(folded.choices[0].finish_reason, "tool_calls");
});

test("the runner calls a function and returns the answer", async () => {
  const called = [];
  const tools = [
    {
      type: "function",
      function: {
        ...weather.function,
        parse: JSON.parse,
        function: (args) => (called.push(args), "sunny"),
      },
    },
  ];
  const runner = openai.chat.completions.runTools({ model, messages: question, tools });
  assert.match(await runner.finalContent(), /sunny$/);
  assert.deepEqual(called, [{ city: "Paris" }]);
});

test("parse helpers read arguments and formats", async () => {
  const tools = [zodFunction({ name: "city", parameters: City })];
  const parsed = await openai.chat.completions.parse({ model, messages: question, tools });
  assert.deepEqual(parsed.choices[0].message.tool_calls[0].function.parsed_arguments, { city: "Paris", degrees: 21 });
  const response_format = zodResponseFormat(City, "city");
  const formed = await openai.chat.completions.parse({ model, messages: asked("a city as JSON"), response_format });
  assert.deepEqual(formed.choices[0].message.parsed, { city: "Paris", degrees: 21 });
});

const provider = createOpenAICompatible({ name: "ferrum", baseURL, supportsStructuredOutputs: true, includeUsage: true });
const stop = stepCountIs(3);
const tools = {
  get_weather: tool({
    description: "The weather of a city.",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => `sunny in ${city}`,
  }),
};

test("the Vercel AI SDK runs an agent, whole and streamed", async () => {
  const options = { model: provider(model), prompt: "What is the weather in Paris?", tools, stopWhen: stop };
  const whole = await generateText(options);
  assert.match(whole.text, /sunny in Paris$/);
  assert.deepEqual(whole.steps[0].toolCalls.map(({ input }) => input), [{ city: "Paris" }]);
  assert.ok(whole.steps[0].reasoningText.length > 0);
  const streamed = streamText(options);
  assert.equal(await streamed.text, whole.text);
});

test("the Vercel AI SDK parses an object", async () => {
  const { output } = await generateText({
    model: provider(model),
    prompt: "a city as JSON",
    output: Output.object({ schema: City }),
  });
  assert.deepEqual(output, { city: "Paris", degrees: 21 });
});
