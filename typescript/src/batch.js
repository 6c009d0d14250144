// Batches: a function over many items, each done once over all lives. A batch is a run of items, which several processes may
// work on at once.

import { limits } from './budget.js';
import { decode, identity, sha256 } from './codec.js';
import { BudgetExceeded, Conflict, DuplicateKey, errorOf, ItemFailed, LeaseLost, NoServer, OutlastError, RunHalted, Skip, StopRequested } from './errors.js';
import { isOutside, mayBeginOutage } from './outside.js';
import { delay, header } from './retry.js';
import { parentOn, Run } from './run.js';
import { program } from './server.js';
import { Session } from './session.js';
import { attempt, described, Memory } from './steps.js';
import { sleep } from './time.js';

/**
 * `job`: the batch's name, by which the next start finds it. `key`: names an item; without it, its content does.
 * `concurrency`: the most items that run at once (8). `retries`: further tries of an item. `timeout`: milliseconds a try may
 * take. `budget`: the job's, over all its lives. `content`: what of an item is its content; another one runs again.
 * `version`: of the function; with another one everything runs again. `onError`: whether a failed item stops the batch.
 * @template I
 * @typedef {{job: string, key?: (item: I) => string, concurrency?: number, retries?: import('./retry.js').Retry | number,
 *   timeout?: number, budget?: import('./budget.js').Budget, content?: (item: I) => unknown, version?: string,
 *   onError?: 'collect' | 'throw', tags?: Record<string, string>, signal?: AbortSignal}} MapOptions
 */

/** Milliseconds between two looks at an item that another process has. */
const HELD = 200;

/** Results that may wait to be read, before no further item is begun: so many for each item that runs at once, and so many more. */
const AHEAD = 4;
const AHEAD_MORE = 256;

/**
 * What became of one item.
 * @template T
 */
export class Result {
  /** @param {{key: string, index: number, status: 'done' | 'failed' | 'dead' | 'skipped', value?: any, error?: any, attempts?: number, costUsd?: number, cached?: boolean}} row */
  constructor(row) {
    /** The item's key. */
    this.key = row.key;
    /** Place of the item in the input, from 0. */
    this.index = row.index;
    /** What became of it: `done`, `failed`, `dead` or `skipped`. */
    this.status = row.status;
    /** Whether it is done. */
    this.ok = row.status === 'done';
    /** Tries that the item took. */
    this.attempts = row.attempts ?? 0;
    /** What its calls came to, in dollars. */
    this.costUsd = row.costUsd ?? 0;
    /** Whether an earlier life did it. */
    this.cached = row.cached ?? false;
    /** Why it failed, or the `Skip` that its function threw; undefined if it is done. */
    this.error = row.error;
    this._value = row.value;
  }

  /** Whether it failed or is dead. */
  get isFailed() {
    return this.status === 'failed' || this.status === 'dead';
  }

  /** What the function returned. Throws the item's error where it is not done. @returns {T} */
  get value() {
    if (this.error !== undefined) throw this.error;
    return this._value;
  }
}

/**
 * A batch: an async iterable of its results, in the order of the input. It begins with the first of them, and ends what runs
 * when nobody reads on.
 * @template I, T
 * @implements {AsyncIterable<Result<T>>}
 */
export class Batch {
  /**
   * @param {() => Promise<import('./server.js').Server>} server
   * @param {Iterable<I> | AsyncIterable<I>} items
   * @param {(item: I) => T | PromiseLike<T>} fn
   * @param {MapOptions<I>} options
   */
  constructor(server, items, fn, options) {
    if (typeof options?.job !== 'string' || options.job === '') throw new TypeError('map wants the name of its job: map(items, fn, {job: "…"})');
    if (typeof fn !== 'function') throw new TypeError('map wants a function: map(items, fn, {job: "…"})');
    this._open = server;
    this._items = items;
    /** @type {any} */
    this._fn = fn;
    this._options = options;
    this._isBegun = false;
    /** Counts of the items so far: `done` includes `cached`, which an earlier life or another process did. */
    this.stats = { total: 0, done: 0, failed: 0, dead: 0, skipped: 0, cached: 0 };
    /** @type {Result<T>[]} Results of items that failed or are dead. */
    this.failed = [];
  }

