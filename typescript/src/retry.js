// Retries: whether a step or an item is tried again, and after how long.

import { Conflict, OutlastError, Skip, StepTimeout } from './errors.js';

/** HTTP statuses below 500 after which a provider expects another try. */
const AGAIN = new Set([408, 409, 425, 429]);

/**
 * Up to `retries` more tries after the first. The wait before try n is random, up to `base * 2 ** n` seconds and at most
 * `cap`; a `Retry-After` of the error replaces it. `on` narrows what is tried again.
 * @typedef {{retries: number, base?: number, cap?: number, on?: (error: unknown) => boolean}} Retry
 */

/**
 * Milliseconds until the next try, after `tried` tries that threw; undefined: there is none.
 * @param {Retry | number | undefined} retry
 * @param {unknown} error
 * @param {number} tried
 * @returns {number | undefined}
 */
export function delay(retry, error, tried) {
  if (retry === undefined) return undefined;
  const { retries, base = 0.5, cap = 60, on } = typeof retry === 'number' ? { retries: retry } : retry;
  if (tried > retries || !isRetryable(error) || (on && !on(error))) return undefined;
  return retryAfter(error) ?? Math.random() * Math.min(cap, base * 2 ** (tried - 1)) * 1000;
}

/** @param {any} error @returns {boolean} */
function isRetryable(error) {
  // After a conflict, the next try reads the changed state.
  if (error instanceof StepTimeout || error instanceof Conflict) return true;
  if (error instanceof OutlastError || error instanceof Skip || error?.name === 'AbortError') return false;
  const status = statusOf(error);
  return typeof status !== 'number' || AGAIN.has(status) || status >= 500;
}

/** The HTTP status that an error carries, under the names that SDKs use; undefined without one. @param {any} error @returns {any} */
export function statusOf(error) {
  return error?.status ?? error?.statusCode ?? error?.response?.status;
}

/** A header of the answer that an error carries; undefined without it. @param {any} error @param {string} name @returns {string | undefined} */
export function header(error, name) {
  const headers = error?.headers ?? error?.responseHeaders ?? error?.response?.headers;
  return headers?.get?.(name) ?? headers?.[name] ?? undefined;
}

/** @param {any} error @returns {number | undefined} */
function retryAfter(error) {
  const ms = Number(header(error, 'retry-after-ms') ?? NaN);
  if (Number.isFinite(ms)) return Math.max(0, ms);
  const after = header(error, 'retry-after');
  if (after === undefined) return undefined;
  const until = Number.isFinite(Number(after)) ? Number(after) * 1000 : Date.parse(after) - Date.now();
  return Number.isFinite(until) ? Math.max(0, until) : undefined;
}
