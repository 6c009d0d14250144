// Outlast: crash recovery for AI agents. Steps that are done once over all lives of a program, budgets, state, batches.

import { map as mapOn } from './batch.js';
import { runOn } from './run.js';
import { reach } from './server.js';

/** @typedef {import('./run.js').RunOptions} RunOptions */

/** A connection: where runs are. `run` and `map` of the package use the default one. */
export class Outlast {
  /** @param {import('./server.js').Place} [place] */
  constructor(place = {}) {
    this._place = place;
    /** @type {Promise<import('./server.js').Server> | undefined} */
    this._server = undefined;
  }

  /** The server, reached or started on first use. */
  server() {
    this._server ??= reach(this._place).catch((error) => {
      // The next use tries again.
      this._server = undefined;
      throw error;
    });
    return this._server;
  }

  /**
   * Opens run `id`, works in it, and leaves it: completed if `body` returns, else interrupted, so that the next start goes on.
   * @template T
   * @param {string | undefined} id Undefined: the supervisor's run, or a new one.
   * @param {RunOptions | ((run: import('./run.js').Run) => T | PromiseLike<T>)} options
   * @param {(run: import('./run.js').Run) => T | PromiseLike<T>} [body]
   * @returns {Promise<Awaited<T>>}
   */
  async run(id, options, body) {
    const [how, work] = typeof options === 'function' ? [{}, options] : [options, body];
    if (typeof work !== 'function') throw new TypeError('run wants (id, options, async (run) => …)');
    return runOn(await this.server(), id, how, work);
  }

  /**
   * Works on the items of a job, each done once over all lives.
   * @template I, T
   * @param {Iterable<I> | AsyncIterable<I>} items
   * @param {(item: I) => T | PromiseLike<T>} fn
   * @param {import('./batch.js').MapOptions<I>} options
   * @returns {import('./batch.js').Batch<I, Awaited<T>>}
   */
  map(items, fn, options) {
    return mapOn(() => this.server(), items, fn, options);
  }

  /**
   * A run as it is recorded: status, budget, why it stands as it does. Throws `UnknownRun`.
   * @param {string} id
   * @returns {Promise<any>}
   */
  async get(id) {
    return (await this.server()).ask('GET', `/v1/runs/${encodeURIComponent(id)}/summary`);
  }
}

const usual = new Outlast();

/**
 * A connection to a server at `url`, or to a private server on `store`; without a place, the default one.
 * @param {import('./server.js').Place} [place]
 * @returns {Outlast}
 */
export function connect(place) {
  return place === undefined ? usual : new Outlast(place);
}

/** @type {Outlast['run']} */
export const run = usual.run.bind(usual);
/** @type {Outlast['map']} */
export const map = usual.map.bind(usual);
/** @type {Outlast['get']} */
export const get = usual.get.bind(usual);

export { Batch, Result } from './batch.js';
export { anthropic, endpoint, fetch, openai } from './clients.js';
export { decode, encode } from './codec.js';
export { Current, current } from './context.js';
export * from './errors.js';
export { Reservation, Run } from './run.js';
export { State } from './state.js';
export { tool } from './tools.js';
