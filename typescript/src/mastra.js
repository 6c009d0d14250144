// Mastra: threads, messages, resources and snapshots of workflows in the state of Outlast's store. Each change is one commit.
//
// Agents of the namespace: `threads` and `resources`, by id; `messages`, which says of an id where the message is; `thread/ID`, with
// a thread's `message/N` and the number of its `next` one, which every change of the thread's messages counts or confirms; and
// `workflow/NAME`, with the runs of a workflow.

import { MessageList } from '@mastra/core/agent';
import {
  calculatePagination, compareByField, createEmptyWorkflowSnapshot, filterByDateRange, getSnapshotMemoryInfo, jsonValueEquals, MastraCompositeStore,
  matchesExpectedWorkflowStatus, MemoryStorage, mergeWorkflowStepResult, normalizePerPage, storageMessageMatchesMetadataFilter, validateStorageMetadataFilter,
  WorkflowsStorage,
} from '@mastra/core/storage';

import { connect } from './index.js';
import { Table } from './table.js';

/** @typedef {import('./table.js').Change} Change */

const THREADS = 'threads';
const RESOURCES = 'resources';
const MESSAGES = 'messages';
const MESSAGE = 'message/';

/** @param {string} thread */
const agentOf = (thread) => `thread/${thread}`;

/** @param {number} number */
const messageKey = (number) => `${MESSAGE}${String(number).padStart(12, '0')}`;

/** A row as JSON has it. @param {any} row */
const rowOf = (row) => JSON.parse(JSON.stringify(row));

/** A row with its times. @param {any} row */
function dated(row) {
  const made = { ...row };
  for (const name of ['createdAt', 'updatedAt']) if (typeof made[name] === 'string') made[name] = new Date(made[name]);
  return made;
}

/** @param {any} rows */
const listed = (rows) => new MessageList().add(rows, 'memory').get.all.db();

/** A page of rows, and those after it. @param {any[]} rows @param {number} page @param {number | false | undefined} asked @param {number} usual */
function paged(rows, page, asked, usual) {
  const size = normalizePerPage(asked, usual);
  const { offset, perPage } = calculatePagination(page, asked, size);
  return { rows: rows.slice(offset, offset + size), rest: rows.slice(offset + size), about: { total: rows.length, page, perPage, hasMore: offset + size < rows.length } };
}

/**
 * Storage for `new Mastra({storage: new OutlastStorage()})`: its domains `memory` and `workflows`. It has none of the others
 * (scores, traces, the editor's): `getStore` gives undefined, and a `MastraCompositeStore` puts them elsewhere.
 */
export class OutlastStorage extends MastraCompositeStore {
  /** @param {{connection?: import('./index.js').Outlast, namespace?: string, id?: string}} [options] */
  constructor({ connection = connect(), namespace = 'mastra', id = 'outlast' } = {}) {
    super({ id, name: 'OutlastStorage' });
    const table = new Table(connection, namespace);
    this.stores = { memory: new OutlastMemory(table), workflows: new OutlastWorkflows(table) };
  }
}

/** The memory domain. Mastra refuses by name what it has not: observational memory, and copies of threads. */
class OutlastMemory extends MemoryStorage {
  supportsPartialThreadUpdate = true;

  /** @param {Table} table */
  constructor(table) {
    super();
    this._table = table;
  }

  async dangerouslyClearAll() {
    for (const agent of [THREADS, RESOURCES, MESSAGES]) await clear(this._table, agent);
    for (const agent of await this._table.agents()) if (agent.startsWith(agentOf(''))) await clear(this._table, agent, MESSAGE);
  }

  // --- threads and resources

  async getThreadById(/** @type {any} */ { threadId, resourceId }) {
    const row = await this._table.get(THREADS, threadId);
    return row === undefined || (resourceId !== undefined && row.resourceId !== resourceId) ? null : dated(row);
  }

  async saveThread(/** @type {any} */ { thread }) {
    await this._table.commit([{ agent: THREADS, key: thread.id, value: rowOf(thread) }]);
    return thread;
  }

  async updateThread(/** @type {any} */ { id, title, metadata }) {
    return update(this._table, THREADS, id, (row) => {
      if (row === undefined) throw new Error(`Thread with id ${id} not found`);
      return { ...row, ...(title !== undefined && { title }), metadata: { ...row.metadata, ...metadata }, updatedAt: new Date() };
    });
  }

