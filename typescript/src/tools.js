// Tools: each call of an agent's tool is done once over all lives of a run. Its outcome is a result, or what it threw.

import { storage } from './context.js';
import { OutlastError, Skip, StepInDoubt, ToolFailed } from './errors.js';
import { StepCall } from './steps.js';

/**
 * `effects`: what becomes of a call that a death cut off. "once" (the default): its beginning is on disk before it is called,
 * and the next life throws `StepInDoubt` until a person says what came of it. "idempotent": called again, with the same
 * `current().idempotencyKey`. "read": called again. `inDoubt: "tell"` gives a text for the model instead of throwing.
 * `approve`: a person is asked first. `timeout`: milliseconds.
 * @typedef {{name?: string, effects?: 'read' | 'idempotent' | 'once', inDoubt?: 'throw' | 'tell', approve?: boolean, timeout?: number}} ToolOptions
 */

const RAISED = 'outlast.raised';

/**
 * Makes each call of a function durable. Outside of a run, a call is a plain call. `durable.withId(id, ...args)` is a call
 * that the model's answer has given an id: asked again with it, the recorded outcome is given.
 * @template T
 * @template {any[]} A
 * @param {(...args: A) => T | PromiseLike<T>} fn
 * @param {ToolOptions} [options]
 * @returns {((...args: A) => Promise<Awaited<T>>) & {withId: (id: string | undefined, ...args: A) => Promise<Awaited<T>>}}
 */
export function tool(fn, options = {}) {
  const { name = fn.name, effects = 'once', inDoubt = 'throw' } = options;
  if (!name) throw new TypeError('a tool wants a name: tool(fn, {name: …})');
  if (!['read', 'idempotent', 'once'].includes(effects)) throw new TypeError(`tool ${name}: effects wants "read", "idempotent" or "once", had ${JSON.stringify(effects)}`);
  const call = async (/** @type {string | undefined} */ id, /** @type {A} */ args) => {
    const here = storage.getStore();
    if (!here) return fn(...args);
    const key = id === undefined ? undefined : `tool/${name}/${id}`;
    if (options.approve) await here.run.approve(name, args.length === 1 ? args[0] : args, { key });
    /** @type {unknown} */
    let thrown;
    const outcome = async () => {
      try {
        return await fn(...args);
      } catch (error) {
        // Refusals of Outlast's own are no outcome of the tool.
        if (error instanceof Skip || (error instanceof OutlastError && !(error instanceof ToolFailed))) throw error;
        thrown = error;
        return { [RAISED]: { type: /** @type {any} */ (error)?.constructor?.name, message: String(/** @type {any} */ (error)?.message ?? error) } };
      }
    };
    let made;
    try {
      made = await new StepCall(here.run, { name, key, timeout: options.timeout, atMostOnce: effects === 'once' }, outcome, args).result();
    } catch (error) {
      if (inDoubt === 'tell' && error instanceof StepInDoubt) {
        return `outcome unknown: ${name} was begun before and may have been done; look whether it was before you repeat it`;
      }
      throw error;
    }
    const raised = made?.[RAISED];
    if (raised === undefined) return made;
    throw thrown ?? new ToolFailed(raised.message, { code: 'tool_failed' });
  };
  const durable = (/** @type {A} */ ...args) => call(undefined, args);
  return /** @type {any} */ (Object.assign(durable, { withId: (/** @type {string | undefined} */ id, /** @type {A} */ ...args) => call(id, args) }));
}
