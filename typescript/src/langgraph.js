// LangGraph.js: a checkpointer on the state of Outlast's store. Checkpoints outlive the process, `outlast state` shows them.
//
// A thread is an agent of the namespace. Its keys: `checkpoint/NS/ID`, `channel/NS/CHANNEL/VERSION` (a channel's value is stored
// when it changes), `write/NS/ID/TASK/IDX`, and `newest/NS`, the newest checkpoint's id. A checkpoint is one commit.

import { Buffer } from 'node:buffer';

import { BaseCheckpointSaver, compareWritesSortKeys, copyCheckpoint, maxChannelVersion, TASKS, WRITES_IDX_MAP, writesSortKey } from '@langchain/langgraph-checkpoint';

import { connect } from './index.js';
import { Table } from './table.js';

export { OutlastStore } from './langgraph-store.js';

const part = encodeURIComponent;

/** @param {string} ns @param {string} channel @param {unknown} version */
const channelKey = (ns, channel, version) => `channel/${part(ns)}/${part(channel)}/${part(String(version))}`;

/** A checkpointer for `graph.compile({checkpointer: new OutlastSaver()})`. */
export class OutlastSaver extends BaseCheckpointSaver {
  /** @param {{connection?: import('./index.js').Outlast, namespace?: string, serde?: any}} [options] */
  constructor({ connection = connect(), namespace = 'langgraph', serde } = {}) {
    super(serde);
    this._table = new Table(connection, namespace);
  }

  /** @param {any} config @returns {Promise<any>} */
  async getTuple(config) {
    const { thread_id: thread, checkpoint_ns: ns = '', checkpoint_id: asked } = config.configurable ?? {};
    if (thread === undefined) return undefined;
    const id = asked ?? (await this._table.get(thread, `newest/${part(ns)}`));
    const saved = id === undefined ? undefined : await this._table.get(thread, `checkpoint/${part(ns)}/${id}`);
    return saved === undefined ? undefined : this._tuple(thread, ns, id, saved);
  }

  /** @param {any} config @param {any} [options] @returns {AsyncGenerator<any>} */
  async *list(config, options = {}) {
    const { thread_id: thread, checkpoint_ns: ns, checkpoint_id: only } = config.configurable ?? {};
    const before = options.before?.configurable?.checkpoint_id;
    let left = options.limit ?? Infinity;
    for (const agent of thread === undefined ? await this._table.agents() : [thread]) {
      const found = await this._table.scan(agent, ns === undefined ? 'checkpoint/' : `checkpoint/${part(ns)}/`);
      const rows = found.map(({ key, value }) => ({ value, ns: decodeURIComponent(key.split('/')[1]), id: key.split('/')[2] }));
      rows.sort((a, b) => (a.ns === b.ns ? (a.id < b.id ? 1 : -1) : a.ns < b.ns ? -1 : 1));
      for (const row of rows) {
        if (left <= 0) return;
        if ((only !== undefined && row.id !== only) || (before !== undefined && row.id >= before)) continue;
        const tuple = await this._tuple(agent, row.ns, row.id, row.value);
        const fits = Object.entries(options.filter ?? {}).every(([name, value]) => tuple.metadata[name] === value);
        if (!fits) continue;
        left -= 1;
        yield tuple;
      }
    }
  }

  /** @param {any} config @param {any} checkpoint @param {any} metadata @param {Record<string, string | number>} [changed] @returns {Promise<any>} */
  async put(config, checkpoint, metadata, changed = checkpoint.channel_versions) {
    const { thread_id: thread, checkpoint_ns: ns = '', checkpoint_id: parent } = config.configurable ?? {};
    if (thread === undefined) throw new Error('a checkpoint wants a thread_id in config.configurable');
    const { channel_values: values, ...bare } = copyCheckpoint(checkpoint);
    const newest = await this._table.get(thread, `newest/${part(ns)}`);
    /** @type {{key: string, value: unknown}[]} */
    const changes = [];
    for (const [channel, version] of Object.entries(changed)) {
      if (channel in values) changes.push({ key: channelKey(ns, channel, version), value: await this._dump(values[channel]) });
    }
    changes.push({ key: `checkpoint/${part(ns)}/${checkpoint.id}`, value: { checkpoint: await this._dump(bare), metadata: await this._dump(metadata), parent } });
    if (newest === undefined || newest < checkpoint.id) changes.push({ key: `newest/${part(ns)}`, value: checkpoint.id });
    await this._table.commit(changes.map((change) => ({ agent: thread, ...change })));
    return { configurable: { thread_id: thread, checkpoint_ns: ns, checkpoint_id: checkpoint.id } };
  }

