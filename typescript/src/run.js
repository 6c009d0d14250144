// Runs: an agent's task, with its journal, budget, state and lease.

import { setMaxListeners } from 'node:events';
import process from 'node:process';

import { limits, ms, nanoUsd } from './budget.js';
import { decode, identity, plain } from './codec.js';
import { Current, storage } from './context.js';
import { ApprovalDenied, errorOf, NoServer, RunNotOpen, StopRequested } from './errors.js';
import { Session } from './session.js';
import { program } from './server.js';
import { State } from './state.js';
import { Memory, resolveStep, StepCall } from './steps.js';
import { sleep } from './time.js';

/** @typedef {import('./server.js').Server} Server */
/**
 * `budget`: what the run may spend; without one 5 usd, or what the run above it may. `ifHeld`: whether the run is taken from a
 * process that lives. `from`: a point of run `id` from which a fork of it is opened. `onDivergence`: what becomes of a step
 * that earlier lives did not do while some of its name are left over. `signal` ends the run: it is left, and can be taken up
 * again.
 * @typedef {{budget?: import('./budget.js').Budget, name?: string, tags?: Record<string, string>,
 *   ifHeld?: 'throw' | 'takeover', from?: {snapshot: string} | {attempt: number} | {seq: number},
 *   onDivergence?: 'warn' | 'raise', signal?: AbortSignal}} RunOptions
 */

/** Milliseconds between two looks at a question that nobody has answered, at first and later. */
const SOON = 50;
const LATER = 1000;

/** Longest wait for room that calls in flight hold, and the pause between two tries, in milliseconds. */
const PATIENCE = 45_000;
const AGAIN = 50;

/** A run that this process has open. */
export class Run {
  /**
   * @param {Session} session
   * @param {RunOptions} options
   */
  constructor(session, options) {
    this._session = session;
    this._options = options;
    this._onDivergence = options.onDivergence ?? 'warn';
    this._memory = new Memory();
    this._isLeft = false;
    this._hasWarned = false;
    /** The run's id. */
    this.id = session.told.run;
    /** Number of this life, from 1; null where a completed run is replayed. */
    this.attempt = session.told.attempt;
    /** The run's own values. */
    this.state = new State(this, `run:${this.id}`, '');
    this._ending = new AbortController();
    // Every step that is under way listens.
    setMaxListeners(0, this._ending.signal);
    const end = (/** @type {AbortSignal} */ signal) => () => this._ending.abort(signal.reason);
    for (const signal of [session.signal, options.signal]) {
      if (signal?.aborted) end(signal)();
      signal?.addEventListener('abort', end(signal), { once: true });
    }
  }

  /** Aborted when the run is to end here: by `signal`, a person's stop, another process, or the loss of the server. */
  get signal() {
    return this._ending.signal;
  }

  /**
   * Does `fn(...args)` once over all lives, and gives its result. The result is on disk before this returns.
   * @template T
   * @template {any[]} A
   * @param {string | import('./steps.js').StepOptions} step Its name, or its options.
   * @param {(...args: A) => T | PromiseLike<T>} fn
   * @param {A} args
   * @returns {Promise<Awaited<T>>}
   */
  step(step, fn, ...args) {
    return new StepCall(this, typeof step === 'string' ? { name: step } : step, fn, args).result();
  }

  /**
   * Says what came of a step in doubt: its `result`, that it `failed`, or that it had no effect and is to `rerun`.
   * @param {string | {key: string}} step The step's name if it had no arguments, or its key as `StepInDoubt` names it.
   * @param {{result?: unknown, failed?: string, rerun?: boolean}} what
   */
  async resolve(step, what) {
    await resolveStep(this, typeof step === 'string' ? step : step.key, what);
  }

  /** Counts a turn of the agent's loop, a key once over all lives. Throws `BudgetExceeded`. @param {string | number} [key] @returns {Promise<number>} */
  async loop(key) {
    if (this._session.isReplay) return (await this.summary()).budget.find((/** @type {any} */ line) => line.unit === 'loops')?.spent ?? 0;
    return (await this._does('count_loop', { key: key === undefined ? undefined : String(key) })).loops;
  }

