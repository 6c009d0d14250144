// A session: this program's hold on one run, through a server. It lives by a connection: if the process is killed, the
// server sees it closed and takes the process for dead.

import { LeaseLost, StopRequested } from './errors.js';

/** @typedef {import('./server.js').Server} Server */

export class Session {
  /**
   * Opens a run. Throws `RunHeld`, `BudgetChanged` and the like.
   * @param {Server} server
   * @param {Record<string, unknown>} wanted
   * @returns {Promise<Session>}
   */
  static async open(server, wanted) {
    const response = await server.send('POST', '/v1/run_sessions', JSON.stringify(wanted));
    const session = new Session(server, response);
    await session._first;
    return session;
  }

  /**
   * @private
   * @param {Server} server
   * @param {import('node:http').IncomingMessage} response
   */
  constructor(server, response) {
    this.server = server;
    this._response = response;
    this._stopping = new AbortController();
    this._isEnded = false;
    let rest = '';
    this._first = new Promise((resolve, reject) => {
      const lost = () => {
        const error = server.gone();
        reject(error);
        if (!this._isEnded) this._stopping.abort(error);
      };
      response.setEncoding('utf8');
      response.on('close', lost).on('error', lost);
      response.on('data', (part) => {
        const lines = (rest + part).split('\n');
        rest = lines.pop() ?? '';
        for (const line of lines.filter(Boolean)) {
          const told = JSON.parse(line);
          if (told.session !== undefined) resolve((this.told = told));
          else this._hear(told.word);
        }
      });
    });
    // It is awaited by `open`; a connection that is lost later is heard by the signal.
    this._first.catch(() => {});
    /** @type {{session: string, run: string, no: number, status: string, created: boolean, by_default: boolean,
     *   attempt: number | null, iteration: number, is_driver: boolean, token: string | null}} */
    this.told = /** @type {any} */ (undefined);
  }

  /** Aborted when a person stops the run, another process takes it, or the server is gone. */
  get signal() {
    return this._stopping.signal;
  }

  /** @param {string} word */
  _hear(word) {
    const run = this.told?.run;
    if (word === 'stop') this._stopping.abort(new StopRequested(`run ${run} was asked to stop`, { code: 'stop_requested', hint: 'open it again to go on' }));
    if (word === 'lost') this._stopping.abort(new LeaseLost(`the lease of run ${run} is lost`, { code: 'lease_lost', hint: 'another process may drive the run now; open it again' }));
  }

  /** Whether a completed run is replayed: nothing new begins in it. */
  get isReplay() {
    return this.told.attempt === null;
  }

  /**
   * Does one deed, and gives what came of it. Values are what `plain` made of them.
   * @param {string} deed
   * @param {Record<string, unknown>} about
   * @returns {Promise<any>}
   */
  async does(deed, about) {
    return this.server.ask('POST', `/v1/run_sessions/${this.told.session}`, JSON.stringify({ [deed]: about }));
  }

  /**
   * Reads all rows, a page after the other.
   * @param {'steps' | 'items'} deed
   * @returns {AsyncGenerator<any>}
   */
  async *rows(deed) {
    for (let after = 0; after !== null; ) {
      const page = await this.does(deed, { after });
      yield* page.rows;
      after = page.next;
    }
  }

  /**
   * Ends the session. Gives the run's status.
   * @param {'complete' | 'interrupt' | 'stopped'} how
   * @returns {Promise<string>}
   */
  async end(how) {
    if (this._isEnded) return 'ended';
    this._isEnded = true;
    try {
      return (await this.does('end', { how })).status;
    } finally {
      this._response.destroy();
    }
  }

  /** Asks for what the run's own token allows. @param {string} method @param {string} path @param {unknown} [body] */
  ownRun(method, path, body) {
    const token = this.told.token ?? undefined;
    return this.server.ask(method, path, body === undefined ? undefined : JSON.stringify(body), { token });
  }
}

