// Failures that are no item's own: what made them fail lies outside of the items, so that no item is judged by them.

import { LeaseLost, NoServer, OutlastError, RunHalted, StopRequested } from './errors.js';
import { header, statusOf } from './retry.js';

/** HTTP statuses for a key that is missing or refused, for used-up credit, and of a provider that has more than it can take. */
const STATUSES = new Set([401, 402, 407, 429, 503, 529]);

/** Codes of refusals by Outlast itself that any item would have met. */
const REFUSALS = new Set(['upstream_unreachable', 'net_refused', 'not_running', 'lease_lost', 'run_halted', 'run_ended']);

/** Errors of the system: no network, no name server, no room, no more open files; or a module that is not there. */
const SYSTEM = new Set(['ENETDOWN', 'ENETUNREACH', 'EAI_AGAIN', 'ENOSPC', 'EDQUOT', 'EMFILE', 'ENFILE', 'ERR_MODULE_NOT_FOUND']);

/**
 * Whether an item failed with a status of its provider's own that an outage begins with, too. Such a call is not paid.
 * @param {any} error
 * @returns {boolean}
 */
export function mayBeginOutage(error) {
  for (let found = error, depth = 0; found instanceof Object && depth < 20; found = found.cause, depth += 1) {
    if (statusOf(found) >= 500 && header(found, 'x-outlast-run') !== undefined && header(found, 'x-outlast-code') === undefined) return true;
  }
  return false;
}

/**
 * Whether an item failed for a reason outside of it, which may be over at the next start: a key that is missing or refused, a
 * model that may not be used, credit, a rate, the network, the machine, a module, the store, a budget.
 * @param {any} error
 * @returns {boolean}
 */
export function isOutside(error) {
  for (let found = error, depth = 0; found instanceof Object && depth < 20; found = found.cause, depth += 1) {
    if ([NoServer, RunHalted, LeaseLost, StopRequested].some((kind) => found instanceof kind)) return true;
    if (found instanceof OutlastError && found.code.startsWith('store_')) return true;
    if (STATUSES.has(statusOf(found) ?? 0) || REFUSALS.has(header(found, 'x-outlast-code') ?? '') || SYSTEM.has(found.code)) return true;
    // Of a provider: other services refuse single items with it.
    if (statusOf(found) === 403 && header(found, 'x-outlast-run') !== undefined) return true;
  }
  return false;
}
