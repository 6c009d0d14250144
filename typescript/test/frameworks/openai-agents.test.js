// The OpenAI Agents SDK as npm has it: a session and a durable tool over lives that end anywhere.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';

import { Agent, MemorySession, Runner, RunState, tool } from '@openai/agents';
import { Conflict, connect } from 'outlast';
import { durable, OutlastSession } from 'outlast/openai-agents';
import { z } from 'zod';

const home = mkdtempSync(join(tmpdir(), 'outlast-agents-'));
process.env.HOME = home;
const connection = connect({ store: join(home, 'runs.db') });
after(() => rmSync(home, { recursive: true, force: true }));

/** A model that calls a tool first, then says how many items it was given. Dies instead where it is told. */
function model(asked, dies) {
  return {
    async getResponse({ input }) {
      asked.push(input.length);
      if (dies === asked.length) throw new Error('dies');
      const usage = { requests: 1, inputTokens: 1, outputTokens: 1, totalTokens: 2 };
      const called = input.filter((item) => item.type === 'function_call_result').length;
      const said = input.filter((item) => item.role === 'user').length;
      const output = called < said
        ? [{ type: 'function_call', callId: `call_${called}`, name: 'refund', arguments: '{"who": "bob"}', status: 'completed' }]
        : [{ type: 'message', role: 'assistant', status: 'completed', content: [{ type: 'output_text', text: `saw ${input.length}` }] }];
      return { usage, output, responseId: 'resp' };
    },
  };
}

test('a turn that was cut off goes on: the tool is not called again, and the session has each item once', async () => {
  const refunded = [];
  const refund = durable(tool({
    name: 'refund', description: 'refunds', parameters: z.object({ who: z.string() }), execute: async ({ who }) => `refunded ${who} ${refunded.push(who)}`,
  }));
  const life = (text, dies) => connection.run(text, async () => {
    const agent = new Agent({ name: 'clerk', model: model([], dies), tools: [refund] });
    const done = await new Runner({ tracingDisabled: true }).run(agent, text, { session: new OutlastSession('ann', { connection }) });
    return done.finalOutput;
  });
  await assert.rejects(life('first', 1), /dies/);
  await assert.rejects(life('first', 2), /dies/);
  assert.strictEqual(await life('first'), 'saw 3');
  assert.strictEqual(await life('second'), 'saw 7');
  assert.deepStrictEqual(refunded, ['bob', 'bob']);
  const items = await new OutlastSession('ann', { connection }).getItems();
  const turn = ['message', 'function_call', 'function_call_result', 'message'];
  assert.deepStrictEqual(items.map((item) => item.type ?? 'message'), [...turn, ...turn]);
  assert.strictEqual(items[6].output.text ?? items[6].output, 'refunded bob 2');
});

test("a session does what the SDK's own does", async () => {
  const item = (n) => ({ role: 'user', content: `said ${n}` });
  const [ours, theirs] = [new OutlastSession('a/b', { connection }), new MemorySession()];
  const both = async (does) => {
    const [one, other] = [await does(ours), await does(theirs)];
    assert.deepStrictEqual(one, other);
    return one;
  };
  await both((s) => s.popItem());
  await both((s) => s.addItems([item(1), item(2)]));
  await both((s) => s.addItems([]));
  await both((s) => s.addItems([item(3)]));
  for (const limit of [undefined, 0, 1, 2, 9]) await both((s) => s.getItems(limit));
  assert.deepStrictEqual(await both((s) => s.popItem()), item(3));
  await both((s) => s.addItems([item(4)]));
  await both((s) => s.getItems());
  await both((s) => s.clearSession());
  assert.deepStrictEqual(await both((s) => s.getItems()), []);
  assert.strictEqual(await ours.getSessionId(), 'a/b');
});

