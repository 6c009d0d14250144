// The run, the step and the try that a piece of code runs in.

import { AsyncLocalStorage } from 'node:async_hooks';

import { sha256 } from './codec.js';
import { AlreadySettled, NoRun } from './errors.js';

/** @typedef {{namespace: string, agent: string, key: string, value?: unknown, expected?: number}} Change Its value is data of `plain`. */

/** What `current()` gives: the run, and the step or item that is open around the code. */
export class Current {
  /**
   * @param {import('./run.js').Run} run
   * @param {{step?: string, seq?: number, tried?: number, signal?: AbortSignal, scope?: string, within?: number,
   *   memory?: import('./steps.js').Memory}} [open]
   */
  constructor(run, open = {}) {
    /** The run. */
    this.run = run;
    /** The key of the open step; undefined outside of a step. */
    this.step = open.step;
    /** The number of the open step's or item's entry. */
    this.seq = open.seq;
    /** The number of the try, from 1, counted over deaths; 0 outside of steps and items. */
    this.attempt = open.tried ?? 0;
    /** Aborted when the try is to end: by its timeout, its run's signal, a person's stop. */
    this.signal = open.signal ?? run.signal;
    // Scope of the steps of an item, and the item's entry.
    this.scope = open.scope;
    this.within = open.within;
    // What is recorded of the steps of the item; undefined: the run's own.
    this.memory = open.memory;
    /** @type {Change[]} Changes of the state that commit with the result. */
    this.changes = [];
    this.isOver = false;
    /** @type {string | undefined} The code with which a limit refused a call that was made here. */
    this.refused = undefined;
    // Whether a call that was made here may be paid, and left no whole answer.
    this.isInDoubt = false;
  }

  /** A key for effects elsewhere: the same in every try and every life of this step or item. */
  get idempotencyKey() {
    return sha256(`${this.run.id}\0${this.scope ?? ''}\0${this.step ?? ''}`).slice(0, 32);
  }

  /** @param {Change} change */
  add(change) {
    if (this.isOver) throw new AlreadySettled('the step that changes the state here is over: nothing more commits with it', { code: 'already_settled' });
    const mine = this.mine(change.namespace, change.agent, change.key).length;
    // For the engine, the changes of one step are one transaction.
    this.changes.push(change.expected === undefined ? change : { ...change, expected: change.expected - mine });
  }

  /** @param {string} namespace @param {string} agent @param {string} key */
  mine(namespace, agent, key) {
    return this.changes.filter((c) => c.namespace === namespace && c.agent === agent && c.key === key);
  }

  /** Whether the code runs in a step or an item, so that its changes commit with a result. */
  get isOpen() {
    return this.seq !== undefined;
  }
}

/** @type {AsyncLocalStorage<Current>} */
export const storage = new AsyncLocalStorage();

/**
 * The run, step and try that the calling code runs in. Throws `NoRun` outside of a run.
 * @returns {Current}
 */
export function current() {
  const found = storage.getStore();
  if (found) return found;
  throw new NoRun('nothing here runs inside a run', { code: 'no_run', hint: 'call it inside of run(…), in code that was awaited there' });
}
