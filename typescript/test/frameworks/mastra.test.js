// Mastra's storage: what its interface documents, beside Mastra's own storage in memory, and a workflow that another process resumes.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';

import { Mastra } from '@mastra/core';
import { InMemoryStore } from '@mastra/core/storage';
import { createStep, createWorkflow } from '@mastra/core/workflows';
import { connect } from 'outlast';
import { OutlastStorage } from 'outlast/mastra';
import { z } from 'zod';

const home = mkdtempSync(join(tmpdir(), 'outlast-mastra-'));
process.env.HOME = home;
process.env.MASTRA_TELEMETRY_DISABLED = '1';
const connection = connect({ store: join(home, 'runs.db') });
after(() => rmSync(home, { recursive: true, force: true }));

let made = 0;
const fresh = () => new OutlastStorage({ connection, namespace: `mastra-${made++}` });

/** The domain of both storages; `both` does the same in each, and holds the one to the other. */
async function pair(domain) {
  const [ours, theirs] = await Promise.all([fresh(), new InMemoryStore()].map((storage) => storage.getStore(domain)));
  const both = async (does) => {
    const answer = async (store) => {
      try {
        return bare(await does(store));
      } catch (error) {
        return { throws: error.message };
      }
    };
    const one = await answer(ours);
    assert.deepStrictEqual(one, await answer(theirs), String(does));
    return one;
  };
  return { ours, both };
}

/** An answer as JSON has it, without times that the storage itself makes. */
function bare(answer) {
  return answer === undefined ? undefined : JSON.parse(JSON.stringify(answer), (name, value) => (name === 'updatedAt' || name === 'timestamp' ? undefined : value));
}

const at = (minute) => new Date(Date.UTC(2020, 10, 27, 7, minute));
const thread = (id, minute, more = {}) => ({ id, title: `about ${id}`, resourceId: 'ann', createdAt: at(minute), updatedAt: at(minute), metadata: { n: minute, tags: ['x'] }, ...more });
const message = (id, threadId, minute, more = {}) => ({
  id, threadId, resourceId: 'ann', role: 'user', type: 'text', createdAt: at(minute), content: { format: 2, parts: [{ type: 'text', text: `said ${id}` }], metadata: { n: minute } }, ...more,
});

test('threads and resources are as in the storage in memory', async () => {
  const { both } = await pair('memory');
  for (const one of [thread('a', 3), thread('b/c', 1, { resourceId: 'bob', metadata: { n: 3 } }), thread('d', 2, { title: undefined, metadata: undefined })]) await both((s) => s.saveThread({ thread: one }));
  for (const threadId of ['a', 'b/c', 'd', 'nobody']) await both((s) => s.getThreadById({ threadId }));
  await both((s) => s.getThreadById({ threadId: 'a', resourceId: 'bob' }));
  await both((s) => s.updateThread({ id: 'a', metadata: { more: { x: 1 } } }));
  await both((s) => s.updateThread({ id: 'd', title: 'named' }));
  assert.match((await both((s) => s.updateThread({ id: 'nobody', title: 'x' }))).throws, /Thread with id nobody not found/);
  for (const how of [
    {}, { perPage: 2 }, { perPage: 2, page: 1 }, { perPage: false }, { perPage: 0 }, { orderBy: { field: 'createdAt', direction: 'ASC' } }, { filter: { resourceId: 'ann' } }, { filter: { metadata: { n: 3 } } },
    { filter: { metadata: { tags: ['x'], n: 3 } } }, { filter: { metadata: { none: 1 } } }, { page: -1 }, { filter: { metadata: { 'a-b': 1 } } },
  ]) {
    await both((s) => s.listThreads(how));
  }
  await both((s) => s.getResourceById({ resourceId: 'ann' }));
  await both((s) => s.saveResource({ resource: { id: 'ann', workingMemory: 'likes tea', metadata: { a: 1 }, createdAt: at(0), updatedAt: at(0) } }));
  await both((s) => s.updateResource({ resourceId: 'ann', metadata: { b: 2 } }));
  await both((s) => s.updateResource({ resourceId: 'ann', workingMemory: 'likes coffee' }));
  const found = await both((s) => s.getResourceById({ resourceId: 'ann' }));
  assert.deepStrictEqual([found.workingMemory, found.metadata], ['likes coffee', { a: 1, b: 2 }]);
});

