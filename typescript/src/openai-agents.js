// The OpenAI Agents SDK: sessions in the state of Outlast's store, and tools whose calls are done once over all lives of a run.
//
// A session is an agent of the namespace. Its keys: `item/N`, each written once, and `next`, the number of the next item.

import { decode, plain } from './codec.js';
import { current, storage } from './context.js';
import { ApprovalDenied } from './errors.js';
import { connect } from './index.js';
import { StepCall } from './steps.js';
import { Table } from './table.js';
import { tool } from './tools.js';

/** @typedef {import('./table.js').Change} Change */

const ITEM = 'item/';

/** @param {number} number */
const keyOf = (number) => `${ITEM}${String(number).padStart(12, '0')}`;

/**
 * Makes each call of a function tool durable: `new Agent({tools: [durable(refund)], …})`. A call is known by the id that the model
 * gave it. One that a death cut off is in doubt, and the model is told, unless `options` says what becomes of it. With
 * `approve: true`, a person is asked by Outlast, and the model is told of a denial.
 * @template {{name: string, invoke: (context: any, input: string, details?: any) => Promise<any>}} T
 * @param {T} made
 * @param {import('./tools.js').ToolOptions} [options]
 * @returns {T}
 */
export function durable(made, options = {}) {
  /** @type {T['invoke']} */
  const invoke = async (context, input, details) => {
    // The call is known by its id; the arguments are for people to read.
    const call = tool(async (/** @type {unknown} */ _) => recordable(await made.invoke(context, input, details)), { name: made.name, inDoubt: 'tell', ...options });
    try {
      return await call.withId(details?.toolCall?.callId, shown(input));
    } catch (error) {
      if (error instanceof ApprovalDenied) return error.message;
      throw error;
    }
  };
  return { ...made, invoke };
}

/** The outcome, or what the SDK makes of it for the model. @param {unknown} outcome */
function recordable(outcome) {
  try {
    plain(outcome);
    return outcome;
  } catch {
    return String(outcome);
  }
}

/** @param {string} input */
function shown(input) {
  try {
    return JSON.parse(input);
  } catch {
    return input;
  }
}

/**
 * A session: `runner.run(agent, input, {session: new OutlastSession('ann')})`. What a turn adds is added in one commit. Inside of
 * `run`, each operation is a step: a later life finds it done, and reads the session as the first one did. A session has one
 * writer at a time; another one gets `Conflict`.
 */
export class OutlastSession {
  /** @param {string} id @param {{connection?: import('./index.js').Outlast, namespace?: string}} [options] */
  constructor(id, { connection = connect(), namespace = 'openai_agents_js' } = {}) {
    this.id = id;
    this._table = new Table(connection, namespace);
  }

  async getSessionId() {
    return this.id;
  }

  /** The session's items, or the latest `limit` of them, oldest first. @param {number} [limit] @returns {Promise<any[]>} */
  async getItems(limit) {
    const spans = await this._step('read', async () => ({ made: spansOf(await this._numbers()), changes: [] }));
    const numbers = spans.flatMap(([first, last]) => Array.from({ length: last - first + 1 }, (_, i) => first + i));
    const wanted = limit === undefined ? numbers : limit > 0 ? numbers.slice(-limit) : [];
    if (wanted.length === 0) return [];
    const there = new Map((await this._table.scan(this.id, ITEM)).map(({ key, value }) => [key, value]));
    // One that was removed since is read by its only version.
    return Promise.all(wanted.map(async (n) => decode(there.get(keyOf(n)) ?? (await this._table.entry(this.id, keyOf(n), 1)).value)));
  }

  /** Adds items, all or none. @param {any[]} items @returns {Promise<void>} */
  async addItems(items) {
    if (items.length === 0) return;
    const values = plain(items);
    await this._step('add', async () => {
      const { next, change } = await this._next(items.length);
      return { made: next, changes: [change, ...values.map((/** @type {any} */ value, /** @type {number} */ i) => ({ agent: this.id, key: keyOf(next + i), value }))] };
    }, items);
  }

  /** Removes the newest item, and gives it. @returns {Promise<any>} */
  popItem() {
    return this._step('pop', async () => {
      const { change } = await this._next(0);
      const last = (await this._numbers()).pop();
      if (last === undefined) return { made: undefined, changes: [] };
      return { made: decode(await this._table.get(this.id, keyOf(last))), changes: [change, { agent: this.id, key: keyOf(last) }] };
    });
  }

  /** Removes all items. @returns {Promise<void>} */
  async clearSession() {
    await this._step('clear', async () => {
      const { change } = await this._next(0);
      return { made: undefined, changes: [change, ...(await this._table.keys(this.id, ITEM)).map((key) => ({ agent: this.id, key }))] };
    });
  }

  async _numbers() {
    return (await this._table.keys(this.id, ITEM)).map((key) => Number(key.slice(ITEM.length)));
  }

  /** The number of the next item, and the change that counts so many more. @param {number} more @returns {Promise<{next: number, change: Change}>} */
  async _next(more) {
    const { version, value: next = 0 } = await this._table.entry(this.id, 'next');
    return { next, change: { agent: this.id, key: 'next', value: next + more, expected: version } };
  }

  /**
   * Does `work`, as a step where the code runs in a run at this session's server.
   * @template T
   * @param {string} what
   * @param {() => Promise<{made: T, changes: Change[]}>} work
   * @param {unknown[]} args
   * @returns {Promise<T>}
   */
  async _step(what, work, ...args) {
    const run = storage.getStore()?.run;
    if (run?._session.server !== (await this._table.connection.server())) return this._table.change(work);
    const step = async () => {
      const { made, changes } = await work();
      for (const change of changes) current().add({ namespace: this._table.namespace, ...change });
      return made;
    };
    // A model decides what a session is told next: a restarted one may tell it something else.
    return new StepCall(/** @type {any} */ (run), { name: `session ${this.id}: ${what}`, mayDiverge: true }, step, args).result();
  }
}

/** Runs of numbers, as their first and their last. @param {number[]} numbers */
function spansOf(numbers) {
  /** @type {[number, number][]} */
  const spans = [];
  for (const number of numbers) {
    const last = spans[spans.length - 1];
    if (last?.[1] === number - 1) last[1] = number;
    else spans.push([number, number]);
  }
  return spans;
}
