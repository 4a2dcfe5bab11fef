// The Vercel AI SDK with its provider for servers like OpenAI's: agents, streams, tools that must be called, objects.
import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Output, ToolLoopAgent, generateText, hasToolCall, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { asked, run } from "./cases.mjs";

const provider = createOpenAICompatible({ name: "baton", baseURL: asked.url, apiKey: "none", includeUsage: true, supportsStructuredOutputs: true });
const model = provider(asked.model);
const prompt = "What is the weather in 'Oslo', and its population?";
const both = [["get_weather", { city: "Oslo" }], ["get_population", { city: "Oslo" }]];
const called = (calls) => calls.map((call) => [call.toolName, call.input]);

// Two tools; with `seen` the SDK runs them, and they note what they were called with.
function tools(seen) {
  const one = (name) => tool({
    description: "Knows it.",
    inputSchema: z.object({ city: z.string() }),
    ...(seen && { execute: async (input) => (seen.push([name, input]), "12 degrees") }),
  });
  return { get_weather: one("get_weather"), get_population: one("get_population") };
}

await run({
  "generateText": async () => {
    const result = await generateText({ model, prompt, tools: tools() });
    assert.deepEqual(called(result.toolCalls), both);
    assert.equal(result.finishReason, "tool-calls");
    assert.ok(result.reasoningText);
    assert.ok(result.usage.inputTokens > 0 && result.usage.outputTokenDetails.reasoningTokens > 0);
  },
  "generateText, several steps": async () => {
    const seen = [];
    const result = await generateText({ model, prompt, tools: tools(seen), stopWhen: stepCountIs(4) });
    assert.deepEqual(seen, both);
    assert.equal(result.steps.length, 2);
    assert.equal(result.finishReason, "stop");
    assert.ok(result.text);
  },
  "streamText": async () => {
    const result = streamText({ model, prompt, tools: tools(), onError: () => {} });
    const written = {}, kinds = new Set();
    for await (const part of result.fullStream) {
      kinds.add(part.type);
      assert.notEqual(part.type, "error", String(part.error));
      if (part.type === "tool-input-delta") written[part.id] = (written[part.id] ?? "") + part.delta;
    }
    assert.deepEqual(called(await result.toolCalls), both);
    assert.deepEqual(Object.values(written).map((text) => JSON.parse(text)), both.map(([, input]) => input));
    assert.ok(kinds.has("reasoning-delta") && kinds.has("tool-input-end"));
    assert.ok((await result.usage).totalTokens > 0);
  },
  "streamText, several steps": async () => {
    const seen = [];
    const result = streamText({ model, prompt, tools: tools(seen), stopWhen: stepCountIs(4), onError: () => {} });
    await result.consumeStream();
    assert.deepEqual(seen, both);
    assert.equal((await result.steps).length, 2);
    assert.ok(await result.text);
  },
  "ToolLoopAgent": async () => {
    const seen = [];
    const agent = new ToolLoopAgent({ model, instructions: "Know all.", tools: tools(seen) });
    const result = await agent.generate({ prompt });
    assert.deepEqual(seen, both);
    assert.ok(result.text);
  },
  "toolChoice: required": async () => {
    const result = await generateText({ model, prompt: "Hello!", tools: tools(), toolChoice: "required", stopWhen: hasToolCall("get_weather") });
    assert.ok(result.toolCalls.length >= 1);
    assert.equal(result.finishReason, "tool-calls");
  },
  "toolChoice: a tool's name": async () => {
    const result = await generateText({ model, prompt, tools: tools(), toolChoice: { type: "tool", toolName: "get_population" } });
    assert.deepEqual([...new Set(result.toolCalls.map((call) => call.toolName))], ["get_population"]);
  },
  "toolChoice: none": async () => {
    const result = await generateText({ model, prompt, tools: tools(), toolChoice: "none" });
    assert.deepEqual(result.toolCalls, []);
    assert.ok(result.text);
  },
  "Output.object": async () => {
    const output = Output.object({ schema: z.object({ city: z.string(), celsius: z.number() }) });
    const result = await generateText({ model, prompt, output });
    assert.equal(typeof result.output.celsius, "number");
  },
  "Output.object, stream": async () => {
    const output = Output.object({ schema: z.object({ city: z.string(), celsius: z.number() }) });
    const result = streamText({ model, prompt, output, onError: () => {} });
    await result.consumeStream();
    assert.equal(typeof (await result.output).celsius, "number");
  },
  "a bad request is an error with the server's words": async () => {
    const bad = { "no good name": tools().get_weather };
    await assert.rejects(generateText({ model, prompt, tools: bad, maxRetries: 0 }), (error) => {
      assert.equal(error.statusCode, 400);
      assert.match(error.message, /tools/);
      return true;
    });
  },
});