  /** @param {any} config @param {any[]} writes @param {string} task @param {string} [path] */
  async putWrites(config, writes, task, path = '') {
    const { thread_id: thread, checkpoint_ns: ns = '', checkpoint_id: id } = config.configurable ?? {};
    if (thread === undefined || id === undefined) throw new Error('writes want a thread_id and a checkpoint_id in config.configurable');
    const prefix = `write/${part(ns)}/${id}/${part(task)}/`;
    const had = new Set((await this._table.scan(thread, prefix)).map(({ key }) => key));
    const changes = [];
    for (const [n, [channel, value]] of writes.entries()) {
      const idx = /** @type {Record<string, number>} */ (WRITES_IDX_MAP)[channel] ?? n;
      const key = `${prefix}${idx}`;
      // What a task has written stays; its special channels are written anew.
      if (idx < 0 || !had.has(key)) changes.push({ key, value: { task, idx, path, channel, value: await this._dump(value) } });
    }
    await this._table.commit(changes.map((change) => ({ agent: thread, ...change })));
  }

  /** @param {string} thread */
  async deleteThread(thread) {
    await this._table.commit((await this._table.keys(thread)).map((key) => ({ agent: thread, key })));
  }

  /** @param {string} thread @param {string} ns @param {string} id @param {any} saved @returns {Promise<any>} */
  async _tuple(thread, ns, id, saved) {
    const checkpoint = { ...(await this._load(saved.checkpoint)), channel_values: {} };
    const versions = Object.entries(checkpoint.channel_versions ?? {});
    const values = await Promise.all(versions.map(([channel, version]) => this._table.get(thread, channelKey(ns, channel, version))));
    for (const [n, [channel]] of versions.entries()) if (values[n] !== undefined) checkpoint.channel_values[channel] = await this._load(values[n]);
    if (checkpoint.v < 4 && saved.parent !== undefined) await this._migrate(checkpoint, thread, ns, saved.parent);
    const writes = await this._writes(thread, ns, id);
    const at = (/** @type {string} */ checkpoint_id) => ({ configurable: { thread_id: thread, checkpoint_ns: ns, checkpoint_id } });
    return {
      config: at(id),
      checkpoint,
      metadata: await this._load(saved.metadata),
      pendingWrites: await Promise.all(writes.map(async (w) => [w.task, w.channel, await this._load(w.value)])),
      ...(saved.parent !== undefined && { parentConfig: at(saved.parent) }),
    };
  }

  /** @param {string} thread @param {string} ns @param {string} id @returns {Promise<any[]>} */
  async _writes(thread, ns, id) {
    const rows = (await this._table.scan(thread, `write/${part(ns)}/${id}/`)).map(({ value }) => value);
    return rows.sort((a, b) => compareWritesSortKeys(writesSortKey(a.path, a.task, a.idx), writesSortKey(b.path, b.task, b.idx)));
  }

  /** Moves sends that an older format kept beside its parent. @param {any} checkpoint @param {string} thread @param {string} ns @param {string} parent */
  async _migrate(checkpoint, thread, ns, parent) {
    const sends = (await this._writes(thread, ns, parent)).filter((w) => w.channel === TASKS);
    checkpoint.channel_values ??= {};
    checkpoint.channel_values[TASKS] = await Promise.all(sends.map((w) => this._load(w.value)));
    checkpoint.channel_versions ??= {};
    const versions = Object.values(checkpoint.channel_versions);
    checkpoint.channel_versions[TASKS] = versions.length > 0 ? maxChannelVersion(.../** @type {number[]} */ (versions)) : this.getNextVersion(undefined);
  }

  // --- values and keys

  /** @param {any} value */
  async _dump(value) {
    const [type, bytes] = await this.serde.dumpsTyped(value);
    return type === 'json' ? [type, Buffer.from(bytes).toString('utf8')] : [type, Buffer.from(bytes).toString('base64')];
  }

  /** @param {[string, string]} dumped @returns {Promise<any>} */
  _load([type, text]) {
    return this.serde.loadsTyped(type, type === 'json' ? text : new Uint8Array(Buffer.from(text, 'base64')));
  }
}
