// LangGraph's store: the semantics that its interface documents, beside LangGraph's own store in memory, and in a graph.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';

import { Annotation, END, InMemoryStore, START, StateGraph } from '@langchain/langgraph';
import { connect } from 'outlast';
import { OutlastStore } from 'outlast/langgraph';

const home = mkdtempSync(join(tmpdir(), 'outlast-store-'));
process.env.HOME = home;
const connection = connect({ store: join(home, 'runs.db') });
after(() => rmSync(home, { recursive: true, force: true }));

let made = 0;
const fresh = () => new OutlastStore({ connection, namespace: `store-${made++}` });

/** What a store answers, without times, in an order of our own. */
const seen = (items) => items.map(({ namespace, key, value }) => JSON.stringify([namespace, key, value])).sort();

const LABELS = ['users', 'a b', 'ä/=%', "it's (me)!*"];
const ITEMS = LABELS.flatMap((label, i) => [
  { namespace: [label], key: 'one', value: { n: i, kind: 'odd', deep: { x: [i] } } },
  { namespace: [label, 'notes'], key: `k/${i}=`, value: { n: i + 10, kind: i % 2 ? 'odd' : 'even' } },
  { namespace: ['users', 'notes', label], key: 'three', value: { n: -i, none: null } },
]);

test('gets, searches, filters and lists of namespaces are as in the store in memory', async () => {
  const [ours, theirs] = [fresh(), new InMemoryStore()];
  const both = async (does, see) => {
    const [one, other] = [see(await does(ours)), see(await does(theirs))];
    assert.deepStrictEqual(one, other, String(does));
    return one;
  };
  for (const store of [ours, theirs]) await store.batch(ITEMS);
  const none = await both((s) => s.get(['users'], 'nobody'), (item) => item);
  assert.strictEqual(none, null);
  for (const { namespace, key } of ITEMS) await both((s) => s.get(namespace, key), (item) => seen([item]));
  for (const prefix of [[], ...ITEMS.map(({ namespace }) => namespace), ['user'], ['users', 'note']]) {
    assert.ok((await both((s) => s.search(prefix, { limit: 99 }), seen)).length > 0 || prefix[0] === 'user' || prefix[1] === 'note');
  }
  for (const filter of [
    { kind: 'odd' }, { kind: 'odd', n: 1 }, { n: { $gt: 1 } }, { n: { $gte: 1, $lt: 11 } }, { n: { $lte: 0 } }, { kind: { $ne: 'odd' } }, { n: { $eq: 10 } },
    { n: { $in: [1, 10] } }, { kind: { $nin: ['odd'] } }, { none: null }, { missing: 1 }, { missing: { $gt: 0 } },
  ]) {
    await both((s) => s.search([], { filter, limit: 99 }), seen);
  }
  for (const how of [
    {}, { prefix: ['users'] }, { prefix: ['*', 'notes'] }, { suffix: ['notes'] }, { suffix: ['notes', '*'] }, { maxDepth: 1 }, { prefix: ['users'], maxDepth: 2 },
    { prefix: ['users'], suffix: ['notes'] }, { prefix: ['nobody'] }, { prefix: ['a', 'b', 'c', 'd'] },
  ]) {
    await both((s) => s.listNamespaces(how), (namespaces) => namespaces.map((one) => JSON.stringify(one)).sort());
  }
});

test('pages are disjoint and complete, and keep their order', async () => {
  const store = fresh();
  await store.batch(ITEMS);
  assert.strictEqual((await store.search([])).length, 10);
  const pages = [];
  for (let offset = 0; offset < ITEMS.length; offset += 5) pages.push(...(await store.search([], { limit: 5, offset })));
  assert.deepStrictEqual(pages, await store.search([], { limit: 99 }));
  assert.strictEqual(new Set(seen(pages)).size, ITEMS.length);
  const all = await store.listNamespaces({ limit: 99 });
  assert.deepStrictEqual([...(await store.listNamespaces({ limit: 4 })), ...(await store.listNamespaces({ limit: 99, offset: 4 }))], all);
});

test('a batch reads first, then writes in one commit, and its last put counts', async () => {
  const store = fresh();
  const at = { namespace: ['a'], key: 'k' };
  await store.put(['a'], 'gone', { x: 1 });
  const answers = await store.batch([
    { ...at, value: { x: 1 } }, at, { ...at, value: { x: 2 } }, { namespacePrefix: ['a'], limit: 10, offset: 0 }, { namespace: ['a'], key: 'gone', value: null },
  ]);
  assert.deepStrictEqual([answers[0], answers[1], answers[2], answers[4]], [null, null, null, null]);
  assert.deepStrictEqual(answers[3].map(({ key }) => key), ['gone']);
  assert.deepStrictEqual((await store.search(['a'])).map(({ key, value }) => [key, value]), [['k', { x: 2 }]]);
  await assert.rejects(store.batch([{ ...at, value: { x: 3 } }, { namespace: [], key: 'k', value: {} }]), { name: 'InvalidNamespaceError' });
  assert.deepStrictEqual((await store.get(['a'], 'k')).value, { x: 2 });
});

test('a put keeps the time of the first one, and what was deleted begins anew', async () => {
  const store = fresh();
  const put = async (value) => {
    await store.put(['t'], 'k', value);
    return store.get(['t'], 'k');
  };
  const [first, second] = [await put({ n: 1 }), await put({ n: 2 })];
  assert.ok(first.createdAt instanceof Date && second.updatedAt instanceof Date);
  assert.deepStrictEqual(second.createdAt, first.createdAt);
  await store.delete(['t'], 'k');
  assert.strictEqual(await store.get(['t'], 'k'), null);
  assert.deepStrictEqual(await store.listNamespaces(), []);
  assert.deepStrictEqual((await put({ n: 3 })).value, { n: 3 });
});

test('what a store does not take is refused', async () => {
  const store = fresh();
  for (const namespace of [[], ['langgraph'], ['a.b'], ['']]) await assert.rejects(store.put(namespace, 'k', {}), { name: 'InvalidNamespaceError' });
  await store.put(['a'], 'k', { n: 1 });
  await assert.rejects(store.search(['a'], { filter: { n: { $near: 1 } } }), /a filter wants \$eq, .*, had \$near/);
  await assert.rejects(store.batch([{ what: 'is this' }]), /a store wants to get, put, search or list/);
});

test('rows have the keys of the Python store, and nodes of a graph share the memory over lives', async () => {
  const State = Annotation.Root({ seen: Annotation() });
  const graph = () =>
    new StateGraph(State)
      .addNode('node', async (_, config) => {
        const had = await config.store.get(["it's", 'me'], 'a/b');
        await config.store.put(["it's", 'me'], 'a/b', { n: (had?.value.n ?? 0) + 1 });
        return { seen: had?.value.n ?? 0 };
      })
      .addEdge(START, 'node')
      .addEdge('node', END)
      .compile({ store: new OutlastStore({ connection }) });
  assert.strictEqual((await graph().invoke({})).seen, 0);
  assert.strictEqual((await graph().invoke({})).seen, 1);
  const { keys } = await (await connection.server()).ask('GET', '/v1/state/keys?namespace=langgraph_store&agent=items');
  assert.deepStrictEqual(keys.map(({ key }) => key), ['it%27s/me/=a%2Fb']);
});
