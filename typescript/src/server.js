// The server that a program works through: its supervisor's, the one that OUTLAST_URL names, or a private one of its own.

import { Buffer } from 'node:buffer';
import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import http from 'node:http';
import https from 'node:https';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import process from 'node:process';

import { binary } from './binary.js';
import { errorOf, NoServer } from './errors.js';

/**
 * Where the server is. Nothing: the supervisor's or OUTLAST_URL's, else a private server on `store`.
 * @typedef {{url?: string, token?: string, store?: string}} Place
 */

/** A server, and the credential that it is shown. */
export class Server {
  /**
   * @param {string} url Without a slash at the end.
   * @param {string | undefined} token
   * @param {boolean} isSupervisors
   */
  constructor(url, token, isSupervisors) {
    this.url = url.replace(/\/+$/, '');
    this.token = token;
    this.isSupervisors = isSupervisors;
    this._http = this.url.startsWith('https:') ? https : http;
    // Idle connections are closed here before the server closes them: a request never meets a closed one.
    this._agent = new this._http.Agent({ keepAlive: true, timeout: 30_000 });
  }

  /**
   * Sends a request, and gives the JSON of its answer. Throws the error that is answered; `NoServer`.
   * @param {string} method
   * @param {string} path
   * @param {string} [body]
   * @param {{token?: string}} [as]
   * @returns {Promise<any>}
   */
  async ask(method, path, body, as) {
    const response = await this.send(method, path, body, as, this._agent);
    return JSON.parse(await text(response));
  }

  /**
   * Sends a request, and gives the response once its head is there.
   * @param {string} method
   * @param {string} path
   * @param {string} [body]
   * @param {{token?: string, accept?: string}} [as]
   * @param {http.Agent | false} [agent]
   * @returns {Promise<http.IncomingMessage>}
   */
  send(method, path, body, as = {}, agent = false) {
    const token = as.token ?? this.token;
    /** @type {Record<string, string | number>} */
    const headers = {};
    if (token) headers.authorization = `Bearer ${token}`;
    if (as.accept) headers.accept = as.accept;
    if (body !== undefined) {
      headers['content-type'] = 'application/json';
      headers['content-length'] = Buffer.byteLength(body);
    }
    return new Promise((resolve, reject) => {
      const request = this._http.request(`${this.url}${path}`, { method, headers, agent });
      request.on('error', (cause) => reject(this.gone(cause)));
      request.on('response', (response) => {
        if ((response.statusCode ?? 500) < 300) return resolve(response);
        text(response).then((said) => reject(answered(response.statusCode ?? 500, said)), reject);
      });
      request.end(body);
    });
  }

  /** @param {Error} [cause] */
  gone(cause) {
    const why = cause?.message ? `: ${cause.message}` : '';
    return new NoServer(`the server at ${this.url} cannot be reached, or went away${why}`, {
      code: 'no_server',
      hint: 'what was answered is on disk; start the program again when the server is there',
      cause,
    });
  }
}

/** @param {http.IncomingMessage} response @returns {Promise<string>} */
async function text(response) {
  response.setEncoding('utf8');
  let whole = '';
  try {
    for await (const part of response) whole += part;
  } catch (cause) {
    throw new NoServer('the answer broke off', { code: 'no_server', cause });
  }
  return whole;
}

/** @param {number} status @param {string} said */
function answered(status, said) {
  let error;
  try {
    error = JSON.parse(said).error;
  } catch {
    // Not from Outlast.
  }
  return errorOf(error?.code ?? 'server_refused', error?.message ?? `the server answered ${status}`, error?.hint);
}

/**
 * Finds or starts the server.
 * @param {Place} place
 * @returns {Promise<Server>}
 */
export async function reach(place) {
  const env = process.env;
  const url = place.url ?? (place.store === undefined ? env.OUTLAST_URL : undefined);
  if (url === undefined) return startPrivate(place.store);
  const isSupervisors = place.url === undefined && Boolean(env.OUTLAST_TOKEN);
  return new Server(url, place.token ?? (isSupervisors ? env.OUTLAST_TOKEN : env.OUTLAST_API_TOKEN), isSupervisors);
}

/** Longest time for calls in flight once the program has ended, so that their answers are recorded. */
const DRAIN = '30s';

/**
 * Starts a server that ends with this process, whatever ends it: it reads a pipe whose other end only this process has.
 * @param {string | undefined} store
 * @returns {Promise<Server>}
 */
function startPrivate(store) {
  const token = randomBytes(24).toString('base64url');
  const directory = mkdtempSync(join(tmpdir(), 'outlast-'));
  const file = join(directory, 'token');
  writeFileSync(file, `${token}\n`, { mode: 0o600 });
  const args = ['serve', '--listen', '127.0.0.1:0', '--until-eof', '--api-token-file', file, '--drain', DRAIN];
  if (store !== undefined) args.push('--store', store);
  // In a group of its own: Ctrl-C is for the program, which ends its runs before its server ends.
  const child = spawn(binary(), args, { stdio: ['pipe', 'ignore', 'pipe'], detached: true });
  let said = '';
  return new Promise((resolve, reject) => {
    const failed = (/** @type {Error | undefined} */ cause) => {
      rmSync(directory, { recursive: true, force: true });
      reject(new NoServer(`outlast serve did not start: ${cause?.message ?? said.trim()}`, { code: 'no_server', cause }));
    };
    child.on('error', failed);
    child.on('exit', () => failed(undefined));
    child.stderr.setEncoding('utf8');
    child.stderr.on('data', (part) => {
      said += part;
      const address = /serving on (http:\/\/\S+), store/.exec(said)?.[1];
      if (!address) return;
      child.removeAllListeners('exit');
      child.stderr.removeAllListeners('data').resume();
      // It has read the token, and reads it again only if the file changes.
      rmSync(directory, { recursive: true, force: true });
      // Bun's streams do not hold the process, and have no such method.
      for (const held of [child, child.stdin, child.stderr]) /** @type {any} */ (held).unref?.();
      const server = new Server(address, token, false);
      /** @type {any} */ (server).child = child;
      resolve(server);
    });
  });
}

/** The name of this program for people, with its process id. */
export function program() {
  return `${basename(process.argv0)} ${basename(process.argv[1] ?? '')} (pid ${process.pid})`.replace('  ', ' ');
}