test('messages are as in the storage in memory', async () => {
  const { ours, both } = await pair('memory');
  for (const id of ['a', 'b', 'c']) await both((s) => s.saveThread({ thread: thread(id, 0) }));
  const of = (threadId, ids) => ids.map((n) => message(`${threadId}${n}`, threadId, n));
  // Equal times keep the order in which the messages were saved.
  await both((s) => s.saveMessages({ messages: [...of('a', [3, 1, 2]), message('z', 'a', 1), message('y', 'a', 1)] }));
  await both((s) => s.saveMessages({ messages: [...of('b', [1, 2, 3, 4, 5]), message('other', 'b', 3, { resourceId: 'bob', role: 'assistant' })] }));
  await both((s) => s.saveMessages({ messages: [] }));
  const lists = async () => {
    for (const how of [
      {}, { perPage: 2 }, { perPage: 2, page: 1 }, { perPage: 2, page: 9 }, { perPage: false }, { perPage: 0 }, { orderBy: { field: 'createdAt', direction: 'DESC' }, perPage: 2 }, { resourceId: 'ann' },
      { filter: { dateRange: { start: at(2) } } }, { filter: { dateRange: { start: at(2), end: at(3), startExclusive: true } } }, { filter: { dateRange: { end: at(3), endExclusive: true } } },
      { filter: { metadata: { n: 1 } } }, { filter: { metadata: { 'a-b': 1 } } }, { page: -1 },
      { perPage: 0, include: [{ id: 'a2', withPreviousMessages: 1, withNextMessages: 1 }] }, { perPage: 1, include: [{ id: 'b3', withNextMessages: 9 }, { id: 'nobody' }] },
      { resourceId: 'ann', perPage: 1, include: [{ id: 'other', withPreviousMessages: 1 }] },
    ]) {
      // With messages beside those of several threads, the one in memory says of every page that more follow.
      for (const threadId of ['a', 'b', 'nobody', ...(how.include ? [] : [['a', 'b']])]) await both((s) => s.listMessages({ threadId, ...how }));
    }
    for (const ids of [[], ['b2', 'a1', 'nobody']]) await both((s) => s.listMessagesById({ messageIds: ids }));
    for (const resourceId of ['ann', 'bob', 'nobody']) await both((s) => s.listMessagesByResourceId({ resourceId, perPage: 3 }));
  };
  for (const threadId of ['', ' ', [], ['a', '']]) await both((s) => s.listMessages({ threadId }));
  await lists();
  await both((s) => s.saveMessages({ messages: [message('a2', 'a', 2, { content: { format: 2, parts: [{ type: 'text', text: 'said anew' }] } })] }));
  await both((s) => s.updateMessages({ messages: [{ id: 'a1', content: { metadata: { more: 1 } } }, { id: 'b5', threadId: 'c', role: 'assistant' }, { id: 'nobody', role: 'user' }] }));
  await both((s) => s.deleteMessages(['b1', 'nobody']));
  await lists();
  const { updatedAt } = await ours.getThreadById({ threadId: 'a' });
  assert.ok(updatedAt > at(0));
  await both((s) => s.deleteThread({ threadId: 'b' }));
  await lists();
  await both((s) => s.listMessages({ threadId: 'c' }));
  await both((s) => s.saveMessages({ messages: of('b', [7]) }));
  await both((s) => s.listMessages({ threadId: 'b' }));
  await both((s) => s.dangerouslyClearAll());
  await both((s) => s.saveMessages({ messages: of('b', [8]) }));
  await both((s) => s.listMessages({ threadId: ['a', 'b', 'c'] }));
  await both((s) => s.listThreads({}));
});

test('messages that two writers save in a thread at the same time are all there', async () => {
  const memory = await fresh().getStore('memory');
  await memory.saveThread({ thread: thread('t', 0) });
  await Promise.all(Array.from({ length: 6 }, (_, n) => memory.saveMessages({ messages: [message(`m${n}`, 't', n), message(`n${n}`, 't', n)] })));
  const { messages, total } = await memory.listMessages({ threadId: 't', perPage: false });
  assert.deepStrictEqual([total, new Set(messages.map(({ id }) => id)).size], [12, 12]);
});