  /** Saves a value under a name, of which the newest counts. @param {string} name @param {unknown} value */
  async checkpoint(name, value) {
    const data = plain(value);
    // A completed run has its checkpoints.
    if (!this._session.isReplay) await this._does('save_checkpoint', { name, value: data });
  }

  /** The newest value of a checkpoint, to go on from; undefined without one. @param {string} name @returns {Promise<any>} */
  async latestCheckpoint(name) {
    const found = await this._session.does('latest_checkpoint', { name });
    if (found.seq === undefined) return undefined;
    this._memory.passOver(found.seq);
    return decode(found.value);
  }

  /** Names the run's present point, from which `run(id, {from: {snapshot: name}}, …)` forks it. @param {string} name */
  async snapshot(name) {
    await this._session.does('name_snapshot', { name });
  }

  /**
   * The state of an agent that several runs share.
   * @param {string} agent @param {{namespace?: string}} [where] @returns {State}
   */
  stateOf(agent, where = {}) {
    return new State(this, where.namespace ?? 'default', agent);
  }

  /**
   * Asks a person, and waits for the answer; the run is `waiting` meanwhile. Throws `ApprovalDenied`.
   * @param {string} tool
   * @param {unknown} [args]
   * @param {{sideEffect?: string, key?: string, timeout?: number | string}} [how] `timeout`: seconds, or text such as "2h".
   * @returns {Promise<{id: string | null, required: boolean, reason?: string, by?: string}>}
   */
  async approve(tool, args = {}, how = {}) {
    this._mayGoOn();
    const expires = how.timeout === undefined ? undefined : ms('timeout', how.timeout) / 1000;
    const question = { tool, sideEffect: how.sideEffect, arguments: plain(args), key: how.key, expiresInSeconds: expires };
    let answer = this._session.isReplay ? await this._recalled(question) : await this._session.ownRun('POST', '/v1/approvals', question);
    for (let pause = SOON; answer.status === 'pending'; pause = Math.min(pause * 1.5, LATER)) {
      await sleep(pause, this.signal);
      answer = await this._session.ownRun('GET', `/v1/approvals/${answer.id}`);
    }
    const { id = null, status, required = true, reason, decidedBy: by } = answer;
    if (status === 'approved' || !required) return { id, required, reason, by };
    throw new ApprovalDenied(`run ${this.id}: ${tool} may not be called: ${status}${reason ? ` (${reason})` : ''}`, { code: `approval_${status}`, status, reason, by, id });
  }

  /**
   * Reserves the most that a call can cost which does not go through the proxy. Waits for room that calls in flight hold.
   * Throws `BudgetExceeded`.
   * @param {{usd: number | string, tokens?: number, label?: string}} most
   * @returns {Promise<Reservation>}
   */
  async reserve({ usd, tokens = 0, label = 'reserved' }) {
    const nano = nanoUsd(usd);
    const until = Date.now() + PATIENCE;
    for (;;) {
      const held = await this._does('reserve', { label, nano_usd: nano, tokens });
      if (held.seq !== undefined) return new Reservation(this, held.seq, nano, tokens);
      if (Date.now() >= until) throw errorOf('admission_timeout', `run ${this.id}: no room for the reservation: ${held.waits_for}`, 'calls in flight hold the rest of the budget');
      await sleep(AGAIN, this.signal);
    }
  }

  /**
   * What happens in this run, from now on or from a cursor on, and as it comes.
   * @param {{after?: string}} [from]
   * @returns {AsyncGenerator<any>}
   */
  async *events({ after = 'now' } = {}) {
    const { server, told } = this._session;
    const path = `/v1/events?run=${encodeURIComponent(this.id)}&after=${encodeURIComponent(after)}`;
    const response = await server.send('GET', path, undefined, { token: told.token ?? undefined, accept: 'text/event-stream' });
    let rest = '';
    try {
      response.setEncoding('utf8');
      for await (const part of response) {
        const told = (rest + part).split('\n\n');
        rest = told.pop() ?? '';
        for (const event of told) {
          const data = /^data: (.*)$/m.exec(event)?.[1];
          if (data && !/^event: cursor$/m.test(event)) yield JSON.parse(data);
        }
      }
    } finally {
      response.destroy();
    }
  }

