// The Vercel AI SDK on the dialects of agents: OpenAI's Responses and Anthropic's Messages.
import assert from "node:assert/strict";
import { test } from "node:test";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { Output, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const options = { baseURL: `${process.env.AGENT_URL}/v1`, apiKey: "none" };
const providers = {
  responses: {
    model: createOpenAI(options).responses("scripted"),
    providerOptions: {
      openai: { store: false, forceReasoning: true, reasoningSummary: "auto", include: ["reasoning.encrypted_content"] },
    },
  },
  messages: {
    model: createAnthropic(options)("scripted"),
    providerOptions: { anthropic: { thinking: { type: "enabled", budgetTokens: 1024 } } },
  },
};
const tools = {
  get_weather: tool({
    description: "The weather of a city.",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => `sunny in ${city}`,
  }),
};

for (const [name, provider] of Object.entries(providers)) {
  const common = { ...provider, maxRetries: 0, maxOutputTokens: 2000 };
  const agent = { ...common, prompt: "What is the weather in Paris?", tools, stopWhen: stepCountIs(3) };

  test(`${name}: an agent runs, whole and streamed`, async () => {
    const whole = await generateText(agent);
    assert.match(whole.text, /sunny in Paris$/);
    assert.deepEqual(whole.steps[0].toolCalls.map(({ input }) => input), [{ city: "Paris" }]);
    assert.ok(whole.steps[0].reasoningText.length > 0);
    assert.ok(whole.steps[0].usage.inputTokens > 20 && whole.steps[0].usage.outputTokens > 20);
    const streamed = streamText(agent);
    assert.equal(await streamed.text, whole.text);
    const steps = await streamed.steps;
    assert.equal(steps.length, whole.steps.length);
    assert.equal(steps[0].reasoningText, whole.steps[0].reasoningText);
    assert.deepEqual(steps[0].toolCalls.map(({ input }) => input), [{ city: "Paris" }]);
    assert.deepEqual(steps.map(({ finishReason }) => finishReason), ["tool-calls", "stop"]);
  });

  test(`${name}: an object is parsed`, async () => {
    const schema = z.object({ city: z.string(), degrees: z.number().int() });
    // Without knowledge of a model, the SDK asks Anthropic's API for a call with the object as arguments.
    const prompt = name === "messages" ? "a city, please" : "a city as JSON";
    const { output } = await generateText({ model: provider.model, maxRetries: 0, prompt, output: Output.object({ schema }) });
    assert.deepEqual(output, { city: "Paris", degrees: 21 });
  });

  test(`${name}: a tool can be chosen, and errors have their class`, async () => {
    const chosen = { ...agent, stopWhen: stepCountIs(1), toolChoice: { type: "tool", toolName: "get_weather" } };
    assert.equal((await generateText(chosen)).toolCalls[0].toolName, "get_weather");
    const model = name === "messages" ? createAnthropic(options)("other") : createOpenAI(options).responses("other");
    await assert.rejects(generateText({ ...common, model, prompt: "hi" }), ({ statusCode }) => statusCode === 404);
  });
}
