// LangGraph.js: long-term memory in the state of Outlast's store, in the rows that Python's `OutlastStore` has. All items are
// rows of one agent, with keys `a/b/=KEY`, where no quoted label has a `=`.

import { isDeepStrictEqual } from 'node:util';

import { BaseStore, validateNamespace } from '@langchain/langgraph-checkpoint';

import { connect } from './index.js';
import { Table } from './table.js';

const AGENT = 'items';

/** @type {Record<string, (value: any, bound: any) => boolean>} */
const OPERATORS = {
  $eq: (value, bound) => isDeepStrictEqual(value, bound),
  $ne: (value, bound) => !isDeepStrictEqual(value, bound),
  $gt: (value, bound) => Number(value) > Number(bound),
  $gte: (value, bound) => Number(value) >= Number(bound),
  $lt: (value, bound) => Number(value) < Number(bound),
  $lte: (value, bound) => Number(value) <= Number(bound),
  $in: (value, bound) => bound.some((/** @type {any} */ one) => isDeepStrictEqual(value, one)),
  $nin: (value, bound) => !OPERATORS.$in(value, bound),
};

/**
 * Items by namespace and key, for `graph.compile({store: new OutlastStore()})`. What a batch puts is on disk in one commit. A
 * search lists by namespace and filter, in the order of the keys; it has no index of meanings, and `query` orders nothing.
 */
export class OutlastStore extends BaseStore {
  /** @param {{connection?: import('./index.js').Outlast, namespace?: string}} [options] */
  constructor({ connection = connect(), namespace = 'langgraph_store' } = {}) {
    super();
    this._table = new Table(connection, namespace);
  }

  /** Performs the operations: first all that read, then all that write. @param {any} operations @returns {Promise<any>} */
  async batch(operations) {
    for (const op of operations) {
      if (op.namespace) validateNamespace(op.namespace, { allowReservedRoot: true });
      if (op.namespacePrefix) validateNamespace(op.namespacePrefix, { allowEmpty: true, allowReservedRoot: true });
    }
    const answers = await Promise.all(operations.map((/** @type {any} */ op) => this._read(op)));
    // Of several puts of one key, the last one counts.
    const puts = new Map(operations.filter(isPut).map((/** @type {any} */ op) => [keyOf(op.namespace, op.key), op.value]));
    await this._table.change(async () => ({ made: undefined, changes: await Promise.all([...puts].map(([key, value]) => this._put(key, value))) }));
    return answers;
  }

  /** @param {any} op */
  async _read(op) {
    if (isPut(op)) return null;
    if ('namespacePrefix' in op) return this._search(op);
    if ('key' in op) return item(keyOf(op.namespace, op.key), await this._table.get(AGENT, keyOf(op.namespace, op.key)));
    if ('matchConditions' in op || 'maxDepth' in op || 'limit' in op) return this._namespaces(op);
    throw new TypeError(`a store wants to get, put, search or list namespaces, had ${JSON.stringify(op)}`);
  }

  /** @param {any} op */
  async _search({ namespacePrefix, filter = {}, limit = 10, offset = 0 }) {
    const rows = await this._table.scan(AGENT, prefixOf(namespacePrefix));
    const found = rows.filter(({ value }) => Object.entries(filter).every(([name, wanted]) => fits(value.value[name], wanted)));
    return found.slice(offset, offset + limit).map(({ key, value }) => item(key, value));
  }

  /** @param {any} op */
  async _namespaces({ matchConditions = [], maxDepth, limit = Infinity, offset = 0 }) {
    const all = new Map((await this._table.keys(AGENT)).map((key) => [key.slice(0, key.indexOf('=')), placeOf(key).namespace]));
    const matching = [...all.values()].filter((namespace) => matchConditions.every((/** @type {any} */ condition) => matches(condition, namespace)));
    const cut = new Map(matching.map((namespace) => namespace.slice(0, maxDepth)).map((namespace) => [prefixOf(namespace), namespace]));
    return [...cut].sort(([a], [b]) => (a < b ? -1 : 1)).map(([, namespace]) => namespace).slice(offset, offset + limit);
  }

  /** @param {string} key @param {any} value @returns {Promise<import('./table.js').Change>} */
  async _put(key, value) {
    if (value === null) return { agent: AGENT, key };
    const { version, value: before } = await this._table.entry(AGENT, key);
    const now = new Date().toISOString().replace('Z', '+00:00');
    const row = { value, created_at: before?.created_at ?? now, updated_at: now };
    return { agent: AGENT, key, value: row, expected: before && version };
  }
}

/** @param {any} op */
const isPut = (op) => 'value' in op;

/** What Python's quoting leaves as it is, and no more. @param {string} label */
const quoted = (label) => encodeURIComponent(label).replace(/[!'()*]/g, (c) => `%${c.charCodeAt(0).toString(16).toUpperCase()}`);

/** @param {string[]} namespace */
const prefixOf = (namespace) => namespace.map((label) => `${quoted(label)}/`).join('');

/** @param {string[]} namespace @param {string} key */
const keyOf = (namespace, key) => `${prefixOf(namespace)}=${quoted(key)}`;

/** @param {string} key */
function placeOf(key) {
  const [labels, name] = key.split('=');
  return { namespace: labels.split('/').slice(0, -1).map(decodeURIComponent), key: decodeURIComponent(name) };
}

/** @param {string} key @param {any} row */
function item(key, row) {
  return row === undefined ? null : { ...placeOf(key), value: row.value, createdAt: new Date(row.created_at), updatedAt: new Date(row.updated_at) };
}

/** @param {{matchType: 'prefix' | 'suffix', path: string[]}} condition @param {string[]} namespace */
function matches({ matchType, path }, namespace) {
  const from = matchType === 'prefix' ? 0 : namespace.length - path.length;
  return path.length <= namespace.length && path.every((label, i) => label === '*' || label === namespace[from + i]);
}

/** Whether a value is equal to what a filter wants, or satisfies its operators. @param {any} value @param {any} wanted */
function fits(value, wanted) {
  const names = wanted !== null && typeof wanted === 'object' ? Object.keys(wanted) : [];
  if (!names.some((name) => name.startsWith('$'))) return isDeepStrictEqual(value, wanted);
  return names.every((name) => {
    if (!(name in OPERATORS)) throw new TypeError(`a filter wants ${Object.keys(OPERATORS).join(', ')}, had ${name}`);
    return OPERATORS[name](value, wanted[name]);
  });
}
