// Frameworks as npm has them: the AI SDK's tools, LangGraph's suite for checkpointers and a graph that is killed.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';

import { Annotation, END, interrupt, START, StateGraph, Command } from '@langchain/langgraph';
import { generateText, stepCountIs, tool } from 'ai';
import { MockLanguageModelV4 } from 'ai/test';
import { connect } from 'outlast';
import { durable } from 'outlast/ai-sdk';
import { OutlastSaver } from 'outlast/langgraph';
import { z } from 'zod';

const HERE = dirname(fileURLToPath(import.meta.url));
const home = mkdtempSync(join(tmpdir(), 'outlast-frameworks-'));
process.env.HOME = home;
const outlast = connect({ store: join(home, 'runs.db') });
after(() => rmSync(home, { recursive: true, force: true }));

test("a tool of the AI SDK is called once over all lives, by its call's id", async () => {
  const called = [];
  const tools = durable({
    refund: tool({ inputSchema: z.object({ who: z.string() }), execute: async ({ who }) => `refunded ${called.push(who)}` }),
    ask: tool({ inputSchema: z.object({}) }),
  });
  assert.strictEqual(tools.ask.execute, undefined);
  const usage = { inputTokens: { total: 1 }, outputTokens: { total: 1 } };
  const answers = () => [
    { content: [{ type: 'tool-call', toolCallId: 'call_1', toolName: 'refund', input: '{"who": "bob"}' }], finishReason: { unified: 'tool-calls' }, usage, warnings: [] },
    { content: [{ type: 'text', text: 'done' }], finishReason: { unified: 'stop' }, usage, warnings: [] },
  ];
  const life = async (dies) => outlast.run('support', async () => {
    const left = answers();
    const model = new MockLanguageModelV4({ doGenerate: async () => left.shift() });
    const { text, steps } = await generateText({ model, tools, prompt: 'refund bob', stopWhen: stepCountIs(3) });
    if (dies) throw new Error('dies');
    return [text, steps[0].toolResults[0].output];
  });
  await assert.rejects(life(true), /dies/);
  assert.deepStrictEqual(await life(false), ['done', 'refunded 1']);
  assert.deepStrictEqual(called, ['bob']);
});

test("LangGraph's suite for checkpointers is green", () => {
  const vitest = join(HERE, '../../../.bin/vitest');
  const env = { ...process.env, OUTLAST_STORE: join(home, 'suite.db'), CI: '1', NO_COLOR: '1' };
  const done = spawnSync(vitest, ['run'], { cwd: HERE, env, encoding: 'utf8', timeout: 300_000 });
  assert.strictEqual(done.status, 0, `${done.stdout.slice(-4000)}\n${done.stderr.slice(-4000)}`);
  assert.match(done.stdout, /Tests +\d+ passed/);
});

test('a graph goes on from its checkpoint with another saver', async () => {
  const State = Annotation.Root({ said: Annotation({ reducer: (a, b) => [...a, ...b], default: () => [] }) });
  const done = [];
  const graph = () =>
    new StateGraph(State)
      .addNode('first', () => ({ said: [`first ${done.push('first')}`] }))
      .addNode('second', () => ({ said: [interrupt('go on?')] }))
      .addEdge(START, 'first')
      .addEdge('first', 'second')
      .addEdge('second', END)
      .compile({ checkpointer: new OutlastSaver({ connection: outlast }) });
  const config = { configurable: { thread_id: 'chat/1' } };
  await graph().invoke({ said: ['begin'] }, config);
  const ended = await graph().invoke(new Command({ resume: 'yes' }), config);
  assert.deepStrictEqual(ended.said, ['begin', 'first 1', 'yes']);
  assert.deepStrictEqual(done, ['first']);
  const saver = new OutlastSaver({ connection: outlast });
  await saver.deleteThread('chat/1');
  assert.strictEqual(await saver.getTuple(config), undefined);
});
