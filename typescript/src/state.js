// State: versioned values by key, which outlive every process. Inside a step or an item, changes commit with its result.

import { decode, plain } from './codec.js';
import { storage } from './context.js';
import { Conflict } from './errors.js';

/** @typedef {import('./run.js').Run} Run */

/** Values of one agent in one namespace: `run.state`, or `run.stateOf(agent, {namespace})`. */
export class State {
  /** @param {Run} run @param {string} namespace @param {string} agent */
  constructor(run, namespace, agent) {
    this._run = run;
    this._at = { namespace, agent };
  }

  /** The newest value; undefined for a key that is not there. @param {string} key @returns {Promise<any>} */
  async get(key) {
    return (await this.entry(key)).value;
  }

  /**
   * The newest value with its version; version 0 for a key that never was.
   * @param {string} key
   * @returns {Promise<{version: number, value: any}>}
   */
  async entry(key) {
    const got = await this._run._session.does('get', { ...this._at, key });
    const mine = this._here()?.mine(this._at.namespace, this._at.agent, key) ?? [];
    const last = mine.at(-1);
    const json = last === undefined ? got.value : last.value;
    return { version: got.version + mine.length, value: json === undefined ? undefined : decode(json) };
  }

  /** Sets a key, whatever its version. @param {string} key @param {unknown} value */
  async set(key, value) {
    await this._change({ ...this._at, key, value: plain(value) });
  }

  /** Deletes a key; its history stays. @param {string} key */
  async delete(key) {
    await this._change({ ...this._at, key });
  }

  /**
   * Sets a key that has the version `version` now; 0: it never was. Throws `Conflict`; inside a step, the step throws it.
   * @param {string} key @param {number} version @param {unknown} value
   */
  async compareAndSet(key, version, value) {
    await this._change({ ...this._at, key, value: plain(value), expected: version });
  }

  /**
   * Reads a value, changes it, and writes it, until nobody was first.
   * @param {string} key @param {(value: any) => unknown} change
   * @returns {Promise<any>} The new value.
   */
  async update(key, change) {
    for (;;) {
      const { version, value } = await this.entry(key);
      const changed = await change(value);
      try {
        await this.compareAndSet(key, version, changed);
        return changed;
      } catch (error) {
        if (!(error instanceof Conflict)) throw error;
      }
    }
  }

  _here() {
    const here = storage.getStore();
    return here?.isOpen && here.run === this._run ? here : undefined;
  }

  /** @param {import('./context.js').Change} change */
  async _change(change) {
    // A completed run only replays: its state is what it was.
    if (this._run._session.isReplay) return;
    const here = this._here();
    if (here) return here.add(change);
    await this._run._does('put', { changes: [change] });
  }
}
