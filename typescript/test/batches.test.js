// Items of a batch whose provider refuses, breaks off or is away.
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import process from 'node:process';
import { after, test } from 'node:test';

import { connect, fetch, Skip } from '../src/index.js';
import { isOutside } from '../src/outside.js';

const home = mkdtempSync(join(tmpdir(), 'outlast-batches-'));
after(() => rmSync(home, { recursive: true, force: true }));

/** A provider that answers as `how` says, until `body` is done; gives what it was asked. */
async function provided(how, body) {
  const asked = [];
  const server = createServer(async (request, response) => {
    let text = '';
    for await (const part of request) text += part;
    asked.push(JSON.parse(text).messages[0].content);
    how(response, asked);
  });
  await new Promise((listening) => server.listen(0, '127.0.0.1', listening));
  const before = { ...process.env };
  Object.assign(process.env, { HOME: home, OPENAI_API_KEY: 'k', OPENAI_BASE_URL: `http://127.0.0.1:${server.address().port}/v1` });
  try {
    await body();
    return asked;
  } finally {
    Object.assign(process.env, { HOME: before.HOME });
    delete process.env.OPENAI_BASE_URL;
    server.closeAllConnections();
    server.close();
  }
}

/** Asks through the proxy; throws an error as an SDK does. */
async function ask(text) {
  const body = JSON.stringify({ model: 'gpt-4o-mini', max_tokens: 9, messages: [{ role: 'user', content: text }] });
  const response = await fetch('http://outlast.invalid/v1/chat/completions', { method: 'POST', headers: { 'x-outlast-retries': 'off' }, body });
  if (response.ok) return response.json();
  throw Object.assign(new Error(`${response.status}`), { status: response.status, headers: response.headers });
}

function answers(response, status, body) {
  response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body));
}

test('a call that may be paid and whose answer broke off is asked again by nobody', async () => {
  const here = connect({ store: join(home, 'cut.db') });
  const told = [];
  const asked = await provided(
    (response) => {
      response.writeHead(200, { 'content-type': 'application/json', 'content-length': '1000' });
      response.write('{"id": ', () => response.destroy());
    },
    async () => {
      const batch = here.map(['a'], async (text) => {
        try {
          return await ask(text);
        } catch (error) {
          told.push([error.status, error.headers.get('x-outlast-code'), error.headers.get('x-should-retry')]);
          throw error;
        }
      }, { job: 'cut', key: (text) => text });
      assert.deepStrictEqual((await batch.all()).map((result) => result.ok), [false]);
    },
  );
  assert.deepStrictEqual([asked, told], [['a'], [[502, 'upstream_broke_off', 'false']]]);
});

test('an item is not dead by failures that are no fault of its own', async () => {
  const here = connect({ store: join(home, 'outside.db') });
  await provided(
    (response, asked) => (asked.length > 4 ? answers(response, 400, {}) : answers(response, 401, {})),
    async () => {
      const standings = [];
      for (let start = 0; start < 7; start += 1) {
        const [result] = await here.map(['a'], ask, { job: 'outside', key: (text) => text }).all();
        standings.push(/is dead/.test(result.error.message) ? 'dead' : 'failed');
      }
      // Four of these starts failed by a refusal, and the next three by the item.
      assert.deepStrictEqual(standings.slice(0, 6), Array(6).fill('failed'));
      const [dead] = await here.map(['a'], ask, { job: 'outside', key: (text) => text }).all();
      assert.match(dead.error.message, /is dead/);
    },
  );
});

test('items that fail as an outage begins are asked again, and others fail', async () => {
  const here = connect({ store: join(home, 'begins.db') });
  const asked = await provided(
    (response, asked) => answers(response, asked.at(-1) === 'b' || asked.length === 3 ? 500 : 200, {}),
    async () => {
      const batch = here.map(['a', 'b', 'c', 'd', 'e'], async (text) => {
        if (text === 'e') throw new Skip('no text');
        return ask(text);
      }, { job: 'begins', key: (text) => text, concurrency: 1 });
      const results = await batch.all();
      assert.deepStrictEqual(results.map((result) => [result.status, result.ok]), [['done', true], ['failed', false], ['done', true], ['done', true], ['skipped', false]]);
      assert.throws(() => results[4].value, Skip);
      assert.deepStrictEqual(batch.failed.map((result) => result.key), ['b']);
      assert.deepStrictEqual(batch.stats, { total: 5, done: 3, failed: 1, dead: 0, skipped: 1, cached: 0 });
      assert.strictEqual(String(batch), 'job begins: 3 of 5 items done, 1 failed, 1 skipped');
      assert.strictEqual((await here.get('begins')).status, 'completed');
    },
  );
  assert.deepStrictEqual(asked, ['a', 'b', 'c', 'd', 'b', 'c']);
});

test('an item that is not begun again for a call that may be paid says so', async () => {
  const here = connect({ store: join(home, 'doubt.db') });
  const asked = await provided(
    (response) => {
      response.writeHead(200, { 'content-type': 'application/json', 'content-length': '1000' });
      response.write('{"id": ', () => response.destroy());
    },
    async () => {
      const batch = here.map(['a'], async (text) => {
        await ask(text).catch(() => {});
        throw Object.assign(new Error('held'), { status: 503, headers: new Headers({ 'x-outlast-code': 'provider_outage' }) });
      }, { job: 'doubt', key: (text) => text });
      const [result] = await batch.all();
      assert.strictEqual(result.status, 'failed');
      assert.match(result.error.message, /it may be paid, so that the item is not begun again by itself/);
    },
  );
  assert.deepStrictEqual(asked, ['a']);
});

test('what is no fault of an item is told from what is', () => {
  const answer = (status, headers = {}) => Object.assign(new Error('x'), { status, headers: new Headers(headers) });
  const check = (error, wanted) => assert.strictEqual(isOutside(error), wanted, String(error?.status ?? error));
  for (const status of [401, 402, 407, 429, 503, 529]) check(answer(status), true);
  for (const status of [400, 403, 404, 422, 500, 504]) check(answer(status), false);
  check(answer(403, { 'x-outlast-run': 'r' }), true);
  check(answer(502, { 'x-outlast-code': 'upstream_unreachable' }), true);
  check(new Error('x', { cause: Object.assign(new Error('y'), { code: 'ENETUNREACH' }) }), true);
  check(new TypeError('a fault in the code'), false);
  check(undefined, false);
});