  async deleteThread(/** @type {any} */ { threadId }) {
    await this._edit((await this._messages([threadId])).map(({ id }) => id), () => null);
    await this._table.commit([{ agent: THREADS, key: threadId }]);
  }

  async listThreads(/** @type {any} */ { page = 0, perPage, orderBy, filter }) {
    this.validatePaginationInput(page, perPage ?? 100);
    this.validateMetadataKeys(filter?.metadata);
    const { field, direction } = this.parseOrderBy(orderBy);
    const all = (await this._table.scan(THREADS)).map(({ value }) => dated(value));
    const fitting = all.filter(
      (thread) =>
        (!filter?.resourceId || thread.resourceId === filter.resourceId) &&
        Object.entries(filter?.metadata ?? {}).every(([name, value]) => jsonValueEquals(thread.metadata?.[name], value)),
    );
    const { rows, about } = paged(fitting.sort(compareByField(field, direction)), page, perPage, 100);
    return { threads: rows, ...about };
  }

  async getResourceById(/** @type {any} */ { resourceId }) {
    const row = await this._table.get(RESOURCES, resourceId);
    return row === undefined ? null : dated(row);
  }

  async saveResource(/** @type {any} */ { resource }) {
    await this._table.commit([{ agent: RESOURCES, key: resource.id, value: rowOf(resource) }]);
    return resource;
  }

  async updateResource(/** @type {any} */ { resourceId, workingMemory, metadata }) {
    const now = new Date();
    return update(this._table, RESOURCES, resourceId, (row = { id: resourceId, createdAt: now }) => ({
      ...row, ...(workingMemory !== undefined && { workingMemory }), metadata: { ...row.metadata, ...metadata }, updatedAt: now,
    }));
  }

  // --- messages

  async listMessages(/** @type {any} */ { threadId, ...how }) {
    const threads = [threadId].flat();
    if (threads.length === 0 || threads.some((id) => !id.trim())) throw new Error('threadId must be a non-empty string or array of non-empty strings');
    return this._list(threads, how);
  }

  async listMessagesByResourceId(/** @type {any} */ args) {
    const threads = (await this._table.agents()).filter((agent) => agent.startsWith(agentOf(''))).map((agent) => agent.slice(agentOf('').length));
    return this._list(threads, args);
  }

  async listMessagesById(/** @type {any} */ { messageIds }) {
    const rows = await Promise.all(messageIds.map(async (/** @type {string} */ id) => this._message(await this._table.get(MESSAGES, id))));
    return { messages: listed(rows.filter(Boolean).map(dated)) };
  }

  async saveMessages(/** @type {any} */ { messages }) {
    const rows = new Map(messages.map((/** @type {any} */ one) => [one.id, rowOf({ ...one, threadId: one.threadId ?? '', role: one.role ?? 'user', type: one.type ?? 'text' })]));
    await this._edit([...rows.keys()], (id) => rows.get(id));
    return { messages: listed(messages) };
  }

  async updateMessages(/** @type {any} */ { messages }) {
    const edits = new Map(messages.map((/** @type {any} */ one) => [one.id, rowOf(one)]));
    const made = await this._edit([...edits.keys()], (id, before) => {
      if (before === undefined) return undefined;
      const { content, ...edit } = edits.get(id);
      if (content !== undefined) {
        edit.content = { ...before.content, ...content };
        if (before.content?.metadata && content.metadata) edit.content.metadata = { ...before.content.metadata, ...content.metadata };
      }
      return { ...before, ...edit };
    });
    return made.map(dated);
  }

  /** @param {string[]} ids */
  async deleteMessages(ids) {
    await this._edit(ids, () => null);
  }

