// Tables: what the plug-ins keep in the state, the values of one namespace by agent and key. What is written together is one commit.

import { Conflict } from './errors.js';

/**
 * A change without a value deletes. `expected`: the version that the key has now; 0: it never was.
 * @typedef {{agent: string, key: string, value?: unknown, expected?: number}} Change
 */

/** The agents of a page. */
const PAGE = 1000;

/** Conflicts in a row after which a change is given up: no writer is first so often, and the key was deleted elsewhere. */
const MOST_CONFLICTS = 100;

const part = encodeURIComponent;

export class Table {
  /** @param {import('./index.js').Outlast} connection @param {string} namespace */
  constructor(connection, namespace) {
    this.connection = connection;
    this.namespace = namespace;
  }

  /**
   * The newest value of a key, or the one of `version`; version 0 and no value for a key that is not there: a key that is expected to be
   * at version 0 is never deleted.
   * @param {string} agent @param {string} key @param {number} [version]
   * @returns {Promise<{version: number, value?: any}>}
   */
  async entry(agent, key, version) {
    try {
      return await this._ask('GET', `${[this.namespace, agent, key].map(part).join('/')}${version === undefined ? '' : `?version=${version}`}`);
    } catch (error) {
      if (/** @type {any} */ (error).code !== 'no_such_key') throw error;
      return { version: 0 };
    }
  }

  /** @param {string} agent @param {string} key @returns {Promise<any>} */
  async get(agent, key) {
    return (await this.entry(agent, key)).value;
  }

  /** The rows below a prefix, in the order of their keys. @param {string} agent @param {string} [prefix] @returns {Promise<{key: string, version: number, value: any}[]>} */
  scan(agent, prefix = '') {
    return this._pages('scan', 'items', agent, prefix);
  }

  /** The keys below a prefix, in their order. @param {string} agent @param {string} [prefix] @returns {Promise<string[]>} */
  async keys(agent, prefix = '') {
    return (await this._pages('keys', 'keys', agent, prefix)).map(({ key }) => key);
  }

  /** @returns {Promise<string[]>} */
  async agents() {
    const all = [];
    for (let after = ''; ; after = all[all.length - 1]) {
      const query = new URLSearchParams({ namespace: this.namespace, limit: String(PAGE), ...(after && { after }) });
      const { agents } = await this._ask('GET', `agents?${query}`);
      all.push(...agents);
      if (agents.length < PAGE) return all;
    }
  }

  /** Writes changes in one commit: all or none. Throws `Conflict`. @param {Change[]} changes */
  async commit(changes) {
    if (changes.length === 0) return;
    const sent = changes.map(({ agent, key, value, expected }) => ({
      namespace: this.namespace, agent, key, ...(value === undefined ? { delete: true } : { value }), expected_version: expected,
    }));
    await this._ask('POST', 'transaction', JSON.stringify({ changes: sent }));
  }

  /**
   * Reads and writes: `work` gives what was made and its changes, and does so again where another writer was first.
   * @template T
   * @param {() => Promise<{made: T, changes: Change[]}>} work
   * @returns {Promise<T>}
   */
  async change(work) {
    for (let conflicts = 1; ; conflicts += 1) {
      const { made, changes } = await work();
      try {
        await this.commit(changes);
        return made;
      } catch (error) {
        if (!(error instanceof Conflict) || conflicts === MOST_CONFLICTS) throw error;
      }
    }
  }

  /** @param {string} method @param {string} path @param {string} [body] @returns {Promise<any>} */
  async _ask(method, path, body) {
    return (await this.connection.server()).ask(method, `/v1/state/${path}`, body);
  }

  /** @param {string} route @param {string} rows @param {string} agent @param {string} prefix @returns {Promise<any[]>} */
  async _pages(route, rows, agent, prefix) {
    const all = [];
    for (let cursor = ''; cursor !== null; ) {
      const page = await this._ask('GET', `${route}?${new URLSearchParams({ namespace: this.namespace, agent, prefix, ...(cursor && { cursor }) })}`);
      all.push(...page[rows]);
      cursor = page.cursor;
    }
    return all;
  }
}
