// Clients of LLM providers, sent through the proxy: each request belongs to the run and the step that it is made in.

import process from 'node:process';

import { current, storage } from './context.js';
import { NoRun } from './errors.js';

/** The header that names the open step of a request. */
const SCOPE = 'x-outlast-scope';

/**
 * The URL, the run token and the headers for a request that is made here and now, for clients that are configured by hand.
 * @returns {{url: string, token: string, headers: Record<string, string>}}
 */
export function endpoint() {
  const here = storage.getStore();
  const { OUTLAST_URL: url, OUTLAST_TOKEN: supervised } = process.env;
  if (!here && url && supervised) return { url, token: supervised, headers: {} };
  const { run, seq } = current();
  const token = run._session.told.token;
  if (token === null) throw new NoRun(`run ${run.id} is completed: it makes no calls`, { code: 'run_completed' });
  return { url: run._session.server.url, token, headers: seq === undefined ? {} : { [SCOPE]: String(seq) } };
}

/** Codes of calls that may be paid and whose answer is lost. */
const PAID_IN_VAIN = new Set(['upstream_no_answer', 'upstream_broke_off', 'call_overtaken']);

/** The address that clients are made with. Each request is sent where its run is, by `fetch`. */
export const NOWHERE = 'http://outlast.invalid';

/**
 * `fetch` for any SDK: sends a request to the current run's proxy, in the name of the run and its open step.
 * @param {string | URL | Request} input
 * @param {RequestInit} [init]
 * @returns {Promise<Response>}
 */
export async function fetch(input, init) {
  const request = new Request(input, init);
  const { url, token, headers } = endpoint();
  const { pathname, search } = new URL(request.url);
  const keyed = ['x-api-key', 'x-goog-api-key'].find((name) => request.headers.has(name));
  if (keyed) request.headers.set(keyed, token);
  else request.headers.set('authorization', `Bearer ${token}`);
  for (const [name, value] of Object.entries(headers)) request.headers.set(name, value);
  const sent = new Request(`${url}${pathname}${search}`, request);
  const response = await globalThis.fetch(sent);
  const here = storage.getStore();
  const code = response.headers.get('x-outlast-code');
  if (here && code && (response.status === 402 || code === 'admission_timeout')) here.refused = code;
  if (!here?.isOpen || code === null || !PAID_IN_VAIN.has(code)) return response;
  here.isInDoubt = true;
  // No SDK asks it again in silence: the step or item fails, and its `retries` decide.
  const told = new Headers(response.headers);
  told.set('x-should-retry', 'false');
  return new Response(response.body, { status: response.status, statusText: response.statusText, headers: told });
}

/** Options for `new OpenAI({...openai()})`, and for `createOpenAI({...openai()})` of the AI SDK. */
export function openai() {
  return { baseURL: `${NOWHERE}/v1`, apiKey: 'outlast', fetch, maxRetries: 2 };
}

/** Options for `new Anthropic({...anthropic()})`. */
export function anthropic() {
  return { baseURL: NOWHERE, apiKey: 'outlast', fetch, maxRetries: 2 };
}
