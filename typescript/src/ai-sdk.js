// The Vercel AI SDK: tools whose calls are done once over all lives of a run, known by the id that the model gave them.

import { tool } from './tools.js';

/**
 * Makes every tool of a set durable: `generateText({tools: durable({refund: tool({…})}), …})`. `options` says what becomes of a
 * call that a death cut off, by the tool's name; without it, such a call is in doubt, and the model is told. A tool without
 * `execute` stays as it is.
 * @template {Record<string, any>} T
 * @param {T} tools
 * @param {Partial<Record<keyof T, import('./tools.js').ToolOptions>>} [options]
 * @returns {T}
 */
export function durable(tools, options = {}) {
  return /** @type {T} */ (
    Object.fromEntries(Object.entries(tools).map(([name, its]) => [name, its.execute ? { ...its, execute: once(name, its, options[name]) } : its]))
  );
}

/** @param {string} name @param {any} its @param {import('./tools.js').ToolOptions | undefined} options */
function once(name, its, options) {
  return (/** @type {unknown} */ input, /** @type {any} */ about) => {
    const call = tool(async (/** @type {unknown} */ given) => last(await its.execute(given, about)), { name, inDoubt: 'tell', ...options });
    return call.withId(about?.toolCallId, input);
  };
}

/** The result of a tool that tells what it has so far: the last thing that it told. @param {any} made */
async function last(made) {
  if (typeof made?.[Symbol.asyncIterator] !== 'function') return made;
  let told;
  for await (const one of made) told = one;
  return told;
}
