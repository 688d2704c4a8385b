// The openai package for Node against `motley serve`; MOTLEY_URL names the server.

import assert from "node:assert/strict";
import OpenAI from "openai";

const client = new OpenAI({
  baseURL: `${process.env.MOTLEY_URL}/v1`,
  apiKey: "unused",
  maxRetries: 0,
});
const model = (await client.models.list()).data[0].id;
const messages = [{ role: "user", content: "Say hello to a cat named Tom." }];
const options = { model, messages, max_tokens: 24, temperature: 0 };

const answer = await client.chat.completions.create(options);
assert.ok(answer.choices[0].message.content);
console.log("ok a chat is answered");

const stream = await client.chat.completions.create({
  ...options,
  stream: true,
  stream_options: { include_usage: true },
});
let text = "";
let usage = null;
for await (const chunk of stream) {
  text += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage ?? usage;
}
assert.equal(text, answer.choices[0].message.content);
assert.ok(usage.completion_tokens > 0);
console.log("ok a streamed chat is the same text");

const stopped = await client.chat.completions.create({ ...options, max_tokens: 400, stream: true });
for await (const _ of stopped) break;
console.log("ok a stream can be left");

const completion = await client.completions.create({ model, prompt: "One, two,", max_tokens: 4 });
assert.ok(completion.choices[0].text);
console.log("ok a text is continued");

const embedded = await client.embeddings.create({ model, input: ["a cat", "a dog"] });
assert.equal(embedded.data.length, 2);
assert.equal(embedded.data[0].embedding.length, embedded.data[1].embedding.length);
console.log("ok texts become vectors");

const scored = await client.chat.completions.create({ ...options, logprobs: true, top_logprobs: 2, max_tokens: 3 });
const tokens = scored.choices[0].logprobs.content;
assert.ok(tokens.length >= 1 && tokens.every((token) => token.logprob <= 0 && token.top_logprobs.length === 2));
console.log("ok tokens have their probabilities");

const weather = {
  type: "function",
  function: {
    name: "get_weather",
    description: "The weather of a city.",
    strict: true,
    parameters: {
      type: "object",
      properties: { city: { type: "string" }, days: { type: "integer" } },
      required: ["city", "days"],
      additionalProperties: false,
    },
  },
};
for (const tool_choice of ["required", { type: "function", function: { name: "get_weather" } }]) {
  const called = await client.chat.completions.create({ ...options, tools: [weather], tool_choice, max_tokens: 200 });
  assert.equal(called.choices[0].finish_reason, "tool_calls");
  const call = called.choices[0].message.tool_calls[0];
  assert.equal(call.function.name, "get_weather");
  const given = JSON.parse(call.function.arguments);
  assert.ok(typeof given.city === "string" && Number.isInteger(given.days));
}
const runner = client.chat.completions.stream({ ...options, tools: [weather], tool_choice: "required", max_tokens: 200 });
const streamed = (await runner.finalChatCompletion()).choices[0].message.tool_calls[0];
assert.ok(Number.isInteger(JSON.parse(streamed.function.arguments).days));
const free = await client.chat.completions.create({ ...options, tools: [weather], tool_choice: "auto" });
for (const call of free.choices[0].message.tool_calls ?? []) JSON.parse(call.function.arguments);
console.log("ok tools are called");

const animal = {
  type: "object",
  properties: { name: { type: "string" }, legs: { type: "integer" } },
  required: ["name", "legs"],
  additionalProperties: false,
};
const forced = await client.chat.completions.create({
  ...options,
  max_tokens: 200,
  response_format: { type: "json_schema", json_schema: { name: "animal", schema: animal, strict: true } },
});
assert.ok(Number.isInteger(JSON.parse(forced.choices[0].message.content).legs));
console.log("ok a schema is followed");

await assert.rejects(
  client.chat.completions.create({ ...options, top_p: 7 }),
  (error) => error instanceof OpenAI.BadRequestError && error.param === "top_p",
);
await assert.rejects(
  client.chat.completions.create({ ...options, model: "no-such-model" }),
  (error) => error instanceof OpenAI.NotFoundError && error.code === "model_not_found",
);
console.log("ok wrong requests are refused");
