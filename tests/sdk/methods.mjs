// Every method of the official npm clients that asks a model: what each gives, a JSON line each, and the bodies that
// its answers came in. Base URLs and keys are those of the environment.
import { writeSync } from "node:fs";
import OpenAI from "openai";
import Anthropic from "@anthropic-ai/sdk";
import { embed, embedMany, generateText, jsonSchema, Output, streamText, tool } from "ai";
import { createOpenAI } from "@ai-sdk/openai";
import { createAnthropic } from "@ai-sdk/anthropic";

const bodies = [];
/** `fetch` that keeps each answer's body, as it came. */
const witnessed = async (url, init) => {
  const answer = await fetch(url, init);
  const body = await answer.text();
  bodies.push(body);
  return new Response(body, { status: answer.status, headers: answer.headers });
};

/** In each life that many more methods, and then kill -9. */
const lives = Number(process.env.DIE_EVERY ?? 0) * Number(process.env.OUTLAST_ATTEMPT ?? 0);
let said = 0;
const say = (method, result) => {
  writeSync(1, JSON.stringify({ method, result, bodies: bodies.splice(0) }) + "\n");
  said += 1;
  if (said === lives) process.kill(process.pid, "SIGKILL");
};
const all = async (stream) => {
  const parts = [];
  for await (const part of stream) parts.push(part);
  return parts;
};

const openai = new OpenAI({ fetch: witnessed });
const anthropic = new Anthropic({ fetch: witnessed });
const origin = process.env.ANTHROPIC_BASE_URL;
const aiOpenai = createOpenAI({ baseURL: process.env.OPENAI_BASE_URL, fetch: witnessed });
const aiAnthropic = createAnthropic({ baseURL: `${origin}/v1`, fetch: witnessed });

const model = "gpt-4o-mini";
const claude = "claude-haiku-4-5";
const user = (content) => [{ role: "user", content }];
const parameters = { type: "object", properties: { at: { type: "string" } } };
const shape = { type: "object", properties: { n: { type: "integer" } }, required: ["n"], additionalProperties: false };
const TOOL = 'work\nmock: tool look {"at": "a.txt"}\nmock: reply all is well';
const object = (what) => `count ${what}\nmock: reply {"n": 7}`;
const max_tokens = 60;

// --- openai: chat
const tools = [{ type: "function", function: { name: "look", parameters } }];
const chat = openai.chat.completions;
say("chat.create", await chat.create({ model, max_tokens, messages: user("whole") }));
say("chat.create, tools", await chat.create({ model, max_tokens, messages: user(TOOL), tools }));
say("chat.create, format", await chat.create({
  model, max_tokens, messages: user(object("whole")),
  response_format: { type: "json_schema", json_schema: { name: "count", strict: true, schema: shape } },
}));
say("chat.create, stream", await all(await chat.create({ model, max_tokens, messages: user("streamed"), stream: true })));
say("chat.create, stream with usage", await all(await chat.create({
  model, max_tokens, messages: user("streamed, counted"), stream: true, stream_options: { include_usage: true },
})));
say("chat.stream", await chat.stream({ model, max_tokens, messages: user("helped"), stream: true }).finalChatCompletion());
say("chat.runTools", await chat.runTools({
  model, max_tokens, messages: user(TOOL),
  tools: [{ type: "function", function: { name: "look", parameters, parse: JSON.parse, function: () => "fine" } }],
}).finalContent());
say("chat.parse", await chat.parse({
  model, max_tokens, messages: user(object("parsed")),
  response_format: { type: "json_schema", json_schema: { name: "count", strict: true, schema: shape } },
}));

// --- openai: responses
const asked = { model, max_output_tokens: max_tokens };
const responses = openai.responses;
const first = await responses.create({ ...asked, input: "remember me" });
say("responses.create", first);
say("responses.create, goes on", await responses.create({ ...asked, input: "and now", previous_response_id: first.id }));
say("responses.create, stream", await all(await responses.create({ ...asked, input: "streamed", stream: true })));
say("responses.stream", await responses.stream({ ...asked, input: "helped" }).finalResponse());
say("responses.create, tools", await responses.create({
  ...asked, input: TOOL, tools: [{ type: "function", name: "look", parameters, strict: false }],
}));
say("responses.parse", await responses.parse({
  ...asked, input: object("parsed"), text: { format: { type: "json_schema", name: "count", strict: true, schema: shape } },
}));
say("responses.retrieve", await responses.retrieve(first.id));
say("responses.inputItems.list", (await responses.inputItems.list(first.id)).data);

// --- openai: the rest
say("embeddings.create", await openai.embeddings.create({ model: "text-embedding-3-small", input: ["one", "two"] }));
say("models.list", (await openai.models.list()).data);

// --- anthropic
const messages = anthropic.messages;
const claudeTools = [{ name: "look", input_schema: parameters }];
say("messages.create", await messages.create({ model: claude, max_tokens, messages: user("whole") }));
say("messages.create, tools", await messages.create({ model: claude, max_tokens, messages: user(TOOL), tools: claudeTools }));
say("messages.create, stream", await all(await messages.create({ model: claude, max_tokens, messages: user("streamed"), stream: true })));
say("messages.stream", await messages.stream({ model: claude, max_tokens, messages: user("helped") }).finalMessage());
say("messages.countTokens", await messages.countTokens({ model: claude, messages: user("counted") }));
say("beta.messages.create", await anthropic.beta.messages.create({
  model: claude, max_tokens, messages: user("beta"), betas: ["context-1m-2025-08-07"],
}));
say("beta.messages.toolRunner", await anthropic.beta.messages.toolRunner({
  model: claude, max_tokens, messages: user(TOOL),
  tools: [{ type: "custom", name: "look", input_schema: parameters, run: () => "fine", parse: (x) => x }],
}));
say("anthropic.models.list", (await anthropic.models.list()).data);

// --- Vercel's ai, over the same three APIs
const told = (r) => ({ text: r.text, usage: r.usage, finish: r.finishReason, calls: r.toolCalls, steps: r.steps?.length });
const look = tool({ description: "looks", inputSchema: jsonSchema(parameters), execute: async () => "fine" });
for (const [name, of] of [["responses", aiOpenai(model)], ["chat", aiOpenai.chat(model)], ["messages", aiAnthropic(claude)]]) {
  const settings = { model: of, maxOutputTokens: max_tokens, maxRetries: 0 };
  say(`ai.generateText, ${name}`, told(await generateText({ ...settings, prompt: `ai ${name}` })));
  const streamed = streamText({ ...settings, prompt: `ai streamed ${name}` });
  const text = (await all(streamed.textStream)).join("");
  say(`ai.streamText, ${name}`, { text, usage: await streamed.usage, finish: await streamed.finishReason });
  say(`ai.generateText with a tool, ${name}`, told(await generateText({
    ...settings, prompt: TOOL, tools: { look }, stopWhen: ({ steps }) => steps.length >= 3,
  })));
  if (name !== "messages") {
    const made = await generateText({ ...settings, prompt: object(name), output: Output.object({ schema: jsonSchema(shape) }) });
    say(`ai.generateText of an object, ${name}`, made.output);
  }
}
const embedding = aiOpenai.embedding("text-embedding-3-small");
say("ai.embed", await embed({ model: embedding, value: "three" }).then((r) => [r.embedding.length, r.usage]));
say("ai.embedMany", await embedMany({ model: embedding, values: ["four", "five"] }).then((r) => [r.embeddings, r.usage]));
say("responses.delete", (await responses.delete(first.id)) ?? null);