  /** All results, in the order of the input. @returns {Promise<Result<T>[]>} */
  async all() {
    const results = [];
    for await (const result of this) results.push(result);
    return results;
  }

  /** The counts in words, without those that are zero. @returns {string} */
  toString() {
    const { total, done, failed, dead, skipped } = this.stats;
    const counts = Object.entries({ failed, dead, skipped, 'not ended': total - done - failed - dead - skipped });
    return [`job ${this._options.job}: ${done} of ${total} item${total === 1 ? '' : 's'} done`, ...counts.filter(([, count]) => count > 0).map(([what, count]) => `${count} ${what}`)].join(', ');
  }

  /** @returns {AsyncGenerator<Result<T>, void, void>} */
  async *[Symbol.asyncIterator]() {
    if (this._isBegun) throw new TypeError(`job ${this._options.job}: its results are read once; keep them, for example with all()`);
    this._isBegun = true;
    const work = await Work.begin(await this._open(), this._items, this._fn, this._options);
    this.stats.total = work.items.length;
    let isWhole = false;
    try {
      for await (const result of work.results()) {
        this.stats[result.status] += 1;
        if (result.cached && result.ok) this.stats.cached += 1;
        if (result.isFailed) this.failed.push(result);
        yield result;
      }
      isWhole = true;
    } finally {
      await work.end(isWhole);
    }
  }
}

/** A batch at work. */
class Work {
  /**
   * @param {import('./server.js').Server} server @param {any} items @param {any} fn @param {MapOptions<any>} options
   */
  static async begin(server, items, fn, options) {
    options.signal?.throwIfAborted();
    const session = await Session.open(server, {
      run: options.job,
      job: options.job,
      limits: limits(options.budget),
      amend: options.budget?.amend,
      tags: options.tags,
      parent: parentOn(server, options.job),
      program: program(),
    });
    const work = new Work(session, fn, options);
    try {
      await work._read(items);
    } catch (error) {
      await session.end('interrupt');
      throw error;
    }
    return work;
  }

  /** @param {Session} session @param {any} fn @param {MapOptions<any>} options */
  constructor(session, fn, options) {
    this.session = session;
    this.run = new Run(session, { signal: options.signal });
    this.fn = fn;
    this.options = options;
    /** @type {{item: any, key: string, index: number, content: string | undefined}[]} */
    this.items = [];
    /** @type {Map<string, any>} What earlier lives recorded, by key. */
    this.recorded = new Map();
    /** @type {(Result<any> | undefined)[]} */
    this.made = [];
    /** @type {unknown} */
    this.failure = undefined;
    this.isStopping = false;
    this.next = 0;
    this.read = 0;
    /** @type {typeof this.items} Items that another process has, and those that run alone at the end. */
    this.later = [];
    /** @type {typeof this.items} */
    this.alone = [];
    /** @type {Set<object>} Items that were asked again, because their failures may have been the beginning of an outage. */
    this.doubted = new Set();
    /** Beginning of the newest try of an item that is done. */
    this.answeredAt = 0;
    /** @type {(() => void)[]} */
    this.bell = [];
  }

  /** Reads the input, and what is recorded of it. @param {any} items */
  async _read(items) {
    const { key, content, job } = this.options;
    const keys = new Set();
    for await (const item of items) {
      const text = identity(content ? content(item) : item);
      const its = key ? key(item) : sha256(text).slice(0, 32);
      if (typeof its !== 'string') throw new TypeError(`job ${job}: key wants a text, had ${typeof its}`);
      if (keys.has(its)) throw new DuplicateKey(`job ${job} has two items with the key ${JSON.stringify(its)}`, { code: 'duplicate_key', hint: 'give key: an item\'s own name' });
      keys.add(its);
      this.items.push({ item, key: its, index: this.items.length, content: text });
    }
    for await (const row of this.session.rows('items')) this.recorded.set(row.key, row);
    await this.session.does('expect_items', { items: this.items.length });
  }

  /** Results in the order of the input, as they come. */
  async *results() {
    const workers = Array.from({ length: Math.max(1, this.options.concurrency ?? 8) }, () => this._works());
    const all = Promise.all(workers).then(() => this._worksAlone());
    all.catch((error) => this._fail(error)).finally(() => this._ring());
    this.all = all.catch(() => {});
    for (; this.read < this.items.length; this.read += 1) {
      while (this.made[this.read] === undefined && this.failure === undefined) await this._rings();
      const result = this.made[this.read];
      if (result === undefined) break;
      this.made[this.read] = undefined;
      this._ring();
      if (result.isFailed && this.options.onError === 'throw') throw result.error;
      yield result;
    }
    await this.all;
    if (this.failure !== undefined) throw this.failure;
  }

