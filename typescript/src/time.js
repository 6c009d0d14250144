// Time: waits that a signal ends, and tries that may take so long.

import { setMaxListeners } from 'node:events';

/**
 * @param {number} ms
 * @param {AbortSignal} [signal]
 * @returns {Promise<void>}
 */
export function sleep(ms, signal) {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    const end = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener('abort', end);
      resolve();
    }, Math.min(ms, 2 ** 31 - 1));
    signal?.addEventListener('abort', end, { once: true });
  });
}

/**
 * A signal that is aborted after `ms` milliseconds, and when one of `signals` is.
 * @param {number | undefined} ms
 * @param {(AbortSignal | undefined)[]} signals
 * @param {() => Error} late
 */
export function timed(ms, signals, late) {
  const ending = new AbortController();
  setMaxListeners(0, ending.signal);
  const given = /** @type {AbortSignal[]} */ (signals.filter(Boolean));
  const ends = given.map((signal) => () => ending.abort(signal.reason));
  given.forEach((signal, i) => (signal.aborted ? ends[i]() : signal.addEventListener('abort', ends[i], { once: true })));
  const timer = ms === undefined ? undefined : setTimeout(() => ending.abort(late()), ms);
  return {
    signal: ending.signal,
    /** @template T @param {Promise<T>} work @returns {Promise<T>} The work, or the reason of the signal if that is first. */
    race(work) {
      return new Promise((resolve, reject) => {
        if (ending.signal.aborted) reject(ending.signal.reason);
        ending.signal.addEventListener('abort', () => reject(ending.signal.reason), { once: true });
        work.then(resolve, reject);
      });
    },
    clear() {
      clearTimeout(timer);
      given.forEach((signal, i) => signal.removeEventListener('abort', ends[i]));
    },
  };
}
