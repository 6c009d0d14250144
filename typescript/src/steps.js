// Steps: functions that are done once over all lives of a run. A step is found recorded; or opened, run, recorded, and tried
// again.

import { decode, identity, plain, sha256, shown } from './codec.js';
import { Current, storage } from './context.js';
import { AlreadySettled, Conflict, DuplicateKey, OutlastError, RunCompleted, StepDiverged, StepFailed, StepInDoubt, StepTimeout, Unkeyable } from './errors.js';
import { delay } from './retry.js';
import { sleep, timed } from './time.js';

/** @typedef {import('./run.js').Run} Run */
/**
 * `name`: the step's name. `key`: what it is known by; without one, its name, arguments and place among equal steps.
 * `retries`: further tries, see `Retry`. `timeout`: milliseconds a try may take. `atMostOnce`: its beginning is on disk before
 * it begins, and if it was cut off or threw, the next life throws `StepInDoubt`. `mayDiverge`: later lives may do other steps of
 * the name.
 * @typedef {{name: string, key?: string, retries?: import('./retry.js').Retry | number, timeout?: number, atMostOnce?: boolean,
 *   mayDiverge?: boolean}} StepOptions
 */
/** @typedef {{seq: number, key: string, state: string, value?: any}} Recorded */

/** Characters kept of a stack, from its beginning. */
const STACK = 16 << 10;

/** Longest key that inner steps repeat. */
const LONG_KEY = 200;

/** Steps that earlier lives recorded, and which of them this life has asked for. */
export class Memory {
  constructor() {
    /** @type {Map<string, Recorded>} */
    this._byKey = new Map();
    /** @type {Map<string, Set<string>>} Keys of done steps that were not asked for, by their name. */
    this._unused = new Map();
    /** @type {Map<string, Set<number>>} Places that are taken, by the key without a place. */
    this._taken = new Map();
    /** @type {Set<string>} */
    this._explicit = new Set();
    this._inFlight = 0;
    this._isConcurrent = false;
  }

  /** @param {AsyncIterable<Recorded>} rows */
  async read(rows) {
    for await (const row of rows) this.note(row);
    return this;
  }

  /** @param {Recorded} row */
  note(row) {
    this._byKey.set(row.key, row);
    const name = nameOf(row.key);
    if (row.state !== 'done' || name === undefined) return;
    if (!this._unused.has(name)) this._unused.set(name, new Set());
    this._unused.get(name)?.add(row.key);
  }

  /** Takes the key of a step that begins: the first free place among equals. @param {string} base */
  take(base) {
    const taken = this._taken.get(base) ?? new Set();
    this._taken.set(base, taken);
    let place = 0;
    while (taken.has(place)) place += 1;
    taken.add(place);
    return place === 0 ? base : `${base}#${place}`;
  }

  /** @param {string} key @param {string} run */
  takeExplicit(key, run) {
    if (this._explicit.has(key)) {
      throw new DuplicateKey(`run ${run} has two steps with the key ${JSON.stringify(key)} in one life`, { code: 'duplicate_key', hint: 'give each step a key of its own' });
    }
    this._explicit.add(key);
    return key;
  }

  /** Gives a key back, as its step came to nothing. @param {string} key */
  giveBack(key) {
    if (this._explicit.delete(key)) return;
    const [, base, place] = /^(.*\))(?:#(\d+))?$/s.exec(key) ?? [];
    this._taken.get(base)?.delete(Number(place ?? 0));
  }

  /** @param {string} key */
  find(key) {
    const found = this._byKey.get(key);
    if (found) this._unused.get(nameOf(key) ?? '')?.delete(key);
    return found;
  }

  /** The oldest done step of a name that was not asked for, where no two steps ran side by side. @param {string} name */
  leftOver(name) {
    const keys = this._unused.get(name);
    if (this._isConcurrent || !keys?.size) return undefined;
    return { row: /** @type {Recorded} */ (this._byKey.get(/** @type {string} */ (keys.values().next().value))), count: keys.size };
  }

  /** Nothing recorded before `seq` is left over: the program goes on from what it saved there. @param {number} seq */
  passOver(seq) {
    for (const row of this._byKey.values()) if (row.seq < seq) this._unused.get(nameOf(row.key) ?? '')?.delete(row.key);
  }

  begins() {
    this._inFlight += 1;
    this._isConcurrent ||= this._inFlight > 1;
  }

  ends() {
    this._inFlight -= 1;
  }
}

