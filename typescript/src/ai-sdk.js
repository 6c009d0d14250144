// The Vercel AI SDK: tools whose calls are done once over all lives of a run, known by the id that the model gave them, and
// answers that a page whose connection died goes on with.

import { NOWHERE } from './clients.js';
import { connect } from './index.js';
import { tool } from './tools.js';

/** @typedef {import('./server.js').Server} Server */

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

/**
 * Options for a provider, such as `createOpenAI(answer)`, with which `streamText` gets an answer of run `id` once more: from its
 * first word on and as it comes, whatever it is asked. No model is asked. Null where no answer is under way; `entry` names the
 * call of one that may be over.
 * @param {string} id
 * @param {{entry?: number, connection?: import('./index.js').Outlast}} [which]
 * @returns {Promise<{entry: number, baseURL: string, apiKey: string, fetch: typeof fetch} | null>}
 */
export async function resumed(id, { entry, connection = connect() } = {}) {
  const server = await connection.server();
  const entries = `/v1/runs/${encodeURIComponent(id)}/entries`;
  const call = entry ?? (await underWay(server, entries));
  if (call === undefined) return null;
  return { entry: call, baseURL: NOWHERE, apiKey: 'outlast', fetch: () => answer(server, `${entries}/${call}/stream`) };
}

/** The newest call that is open. @param {Server} server @param {string} entries @returns {Promise<number | undefined>} */
async function underWay(server, entries) {
  let newest;
  for (let after = 0; after !== null; ) {
    const page = await server.ask('GET', `${entries}?kind=call&state=open&after=${after}`);
    newest = page.entries.at(-1)?.seq ?? newest;
    after = page.after;
  }
  return newest;
}

/** @param {Server} server @param {string} path @returns {Promise<Response>} */
async function answer(server, path) {
  const first = await server.send('GET', path);
  const streams = first.headers['content-type'] === 'text/event-stream';
  const parts = bytes(server, path, first);
  const body = new ReadableStream({
    async pull(to) {
      const { done, value } = await parts.next();
      if (done) to.close();
      else to.enqueue(value);
    },
    async cancel() {
      await parts.return(undefined);
    },
  });
  return new Response(body, { headers: { 'content-type': streams ? 'text/event-stream' : 'application/json' } });
}

/**
 * The bytes of an answer. A connection that breaks off is opened again where it broke, as long as each brings something.
 * @param {Server} server
 * @param {string} path
 * @param {import('node:http').IncomingMessage} response
 * @returns {AsyncGenerator<Uint8Array, void>}
 */
async function* bytes(server, path, response) {
  for (let had = 0; ; response = await server.send('GET', `${path}?from=${had}`)) {
    const before = had;
    try {
      for await (const part of response) {
        had += part.length;
        yield part;
      }
      return;
    } catch (error) {
      if (had === before) throw error;
    } finally {
      response.destroy();
    }
  }
}
