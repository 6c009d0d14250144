// Budgets: the limits of a run, in dollars, counts and times.

import { BadLimit } from './errors.js';

/**
 * The limits of a run. `usd`: dollars, as a number or as exact text. `tokens`, `calls`, `loops`: counts. `wall`: time since
 * the run began, `active`: time while it is driven, both in seconds or as text such as "90m". A run keeps its limits; with
 * `amend`, other ones replace them.
 * @typedef {{usd?: number | string, tokens?: number, calls?: number, loops?: number, wall?: number | string,
 *   active?: number | string, amend?: boolean}} Budget
 */

const UNITS_MS = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 };

/**
 * The limits by the engine's units. Throws `BadLimit`.
 * @param {Budget | undefined} budget
 * @returns {Record<string, number>}
 */
export function limits(budget) {
  /** @type {Record<string, number>} */
  const made = {};
  if (budget?.usd !== undefined) made.cost_nano_usd = nanoUsd(budget.usd);
  for (const name of /** @type {const} */ (['tokens', 'calls', 'loops'])) {
    const value = budget?.[name];
    if (value === undefined) continue;
    if (!Number.isSafeInteger(value) || value < 0) throw bad(`${name} wants a whole number from 0`, value);
    made[name] = value;
  }
  if (budget?.wall !== undefined) made.wall_ms = ms('wall', budget.wall);
  if (budget?.active !== undefined) made.active_ms = ms('active', budget.active);
  return made;
}

/**
 * Dollars in nano-dollars, through their text: 0.1 is a tenth of a dollar, not the binary number beside it.
 * @param {number | string} usd
 */
export function nanoUsd(usd) {
  const text = typeof usd === 'number' && Math.abs(usd) < 1e-6 ? usd.toFixed(12) : String(usd);
  const [, whole, places = ''] = /^(\d+)(?:\.(\d+))?$/.exec(text) ?? [];
  if (whole === undefined) throw bad('usd wants dollars from 0', usd);
  const nano = Number(BigInt(whole) * 1_000_000_000n + BigInt(places.slice(0, 9).padEnd(9, '0')));
  if (!Number.isSafeInteger(nano)) throw bad('usd wants dollars below 9,000,000', usd);
  return nano;
}

/** @param {string} name @param {number | string} value */
export function ms(name, value) {
  if (typeof value === 'number') {
    if (!(value >= 0 && value < 1e12)) throw bad(`${name} wants seconds from 0`, value);
    return Math.floor(value * 1000);
  }
  const parts = [...value.replaceAll(' ', '').matchAll(/(\d+(?:\.\d+)?)(ms|s|m|h|d)/g)];
  if (parts.length === 0 || parts.map((p) => p[0]).join('') !== value.replaceAll(' ', '')) throw bad(`${name} wants a time like "90m" or "1h30m"`, value);
  return Math.floor(parts.reduce((sum, [, n, unit]) => sum + Number(n) * UNITS_MS[/** @type {'s'} */ (unit)], 0));
}

/** @param {string} what @param {unknown} had */
function bad(what, had) {
  return new BadLimit(`bad limit: ${what}, had ${JSON.stringify(had)}`, { code: 'bad_limit' });
}