/** @param {string} key */
function nameOf(key) {
  return /^(.*)\([0-9a-f]{16}\)(#\d+)?$/s.exec(key)?.[1];
}

/** @param {string} name @param {unknown[]} args */
export function baseOf(name, args) {
  try {
    return `${name}(${sha256(identity(args)).slice(0, 16)})`;
  } catch (error) {
    if (!(error instanceof Unkeyable)) throw error;
    throw new Unkeyable(`step ${name} has no key: ${error.message.split('\n')[0]}`, { code: 'unkeyable', hint: error.hint });
  }
}

/**
 * One try of a step or an item. Gives what it made as data, or what it threw: what cannot be recorded fails it before anything is
 * written.
 * @param {Run} run
 * @param {ConstructorParameters<typeof Current>[1] & {}} open
 * @param {string} what @param {number | undefined} timeout @param {() => unknown} work
 * @returns {Promise<{here: Current, made?: any, error?: unknown}>}
 */
export async function attempt(run, open, what, timeout, work) {
  const late = () => new StepTimeout(`${what} took longer than its timeout of ${timeout} ms`, { code: 'step_timeout' });
  const timing = timed(timeout, [open.signal ?? run.signal], late);
  const here = new Current(run, { ...open, signal: timing.signal });
  try {
    return { here, made: plain(await timing.race(storage.run(here, async () => work()))) };
  } catch (error) {
    return { here, error };
  } finally {
    here.isOver = true;
    timing.clear();
  }
}

/** One call of a step. */
export class StepCall {
  /**
   * @param {Run} run
   * @param {StepOptions} options
   * @param {(...args: any[]) => any} fn
   * @param {any[]} args
   */
  constructor(run, options, fn, args) {
    if (typeof options.name !== 'string' || options.name === '') throw new TypeError('a step wants a name first');
    if (typeof fn !== 'function') throw new TypeError(`step ${options.name} wants a function, had ${typeof fn}`);
    this.run = run;
    this.options = options;
    this.fn = fn;
    this.args = args;
    const around = storage.getStore();
    this.around = around?.run === run ? around : undefined;
    const outer = this.around?.step;
    // Inner steps of one outer step are equals among themselves only.
    this.name = outer === undefined ? options.name : `${outer.length > LONG_KEY ? sha256(outer).slice(0, 16) : outer}/${options.name}`;
    this.memory = this.around?.memory ?? run._memory;
    this.key = '';
  }

  shown() {
    return `${this.name}(${shown(this.args, 40).join(', ')})`;
  }

  /** The step's result: recorded, or made now. */
  async result() {
    const memory = this.memory;
    memory.begins();
    this.key = this.options.key !== undefined ? memory.takeExplicit(this._explicit(), this.run.id) : memory.take(baseOf(this.name, this.args));
    try {
      return await this._found();
    } catch (error) {
      memory.giveBack(this.key);
      throw error;
    } finally {
      memory.ends();
    }
  }

  /** A key of the caller's own, below the step that is open around it. */
  _explicit() {
    const outer = this.around?.step;
    return outer === undefined ? /** @type {string} */ (this.options.key) : `${outer}/${this.options.key}`;
  }

  async _found() {
    const { run, options } = this;
    const found = this.memory.find(this.key);
    if (found?.state === 'done') return this._recorded(found);
    if (run._session.isReplay) {
      if (found?.state === 'failed') throw this._failedBefore(await this._value(found));
      throw new RunCompleted(`run ${run.id} is completed, and step ${this.shown()} is not recorded in it`, { code: 'run_completed', hint: 'open a run with another id, to do more' });
    }
    run._mayGoOn();
    if (options.atMostOnce && found) this._checkDoubt(found.state, await this._value(found), found.seq);
    if (!found && options.key === undefined && !options.mayDiverge) await this._checkDivergence();
    return this._life();
  }

  async _life() {
    const { run, options } = this;
    for (;;) {
      const begun = await run._does('begin_step', {
        key: this.key,
        scope: this.around?.scope,
        within: this.around?.within,
        at_most_once: options.atMostOnce,
        retries: options.retries !== undefined || undefined,
      });
      if (begun.state === 'done') return this._recorded(begun);
      if (begun.state === 'in_doubt') this._checkDoubt('open', undefined, begun.seq);
      const tried = begun.tries || 1;
      const open = { step: this.key, seq: begun.seq, tried, signal: this.around?.signal, scope: this.around?.scope, within: this.around?.within, memory: this.memory };
      let { here, made, error } = await attempt(run, open, `step ${this.name}`, options.timeout, () => this.fn(...this.args));
      try {
        if (made !== undefined) {
          await run._does('record', { seq: begun.seq, value: { args: shown(this.args), value: made }, changes: here.changes });
          return decode(made);
        }
      } catch (e) {
        error = e;
      }
      if (isNoOutcome(error, run)) throw error;
      const wait = delay(options.retries, error, tried);
      const failure = { args: shown(this.args), error: described(error) };
      await run._does('record', { seq: begun.seq, failed: true, again: wait !== undefined, value: failure });
      if (options.atMostOnce) this.memory.note({ seq: begun.seq, key: this.key, state: 'failed', value: failure });
      if (wait === undefined) throw error;
      await sleep(wait, this.around?.signal ?? run.signal);
    }
  }

  /** @param {Recorded} row */
  async _recorded(row) {
    return decode((await this._value(row))?.value);
  }

  /** @param {Recorded} row */
  async _value(row) {
    return row.value ?? (await this.run._session.does('value', { seq: row.seq })).value;
  }

  /** @param {any} recorded */
  _failedBefore(recorded) {
    const { type = 'an error', message = '' } = recorded?.error ?? {};
    return new StepFailed(`step ${this.shown()} threw ${type} when run ${this.run.id} was completed: ${message}`, { code: 'step_failed', hint: 'a completed run replays, and runs nothing again; open a run with another id' });
  }

  /**
   * Refuses a step that may happen once and was begun before. Returns if a person said to run it again.
   * @param {string} state @param {any} recorded @param {number} seq
   */
  _checkDoubt(state, recorded, seq) {
    const { run } = this;
    let came = '';
    if (state === 'failed') {
      if (recorded?.resolved === 'rerun') return;
      const { type = 'an error', message = '' } = recorded?.error ?? {};
      if (recorded?.resolved === 'failed') throw new StepFailed(`step ${this.shown()} of run ${run.id} failed, as was said of it: ${message}`, { code: 'step_failed' });
      came = ` and threw ${type}: ${message}`;
    }
    const error = new StepInDoubt(`step ${this.shown()} of run ${run.id} was begun before${came}, and may have had its effect`, {
      code: 'step_in_doubt',
      hint: `look whether it had, then say so: outlast resolve ${run.id} '${this.key}' --result JSON, --failed WHY or --rerun; or run.resolve({key: ${JSON.stringify(this.key)}}, …)`,
    });
    throw Object.assign(error, { key: this.key, seq });
  }

  /** Tells of a step that is new while recorded ones of its name are left over: the program may have changed. */
  async _checkDivergence() {
    const { run } = this;
    // Steps that are called side by side have all been called by then.
    await sleep(0);
    const left = this.memory.leftOver(this.name);
    if (left === undefined) return;
    const had = (await this._value(left.row))?.args ?? [];
    const message = `step ${this.shown()} was not done by earlier lives of run ${run.id}, which have ${left.count} of its name left unused, such as ${this.name}(${had.join(', ')})`;
    if (run._onDivergence === 'raise') {
      throw new StepDiverged(message, { code: 'step_diverged', hint: 'make the program do the same steps again, or give the step a key' });
    }
    run._warnOnce(message);
  }
}

/**
 * Whether an error says that this process may not go on, and not what came of the step: nothing is recorded then, and the
 * next life runs the step again.
 * @param {unknown} error @param {Run} run
 */
export function isNoOutcome(error, run) {
  if (run._session.signal.aborted || run._options.signal?.aborted) return true;
  return error instanceof OutlastError && !(error instanceof Conflict) && ['no_server', 'lease_lost', 'instance_dead', 'unknown_session', 'already_taken', 'already_settled', 'unknown_entry', 'stop_requested'].includes(error.code);
}

/** @param {any} error */
export function described(error) {
  const type = error?.constructor?.name ?? typeof error;
  return { type, message: String(error?.message ?? error).slice(0, 4096), traceback: String(error?.stack ?? '').slice(0, STACK) };
}

/**
 * Says what came of a step in doubt.
 * @param {Run} run
 * @param {string} key
 * @param {{result?: unknown, failed?: string, rerun?: boolean}} what
 */
export async function resolveStep(run, key, what) {
  if (Object.keys(what).length !== 1) throw new TypeError('resolve wants one of result, failed and rerun');
  const found = run._memory.find(key);
  const value = what.rerun
    ? { args: [], resolved: 'rerun' }
    : what.failed !== undefined
      ? { args: [], resolved: 'failed', error: { type: 'StepFailed', message: what.failed } }
      : { args: [], resolved: 'done', value: plain(what.result) };
  const failed = what.rerun === true || what.failed !== undefined;
  try {
    const { seq } = await run._does('resolve_step', { key, seq: found?.seq, failed, value });
    run._memory.note({ seq, key, state: failed ? 'failed' : 'done', value });
  } catch (error) {
    if (!(error instanceof AlreadySettled)) throw error;
    throw new StepInDoubt(`step ${key} of run ${run.id} is not in doubt: its result is recorded`, { code: 'step_in_doubt' });
  }
}
