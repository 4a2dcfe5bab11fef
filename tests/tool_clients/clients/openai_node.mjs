// openai-node calls tools: by hand, with its runner of tools, whole and streamed, and with classes of zod.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { zodFunction, zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";
import { asked, run } from "./cases.mjs";

const client = new OpenAI({ baseURL: asked.url, apiKey: "none", maxRetries: 0 });
const model = asked.model;
const messages = [{ role: "user", content: "What is the weather in 'Oslo', and its population?" }];
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"], additionalProperties: false };
const tool = (name, strict) => ({ type: "function", function: { name, description: "Knows it.", parameters, strict } });
const tools = [tool("get_weather"), tool("get_population")];
const called = (message) => message.tool_calls.map((call) => [call.function.name, JSON.parse(call.function.arguments)]);
const both = [["get_weather", { city: "Oslo" }], ["get_population", { city: "Oslo" }]];

// A tool for the client's own runner, which notes what it was called with.
function runnable(name, seen) {
  const known = { parameters, description: "Knows it.", parse: JSON.parse };
  return { type: "function", function: { ...known, name, function: (args) => (seen.push([name, args]), "12 degrees") } };
}

await run({
  "create": async () => {
    const { choices: [choice], usage } = await client.chat.completions.create({ model, messages, tools });
    assert.deepEqual(called(choice.message), both);
    assert.equal(choice.finish_reason, "tool_calls");
    assert.ok(choice.message.tool_calls.every((call) => call.id && call.type === "function"));
    assert.equal(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens);
  },
  "create, results sent back": async () => {
    const { choices: [{ message }] } = await client.chat.completions.create({ model, messages, tools });
    const results = message.tool_calls.map((call) => ({ role: "tool", tool_call_id: call.id, content: "12" }));
    const { choices: [last] } = await client.chat.completions.create({ model, messages: [...messages, message, ...results], tools });
    assert.equal(last.finish_reason, "stop");
    assert.ok(last.message.content && !last.message.tool_calls);
  },
  "create, raw stream": async () => {
    const whole = {};
    let reason;
    for await (const { choices: [choice] } of await client.chat.completions.create({ model, messages, tools, stream: true })) {
      reason = choice.finish_reason ?? reason;
      for (const part of choice.delta.tool_calls ?? []) {
        whole[part.index] ??= { name: part.function.name, written: "" };
        whole[part.index].written += part.function.arguments ?? "";
      }
    }
    assert.deepEqual(Object.values(whole).map(({ name, written }) => [name, JSON.parse(written)]), both);
    assert.equal(reason, "tool_calls");
  },
  "stream, its events": async () => {
    const stream = client.chat.completions.stream({ model, messages, tools, stream_options: { include_usage: true } });
    const deltas = {}, done = [];
    stream.on("tool_calls.function.arguments.delta", (event) => (deltas[event.index] = (deltas[event.index] ?? "") + event.arguments_delta));
    stream.on("tool_calls.function.arguments.done", (event) => done.push([event.name, JSON.parse(event.arguments)]));
    const { choices: [choice] } = await stream.finalChatCompletion();
    assert.deepEqual(called(choice.message), both);
    assert.deepEqual(done, both);
    assert.deepEqual(Object.values(deltas).map((text) => JSON.parse(text)), both.map(([, args]) => args));
    assert.ok((await stream.totalUsage()).total_tokens > 0);
  },
  "runTools": async () => {
    const seen = [];
    const runner = client.chat.completions.runTools({ model, messages, tools: both.map(([name]) => runnable(name, seen)) });
    assert.ok(await runner.finalContent());
    assert.deepEqual(seen, both);
    assert.equal(runner.allChatCompletions().length, 2);
  },
  "runTools, stream": async () => {
    const seen = [];
    const runner = client.chat.completions.runTools({ model, messages, stream: true, tools: both.map(([name]) => runnable(name, seen)) });
    assert.ok(await runner.finalContent());
    assert.deepEqual(seen, both);
  },
  "parse, zodFunction": async () => {
    const strict = zodFunction({ name: "get_weather", parameters: z.object({ city: z.string() }) });
    const { choices: [choice] } = await client.chat.completions.parse({ model, messages, tools: [strict] });
    assert.deepEqual(choice.message.tool_calls.map((call) => call.function.parsed_arguments), [{ city: "Oslo" }]);
  },
  "parse, zodResponseFormat": async () => {
    const response_format = zodResponseFormat(z.object({ city: z.string(), celsius: z.number() }), "weather");
    const { choices: [choice] } = await client.chat.completions.parse({ model, messages, response_format });
    assert.equal(typeof choice.message.parsed.celsius, "number");
  },
  "tool_choice: required": async () => {
    const question = [{ role: "user", content: "Hello!" }];
    const { choices: [choice] } = await client.chat.completions.create({ model, messages: question, tools, tool_choice: "required" });
    assert.ok(choice.message.tool_calls.length >= 1);
    assert.equal(choice.finish_reason, "tool_calls");
  },
  "tool_choice: a function's name": async () => {
    const tool_choice = { type: "function", function: { name: "get_population" } };
    const { choices: [choice] } = await client.chat.completions.create({ model, messages, tools, tool_choice });
    assert.deepEqual([...new Set(called(choice.message).map(([name]) => name))], ["get_population"]);
  },
  "tool_choice: none": async () => {
    const { choices: [choice] } = await client.chat.completions.create({ model, messages, tools, tool_choice: "none" });
    assert.ok(!choice.message.tool_calls);
    assert.notEqual(choice.finish_reason, "tool_calls");
  },
  "parallel_tool_calls: false": async () => {
    const { choices: [choice] } = await client.chat.completions.create({ model, messages, tools, parallel_tool_calls: false });
    assert.equal(choice.message.tool_calls.length, 1);
  },
  "n: 2, stream": async () => {
    const stream = client.chat.completions.stream({ model, messages, tools, n: 2 });
    const { choices } = await stream.finalChatCompletion();
    assert.deepEqual(choices.map((choice) => called(choice.message)), [both, both]);
    assert.equal(new Set(choices.flatMap((choice) => choice.message.tool_calls.map((call) => call.id))).size, 4);
  },
  "strict tools": async () => {
    const strict = [tool("get_weather", true), tool("get_population", true)];
    const { choices: [choice] } = await client.chat.completions.create({ model, messages, tools: strict });
    assert.deepEqual(called(choice.message), both);
  },
  "a bad tool is BadRequestError": async () => {
    const bad = [{ type: "function", function: { name: "no good name", parameters } }];
    await assert.rejects(client.chat.completions.create({ model, messages, tools: bad }), (error) => {
      assert.ok(error instanceof OpenAI.BadRequestError);
      assert.equal(error.param, "tools.0.function.name");
      return true;
    });
  },
});