  /**
   * Makes messages, changes them and deletes them, in one commit. `edit` gives the new row of a message, null to delete it, and
   * undefined to leave it.
   * @param {string[]} ids @param {(id: string, before: any) => any} edit @returns {Promise<any[]>} The new rows.
   */
  _edit(ids, edit) {
    const table = this._table;
    return table.change(async () => {
      const places = await Promise.all(ids.map((id) => table.get(MESSAGES, id)));
      /** @type {Map<string, {version: number, next: number}>} What is read of a thread counts as long as this stays. */
      const heads = new Map();
      const headOf = async (/** @type {string} */ thread) => {
        const { version, value: next = 0 } = heads.has(thread) ? { version: 0 } : await table.entry(agentOf(thread), 'next');
        if (!heads.has(thread)) heads.set(thread, { version, next });
        return /** @type {{version: number, next: number}} */ (heads.get(thread));
      };
      for (const place of places) if (place) await headOf(place.thread);
      /** @type {Change[]} */
      const changes = [];
      const made = [];
      for (const [i, id] of ids.entries()) {
        const place = places[i];
        const row = edit(id, await this._message(place));
        if (row === undefined || (row === null && !place)) continue;
        if (place && row?.threadId !== place.thread) changes.push({ agent: agentOf(place.thread), key: messageKey(place.n) });
        if (row === null) {
          changes.push({ agent: MESSAGES, key: id });
          continue;
        }
        const thread = row.threadId;
        const head = await headOf(thread);
        const n = place?.thread === thread ? place.n : head.next++;
        changes.push({ agent: agentOf(thread), key: messageKey(n), value: row }, { agent: MESSAGES, key: id, value: { thread, n } });
        made.push(row);
      }
      if (changes.length === 0) return { made, changes };
      for (const [thread, { version, next }] of heads) {
        changes.push({ agent: agentOf(thread), key: 'next', value: next, expected: version });
        const { version: had, value: row } = await table.entry(THREADS, thread);
        if (row) changes.push({ agent: THREADS, key: thread, value: { ...row, updatedAt: new Date().toISOString() }, expected: had });
      }
      return { made, changes };
    });
  }

  /** @param {{thread: string, n: number} | undefined} place */
  async _message(place) {
    return place && this._table.get(agentOf(place.thread), messageKey(place.n));
  }

  /** @param {string[]} threads @returns {Promise<any[]>} */
  async _messages(threads) {
    const rows = await Promise.all([...new Set(threads)].map((thread) => this._table.scan(agentOf(thread), MESSAGE)));
    return rows.flat().map(({ value }) => dated(value));
  }

  /** @param {string[]} threads @param {any} how */
  async _list(threads, { resourceId, include = [], filter, perPage, page = 0, orderBy }) {
    this.validatePaginationInput(page, perPage ?? 40);
    const metadata = validateStorageMetadataFilter(filter?.metadata);
    const { field, direction } = this.parseOrderBy(orderBy, 'ASC');
    const isOurs = (/** @type {any} */ one) => !resourceId || one.resourceId === resourceId;
    // Of equal times, the order in which they were saved counts.
    const inOrder = (/** @type {any[]} */ rows) => rows.sort((a, b) => (direction === 'ASC' ? 1 : -1) * (Number(a[field]) - Number(b[field])));
    const all = filterByDateRange((await this._messages(threads)).filter(isOurs), (one) => one.createdAt, filter?.dateRange);
    const { rows, rest, about } = paged(inOrder(all.filter((one) => storageMessageMatchesMetadataFilter(one.content, metadata))), page, perPage, 40);
    if (perPage === 0) Object.assign(about, { total: 0, hasMore: false });
    const found = new Map(rows.map((row) => [row.id, row]));
    for (const { id, withPreviousMessages: before = 0, withNextMessages: after = 0 } of include) {
      const place = await this._table.get(MESSAGES, id);
      const around = place ? (await this._messages([place.thread])).filter(isOurs).sort((a, b) => a.createdAt - b.createdAt) : [];
      const at = around.findIndex((row) => row.id === id);
      if (at >= 0) for (const row of around.slice(Math.max(0, at - before), at + after + 1)) found.set(row.id, row);
    }
    about.hasMore &&= rest.some((row) => !found.has(row.id));
    return { messages: inOrder([...found.values()]), ...about };
  }
}

/** The workflows domain. */
class OutlastWorkflows extends WorkflowsStorage {
  /** @param {Table} table */
  constructor(table) {
    super();
    this._table = table;
  }

  supportsConcurrentUpdates() {
    return true;
  }