  /** Finishes what runs, and leaves the job. @param {boolean} isWhole */
  async end(isWhole) {
    this.isStopping = true;
    this._ring();
    await this.all;
    this.run._isLeft = true;
    await this.session.end(isWhole ? 'complete' : 'interrupt').catch((error) => {
      if (isWhole) throw error;
    });
  }

  // --- waiting

  _ring() {
    for (const wake of this.bell.splice(0)) wake();
  }

  /** @returns {Promise<void>} */
  _rings() {
    return new Promise((resolve) => this.bell.push(resolve));
  }

  /** @param {unknown} error */
  _fail(error) {
    this.failure ??= error;
    this.isStopping = true;
    this._ring();
  }

  /** @param {Result<any>} result */
  _makes(result) {
    this.made[result.index] = result;
    this._ring();
  }

  // --- work

  /** Takes one item after the other. */
  async _works() {
    const ahead = AHEAD * (this.options.concurrency ?? 8) + AHEAD_MORE;
    while (!this.isStopping) {
      if (this.next < this.items.length && this.next - this.read > ahead) {
        await this._rings();
        continue;
      }
      const one = this.next < this.items.length ? this.items[this.next++] : undefined;
      if (one === undefined) return;
      await this._one(one, false).catch((error) => this._fail(error));
    }
  }

  /** Then those that other processes had, and those that may run only alone. */
  async _worksAlone() {
    while (!this.isStopping && this.later.length + this.alone.length > 0) {
      const held = this.later.splice(0);
      for (const one of held) await this._one(one, true);
      if (this.later.length === 0) for (const one of this.alone.splice(0)) await this._one(one, true);
      else await sleep(HELD, this.run.signal);
    }
  }

  /** @param {{item: any, key: string, index: number, content: string | undefined}} one @param {boolean} alone */
  async _one(one, alone) {
    const { key, index, content } = one;
    const known = this.recorded.get(key);
    if (known && (known.standing === 'done' || known.standing === 'skipped') && this._isSame(known, one)) {
      return this._makes(await this._ended(one, known, true));
    }
    this.run._mayGoOn();
    const claim = await this.session.does('claim_item', { key, index, content, version: this.options.version, alone });
    switch (claim.claim) {
      case 'held': return void this.later.push(one);
      case 'suspect': return void this.alone.push(one);
      case 'ended': return this._makes(await this._ended(one, { ...claim, key }, true));
      default: return this._runs(one, claim);
    }
  }

  /** @param {any} known @param {{content: string | undefined}} one */
  _isSame(known, one) {
    const differs = (/** @type {string | undefined} */ text, /** @type {string | null} */ digest) => text !== undefined && digest !== null && sha256(text) !== digest;
    return !differs(one.content, known.content) && !differs(this.options.version, known.version);
  }

  /**
   * Whether an item that failed with its provider's status is asked once more: nobody who began later was answered yet, so that
   * the failure may be the first one of an outage.
   * @param {object} one @param {unknown} error @param {number} began
   */
  _isUndecided(one, error, began) {
    if (!mayBeginOutage(error) || this.doubted.has(one)) return false;
    this.doubted.add(one);
    return this.answeredAt <= began;
  }

  /** @param {{key: string, index: number}} one @param {any} row @param {boolean} cached */
  async _ended(one, row, cached) {
    const { key } = one;
    const about = { ...told(one, { cost_nano_usd: 0, ...row }), cached };
    if (row.standing === 'skipped') return new Result({ ...about, status: 'skipped', error: new Skip('skipped in an earlier life') });
    const value = row.value ?? (await this.session.does('value', { seq: row.seq })).value;
    if (row.standing === 'done') return new Result({ ...about, status: 'done', value: decode(value?.value) });
    const { type = 'an error', message = '' } = value?.error ?? {};
    const why = row.standing === 'dead' ? 'is dead' : 'failed';
    return new Result({ ...about, status: row.standing, error: new ItemFailed(`item ${key} of job ${this.run.id} ${why}: ${type}: ${message}`, { code: 'item_failed', hint: `outlast retry ${this.run.id} --failed` }) });
  }