  /** What is recorded of the run: status, budget, why it stands as it does. @returns {Promise<any>} */
  summary() {
    return this._session.ownRun('GET', `/v1/runs/${encodeURIComponent(this.id)}/summary`);
  }

  // --- the package's own

  /** The answer that a completed run had to a question. @param {{tool: string, arguments: unknown}} question */
  async _recalled({ tool, arguments: args }) {
    const asked = await this._session.ownRun('GET', `/v1/approvals?run=${encodeURIComponent(this.id)}&status=`);
    const same = (/** @type {any} */ one) => one.tool === tool && identity(one.arguments) === identity(args);
    return asked.find(same) ?? { status: 'approved', required: false };
  }

  /** Throws if the run was left, stopped, taken or lost. */
  _mayGoOn() {
    if (this._isLeft) throw new RunNotOpen(`run ${this.id} is not open: it was left`, { code: 'run_not_open', hint: 'work inside of run(…), and await what it begins' });
    this.signal.throwIfAborted();
  }

  /**
   * A deed that opens or changes something. What is open is closed also in a run that was stopped.
   * @param {string} deed @param {Record<string, unknown>} about
   */
  async _does(deed, about) {
    if (!deed.startsWith('record')) this._mayGoOn();
    return this._session.does(deed, about);
  }

  /** @param {string} message */
  _warnOnce(message) {
    if (this._hasWarned) return;
    this._hasWarned = true;
    process.emitWarning(message, 'OutlastDivergence');
  }
}

/** Money that is held for one call. Left without `settle`, it stays charged: the call may have happened. */
export class Reservation {
  /** @param {Run} run @param {number} seq @param {number} nano @param {number} tokens */
  constructor(run, seq, nano, tokens) {
    this._run = run;
    this._seq = seq;
    this._nano = nano;
    this._tokens = tokens;
  }

  /** Charges what the call came to; without numbers, what was reserved. @param {{usd?: number | string, tokens?: number}} [cost] */
  async settle({ usd, tokens = this._tokens } = {}) {
    await this._close(usd === undefined ? this._nano : nanoUsd(usd), tokens);
  }

  /** Charges nothing, for a call that was never sent. */
  async void() {
    await this._close(undefined, 0);
  }

  /** @param {number | undefined} nano @param {number} tokens */
  async _close(nano, tokens) {
    await this._run._session.does('settle', { seq: this._seq, nano_usd: nano, tokens });
  }
}

/**
 * Opens a run, works in it, and leaves it: completed if `body` returns, else interrupted, so that the next start goes on.
 * @template T
 * @param {Server} server
 * @param {string | undefined} id
 * @param {RunOptions} options
 * @param {(run: Run) => T | PromiseLike<T>} body
 * @returns {Promise<Awaited<T>>}
 */
export async function runOn(server, id, options, body) {
  options.signal?.throwIfAborted();
  const session = await Session.open(server, {
    run: id ?? (server.isSupervisors ? process.env.OUTLAST_RUN_ID : undefined),
    limits: limits(options.budget),
    amend: options.budget?.amend,
    name: options.name,
    tags: options.tags,
    parent: parentOn(server, id),
    takeover: options.ifHeld === 'takeover',
    from: options.from,
    program: program(),
  });
  const run = new Run(session, options);
  if (session.told.by_default && session.told.created) process.stderr.write(`outlast: run ${run.id} may spend the server's default (budget: {usd: …} sets it)\n`);
  try {
    await run._memory.read(session.rows('steps'));
    const made = await storage.run(new Current(run), async () => body(run));
    run.signal.throwIfAborted();
    run._isLeft = true;
    await session.end('complete');
    return made;
  } catch (error) {
    run._isLeft = true;
    const how = error instanceof StopRequested ? 'stopped' : 'interrupt';
    // The first error counts more; where the server is gone, it finds the run without a driver.
    await session.end(how).catch((e) => {
      if (!(e instanceof NoServer)) process.emitWarning(e);
    });
    throw error;
  }
}

/** The run of this program that a new one spends the budget of, if it is at the same server. @param {Server} server @param {string | undefined} id */
export function parentOn(server, id) {
  const around = storage.getStore()?.run;
  return around && around.id !== id && around._session.server === server && !around._session.isReplay ? around.id : undefined;
}