  async dangerouslyClearAll() {
    for (const agent of await this._names()) await clear(this._table, agent);
  }

  async updateWorkflowResults(/** @type {any} */ { workflowName, runId, stepId, result, requestContext }) {
    /** @type {Record<string, any>} */
    let context = {};
    await update(this._table, agentOfFlow(workflowName), runId, (run) => {
      if (run === undefined) return undefined;
      const snapshot = run.snapshot ?? createEmptyWorkflowSnapshot(runId);
      context = mergeWorkflowStepResult({ snapshot, stepId, result, requestContext });
      return { ...run, snapshot };
    });
    return context;
  }

  async updateWorkflowState(/** @type {any} */ { workflowName, runId, opts: { expectedStatus, ...state } }) {
    const changed = await update(this._table, agentOfFlow(workflowName), runId, (run) => {
      const snapshot = run?.snapshot ?? createEmptyWorkflowSnapshot(runId);
      return run && matchesExpectedWorkflowStatus(snapshot.status, expectedStatus) ? { ...run, snapshot: { ...snapshot, ...state } } : undefined;
    });
    return changed?.snapshot;
  }

  async persistWorkflowSnapshot(/** @type {any} */ { workflowName, runId, resourceId, snapshot, createdAt, updatedAt }) {
    const now = new Date();
    await update(this._table, agentOfFlow(workflowName), runId, (before) => ({
      workflowName, runId, resourceId: resourceId ?? before?.resourceId, snapshot, createdAt: createdAt ?? before?.createdAt ?? now, updatedAt: updatedAt ?? now,
    }));
  }

  async loadWorkflowSnapshot(/** @type {any} */ { workflowName, runId }) {
    return (await this._table.get(agentOfFlow(workflowName), runId))?.snapshot ?? null;
  }

  async listWorkflowRuns(/** @type {any} */ { workflowName, fromDate, toDate, perPage, page, resourceId, threadId, status } = {}) {
    if (page < 0) throw new Error('page must be >= 0');
    const agents = workflowName ? [agentOfFlow(workflowName)] : await this._names();
    const all = (await Promise.all(agents.map((agent) => this._table.scan(agent)))).flat().map(({ value }) => dated(value));
    const runs = filterByDateRange(all, (run) => run.createdAt, { start: fromDate, end: toDate }).filter(
      (run) =>
        (!resourceId || run.resourceId === resourceId) && (!status || run.snapshot?.status === status) &&
        (!threadId || getSnapshotMemoryInfo(run.snapshot)?.threadId === threadId),
    );
    runs.sort((a, b) => b.createdAt - a.createdAt);
    return { runs: perPage === undefined || page === undefined ? runs : paged(runs, page, perPage, runs.length).rows, total: runs.length };
  }

  async getWorkflowRunById(/** @type {any} */ { runId, workflowName }) {
    const agents = workflowName ? [agentOfFlow(workflowName)] : await this._names();
    const rows = (await Promise.all(agents.map((agent) => this._table.get(agent, runId)))).filter(Boolean).map(dated);
    return rows.sort((a, b) => b.createdAt - a.createdAt)[0] ?? null;
  }

  async deleteWorkflowRunById(/** @type {any} */ { runId, workflowName }) {
    await this._table.commit([{ agent: agentOfFlow(workflowName), key: runId }]);
  }

  async _names() {
    return (await this._table.agents()).filter((agent) => agent.startsWith(agentOfFlow('')));
  }
}

/** @param {string} workflow */
const agentOfFlow = (workflow) => `workflow/${workflow}`;

/**
 * Changes one row: `edit` gives the new one, and undefined to leave it. Gives what `edit` gave.
 * @param {Table} table @param {string} agent @param {string} key @param {(row: any) => any} edit @returns {Promise<any>}
 */
function update(table, agent, key, edit) {
  return table.change(async () => {
    const { version, value } = await table.entry(agent, key);
    const row = edit(value);
    return { made: row && dated(row), changes: row === undefined ? [] : [{ agent, key, value: rowOf(row), expected: value && version }] };
  });
}

/** @param {Table} table @param {string} agent @param {string} [prefix] */
async function clear(table, agent, prefix) {
  await table.commit((await table.keys(agent, prefix)).map((key) => ({ agent, key })));
}
