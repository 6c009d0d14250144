// The three places that a program works in: its supervisor's run, a server that OUTLAST_URL names, and (elsewhere) its own.
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';

import { binary } from '../src/binary.js';
import { connect, NoServer, OutlastError, run } from '../src/index.js';

const AGENT = fileURLToPath(new URL('place_agent.js', import.meta.url));
const home = mkdtempSync(join(tmpdir(), 'outlast-places-'));
after(() => rmSync(home, { recursive: true, force: true }));

function surroundings(name, more = {}) {
  const env = { ...process.env, HOME: home, OUTLAST_STORE: join(home, `${name}.db`), LEDGER: join(home, `${name}.ledger`), ...more };
  delete env.XDG_STATE_HOME;
  return env;
}
const ledger = (env) => readFileSync(env.LEDGER, 'utf8').trim().split('\n');

/** A server with these words, until `body` is done. */
async function serving(env, words, body) {
  const server = spawn(binary(), ['serve', '--listen', '127.0.0.1:0', ...words], { env, stdio: ['ignore', 'ignore', 'pipe'] });
  try {
    let said = '';
    for await (const part of server.stderr) {
      said += part;
      const url = /serving on (http:\S+),/.exec(said)?.[1];
      if (url) return await body(url);
    }
    throw new Error(said);
  } finally {
    server.kill('SIGKILL');
  }
}

test('under a supervisor, the next life of the program goes on in the same run', () => {
  const env = surroundings('supervised');
  const done = spawnSync(binary(), ['run', '--name', 'it', '--', process.execPath, AGENT], { env, encoding: 'utf8', timeout: 120_000 });
  assert.strictEqual(done.status, 0, done.stderr);
  const [first, a, b, second, again, made, below] = ledger(env);
  assert.deepStrictEqual([first, a, b, second, again], ['life 1', 'a', 'b', 'life 2', 'b']);
  const id = /^a of (\S+); b of (\S+)$/.exec(made);
  assert.strictEqual(id[1], id[2]);
  assert.strictEqual(below, `below ${id[1]}`);
});

for (const token of [undefined, 'the-token-of-the-tests']) {
  test(`at a server ${token ? 'with' : 'without'} an API token`, async () => {
    const env = surroundings(`server-${token}`, { RUN: 'r' });
    const words = [];
    if (token) {
      const file = join(home, 'token');
      writeFileSync(file, token, { mode: 0o600 });
      words.push('--api-token-file', file);
    }
    await serving(env, words, async (url) => {
      const there = { ...env, OUTLAST_URL: url, ...(token && { OUTLAST_API_TOKEN: token }) };
      const lives = [1, 2].map(() => spawnSync(process.execPath, [AGENT], { env: there, encoding: 'utf8', timeout: 60_000 }));
      assert.strictEqual(lives[0].signal, 'SIGKILL', lives[0].stderr);
      assert.strictEqual(lives[1].status, 0, lives[1].stderr);
      assert.deepStrictEqual(ledger(env), ['life 1', 'a', 'b', 'life 2', 'b', 'a of r; b of r', 'below r']);
      if (token) await assert.rejects(connect({ url, token: 'wrong' }).run('r', async () => {}), OutlastError);
    });
  });
}

test('a server that is not there is told', async () => {
  await assert.rejects(connect({ url: 'http://127.0.0.1:9' }).run('r', async () => {}), (e) => e instanceof NoServer && e.code === 'no_server' && !!e.hint);
});

test('a signal ends the run, and what it cut off is run again', async () => {
  const here = connect({ store: join(home, 'signal.db') });
  const ending = new AbortController();
  let calls = 0;
  const body = (r) => r.step('slow', async () => {
    calls += 1;
    if (calls > 1) return 'done';
    ending.abort(new Error('enough'));
    return new Promise(() => {});
  });
  await assert.rejects(here.run('r', { signal: ending.signal }, body), /enough/);
  assert.strictEqual((await here.get('r')).status, 'interrupted');
  assert.strictEqual(await here.run('r', body), 'done');
  assert.strictEqual(typeof run, 'function');
});