test('a later life reads the session as the first one did, also what was removed since', async () => {
  const item = (n) => ({ role: 'user', content: `said ${n}` });
  const session = new OutlastSession('read', { connection });
  await session.addItems([item(1), item(2)]);
  const life = (dies) => connection.run('reads', async () => {
    const had = await session.getItems();
    await session.addItems([item(3)]);
    if (dies) throw new Error('dies');
    return [had, await session.popItem()];
  });
  await assert.rejects(life(true), /dies/);
  await session.popItem();
  await session.popItem();
  assert.deepStrictEqual(await life(false), [[item(1), item(2)], item(1)]);
  assert.deepStrictEqual(await session.getItems(), []);
});

test('of two runs that add to a session at the same time, one gets a conflict, and nothing is lost', async () => {
  const item = (n) => ({ role: 'user', content: `said ${n}` });
  const sessions = [1, 2].map(() => new OutlastSession('two', { connection }));
  const told = await Promise.allSettled(sessions.map((s, n) => connection.run(`adds-${n}`, () => s.addItems([item(n)]))));
  for (const { status, reason } of told) assert.ok(status === 'fulfilled' || reason instanceof Conflict, String(reason));
  const items = await sessions[0].getItems();
  assert.strictEqual(items.length, told.filter(({ status }) => status === 'fulfilled').length);
});

const refundOf = (execute, options) => durable(tool({ name: 'refund', description: 'refunds', parameters: z.object({ who: z.string() }), execute }), options);
const toldOf = (items) => items.filter((item) => item.type === 'function_call_result').map((item) => item.output.text ?? item.output);

/** Runs a turn, and gives what the tool's call came to for the model. */
async function turn(refund) {
  const done = await new Runner({ tracingDisabled: true }).run(new Agent({ name: 'clerk', model: model([]), tools: [refund] }), 'refund bob');
  return toldOf(done.history);
}

test('of a call that was cut off, the model is told, and the tool is not called again', async () => {
  const called = [];
  const ending = new AbortController();
  const refund = refundOf(async () => {
    called.push('bob');
    ending.abort(new Error('cut off'));
    return new Promise(() => {});
  });
  await assert.rejects(connection.run('cut', { signal: ending.signal }, () => turn(refund)), /cut off/);
  assert.match((await connection.run('cut', () => turn(refund))).join(), /^outcome unknown: refund was begun before/);
  assert.deepStrictEqual(called, ['bob']);
});

test('a person is asked before the call, and the model is told of a denial', async () => {
  const refund = refundOf(async () => assert.fail('it was denied'), { approve: true });
  const server = await connection.server();
  const answer = async () => {
    for (;;) {
      const approvals = await server.ask('GET', '/v1/approvals');
      if (approvals.length > 0) return server.ask('POST', `/v1/approvals/${approvals[0].id}`, '{"decision": "deny", "reason": "not him"}');
    }
  };
  const [told] = await Promise.all([connection.run('asked', () => turn(refund)), answer()]);
  assert.match(told.join(), /refund may not be called: denied \(not him\)/);
});

test("the SDK's own interruption is kept as a checkpoint, and goes on in a later life", async () => {
  const refunded = [];
  const refund = tool({ name: 'refund', description: 'refunds', parameters: z.object({ who: z.string() }), needsApproval: true, execute: async ({ who }) => `refunded ${refunded.push(who)}` });
  const agent = new Agent({ name: 'clerk', model: model([]), tools: [durable(refund)] });
  const runner = new Runner({ tracingDisabled: true });
  await assert.rejects(connection.run('paused', async (r) => {
    const result = await runner.run(agent, 'refund bob');
    assert.strictEqual(result.interruptions.length, 1);
    await r.checkpoint('paused', result.state.toString());
    throw new Error('dies');
  }), /dies/);
  await connection.run('paused', async (r) => {
    const state = await RunState.fromString(agent, await r.latestCheckpoint('paused'));
    for (const asked of state.getInterruptions()) state.approve(asked);
    const done = await runner.run(agent, state);
    assert.deepStrictEqual([toldOf(done.history), refunded], [['refunded 1'], ['bob']]);
  });
});