  /** @param {{item: any, key: string, index: number, content: string | undefined}} one @param {any} claim */
  async _runs(one, claim) {
    const { options, run, session } = this;
    const { seq } = claim;
    for (let tried = claim.tries; ; ) {
      const began = performance.now();
      let { here, made, error } = await attempt(run, { seq, tried, scope: claim.steps, within: seq, memory: new Memory() }, 'the item', options.timeout, () => this.fn(one.item));
      const refusal = refused(here, error, run.id);
      if (refusal !== undefined) {
        // It goes back to pending, whatever it returned or threw.
        await session.does('return_item', { seq }).catch(() => {});
        throw refusal;
      }
      const isAway = made === undefined && header(error, 'x-outlast-code') === 'provider_outage' && !this.isStopping;
      // Begun again, a call that may be paid would be paid twice, and nobody told: its item ends here.
      if (isAway && !here.isInDoubt) {
        // Its provider is waited for, as items are that another process has.
        await session.does('return_item', { seq });
        return void this.later.push(one);
      }
      if (made !== undefined) {
        this.answeredAt = Math.max(this.answeredAt, began);
        try {
          const value = { value: made };
          const about = await session.does('record_item', { seq, end: { done: value }, changes: here.changes });
          return this._makes(await this._ended(one, { seq, ...about, value }, false));
        } catch (e) {
          if (!(e instanceof Conflict)) throw e;
          error = e;
        }
      }
      if (error instanceof Skip) {
        const about = await session.does('record_item', { seq, end: { skipped: error.message } });
        return this._makes(new Result({ ...told(one, about), status: 'skipped', error }));
      }
      const wait = delay(options.retries, error, tried);
      if (wait === undefined && !this.isStopping && this._isUndecided(one, error, began)) {
        await session.does('return_item', { seq });
        return void this.later.push(one);
      }
      if (wait === undefined || this.isStopping) {
        if (isAway) error = inDoubt(error);
        const about = await session.does('record_item', { seq, end: { failed: { error: described(error) } } });
        const { standing } = isOutside(error) ? await session.does('spare_item', { key: one.key, seq }) : about;
        return this._makes(new Result({ ...told(one, about), status: standing, error }));
      }
      await sleep(wait, run.signal);
      await session.does('next_try', { seq });
      tried += 1;
    }
  }
}

/** @param {{key: string, index: number}} one @param {{tries: number, cost_nano_usd: number}} about */
function told({ key, index }, about) {
  return { key, index, attempts: about.tries, costUsd: about.cost_nano_usd / 1e9 };
}

/** The failure of an item of which a call may be paid and left no whole answer. @param {unknown} cause The error of its later call. */
function inDoubt(cause) {
  const hint = 'start the batch again: failed items run again; retries asks again at once';
  const error = new ItemFailed('a call was sent and got no whole answer: it may be paid, so that the item is not begun again by itself', { code: 'item_failed', hint });
  return Object.assign(error, { cause });
}

/** The error that stops a batch, where a limit refused a call of an item, or the run goes no further here. @param {import('./context.js').Current} here @param {unknown} error @param {string} job */
function refused(here, error, job) {
  if (error instanceof RunHalted || error instanceof LeaseLost || error instanceof StopRequested || error instanceof NoServer) return error;
  if (here.run.signal.aborted) return here.run.signal.reason;
  if (error instanceof OutlastError && error.code === 'admission_timeout') return error;
  if (here.refused === undefined) return undefined;
  const hint = `raise it with \`outlast budget ${job} --add-usd 1\`, then start the program again`;
  const made = errorOf(here.refused, `job ${job}: a call was refused with ${here.refused}`, hint);
  return made instanceof RunHalted || here.refused === 'admission_timeout' ? made : new BudgetExceeded(made.message, { code: here.refused });
}

/**
 * @template I, T
 * @param {() => Promise<import('./server.js').Server>} server
 * @param {Iterable<I> | AsyncIterable<I>} items
 * @param {(item: I) => T | PromiseLike<T>} fn
 * @param {MapOptions<I>} options
 * @returns {Batch<I, Awaited<T>>}
 */
export function map(server, items, fn, options) {
  return new Batch(server, items, /** @type {any} */ (fn), options);
}
