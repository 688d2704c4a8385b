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

await assert.rejects(
  client.chat.completions.create({ ...options, top_p: 7 }),
  (error) => error instanceof OpenAI.BadRequestError && error.param === "top_p",
);
await assert.rejects(
  client.chat.completions.create({ ...options, model: "no-such-model" }),
  (error) => error instanceof OpenAI.NotFoundError && error.code === "model_not_found",
);
console.log("ok wrong requests are refused");