test('snapshots of workflows are as in the storage in memory', async () => {
  const { both } = await pair('workflows');
  const snapshot = (runId, status) => ({ runId, status, value: {}, context: { input: { x: 1 } }, activePaths: [], activeStepsPath: {}, suspendedPaths: {}, resumeLabels: {}, waitingPaths: {}, serializedStepGraph: [] });
  for (const [workflowName, runId, minute, status] of [['w', 'r1', 1, 'running'], ['w', 'r2', 2, 'suspended'], ['v/x', 'r1', 3, 'success']]) {
    await both((s) => s.persistWorkflowSnapshot({ workflowName, runId, resourceId: minute === 1 ? 'ann' : undefined, snapshot: snapshot(runId, status), createdAt: at(minute), updatedAt: at(minute) }));
  }
  await both((s) => s.persistWorkflowSnapshot({ workflowName: 'w', runId: 'r1', snapshot: snapshot('r1', 'waiting') }));
  for (const runId of ['r1', 'r2', 'r3']) await both((s) => s.loadWorkflowSnapshot({ workflowName: 'w', runId }));
  await both((s) => s.updateWorkflowResults({ workflowName: 'w', runId: 'r1', stepId: 'one', result: { status: 'success', output: { y: 2 } }, requestContext: { who: 'ann' } }));
  await both((s) => s.updateWorkflowResults({ workflowName: 'w', runId: 'r9', stepId: 'one', result: { status: 'success' }, requestContext: {} }));
  await both((s) => s.updateWorkflowState({ workflowName: 'w', runId: 'r1', opts: { status: 'success', result: { z: 3 } } }));
  await both((s) => s.updateWorkflowState({ workflowName: 'w', runId: 'r1', opts: { status: 'running', expectedStatus: 'suspended' } }));
  await both((s) => s.updateWorkflowState({ workflowName: 'w', runId: 'r9', opts: { status: 'success' } }));
  await both((s) => s.loadWorkflowSnapshot({ workflowName: 'w', runId: 'r1' }));
  const runs = ({ runs: all, total }) => ({ total, runs: all.map(({ runId, workflowName, resourceId, snapshot: its, createdAt }) => ({ runId, workflowName, resourceId, its, createdAt })) });
  for (const how of [undefined, { workflowName: 'w' }, { status: 'suspended' }, { resourceId: 'ann' }, { fromDate: at(2) }, { fromDate: at(1), toDate: at(2) }, { page: 1, perPage: 2 }, { page: 0 }, { threadId: 't' }]) {
    await both(async (s) => runs(await s.listWorkflowRuns(how)));
  }
  for (const how of [{ runId: 'r1' }, { runId: 'r1', workflowName: 'w' }, { runId: 'r9' }]) await both(async (s) => runs({ runs: [await s.getWorkflowRunById(how)].filter(Boolean) }));
  await both((s) => s.deleteWorkflowRunById({ runId: 'r1', workflowName: 'w' }));
  await both(async (s) => runs(await s.listWorkflowRuns()));
});

test('results that steps of one run record at the same time are all kept', async () => {
  const flows = await fresh().getStore('workflows');
  await flows.persistWorkflowSnapshot({ workflowName: 'w', runId: 'r', snapshot: { runId: 'r', context: {}, status: 'running' } });
  await Promise.all(Array.from({ length: 8 }, (_, n) => flows.updateWorkflowResults({ workflowName: 'w', runId: 'r', stepId: `s${n}`, result: { status: 'success', output: n }, requestContext: {} })));
  assert.strictEqual(Object.keys((await flows.loadWorkflowSnapshot({ workflowName: 'w', runId: 'r' })).context).length, 8);
});

test('a workflow that waits is resumed by another process, which does not do its first step again', async () => {
  const done = [];
  const first = createStep({ id: 'first', inputSchema: z.object({ who: z.string() }), outputSchema: z.object({ who: z.string() }), execute: async ({ inputData }) => (done.push('first'), inputData) });
  const ask = createStep({
    id: 'ask', inputSchema: z.object({ who: z.string() }), outputSchema: z.object({ said: z.string() }), resumeSchema: z.object({ yes: z.boolean() }), suspendSchema: z.object({}),
    execute: async ({ inputData, resumeData, suspend }) => (resumeData ? { said: `${inputData.who}: ${resumeData.yes}` } : suspend({})),
  });
  const storage = fresh();
  const mastra = () => {
    const flow = createWorkflow({ id: 'flow', inputSchema: z.object({ who: z.string() }), outputSchema: z.object({ said: z.string() }) }).then(first).then(ask).commit();
    return new Mastra({ workflows: { flow }, storage, logger: false }).getWorkflow('flow');
  };
  const run = await mastra().createRun({ runId: 'r' });
  assert.strictEqual((await run.start({ inputData: { who: 'ann' } })).status, 'suspended');
  const again = await mastra().createRun({ runId: 'r' });
  const ended = await again.resume({ step: 'ask', resumeData: { yes: true } });
  assert.deepStrictEqual([ended.status, ended.result, done], ['success', { said: 'ann: true' }, ['first']]);
});

test('what the storage has not is refused by name, or is another storage\'s', async () => {
  const storage = fresh();
  const memory = await storage.getStore('memory');
  await assert.rejects(memory.getObservationalMemory('t', 'ann'), /Observational memory is not implemented by this storage adapter \(OutlastMemory\)/);
  await assert.rejects(memory.cloneThread({ sourceThreadId: 't' }), /not implemented by this storage adapter \(OutlastMemory\)/);
  assert.strictEqual(await storage.getStore('scores'), undefined);
});
