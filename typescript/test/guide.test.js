// The guide's code, block after block, as it stands there: against a private server and a fake provider.
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';

import { binary } from '../src/binary.js';

const PACKAGE = fileURLToPath(new URL('..', import.meta.url));
const GUIDE = readFileSync(new URL('../../docs/guides/typescript.md', import.meta.url), 'utf8');
const home = mkdtempSync(join(tmpdir(), 'outlast-guide-'));
after(() => rmSync(home, { recursive: true, force: true }));

test('each block of the guide runs', async () => {
  const blocks = [...GUIDE.matchAll(/^```js\n(.*?)^```$/gms)].map(([, code]) => code);
  assert.ok(blocks.length > 6);
  mkdirSync(join(home, 'node_modules'));
  symlinkSync(PACKAGE, join(home, 'node_modules', 'outlast'));
  blocks.forEach((code, n) => writeFileSync(join(home, `block-${n}.mjs`), code));
  writeFileSync(join(home, 'all.mjs'), blocks.map((_, n) => `await import('./block-${n}.mjs');\n`).join(''));
  const mock = spawn(binary(), ['mock', '--listen', '127.0.0.1:0'], { stdio: ['ignore', 'pipe', 'inherit'] });
  try {
    const url = String(await once(mock.stdout, 'data').then(([line]) => line)).trim();
    const env = { PATH: process.env.PATH, HOME: home, OUTLAST_BIN: binary(), OPENAI_BASE_URL: `${url}/v1`, OPENAI_API_KEY: 'sk-a-fake-key' };
    const done = spawnSync(process.execPath, ['all.mjs'], { cwd: home, env, encoding: 'utf8', timeout: 120_000 });
    assert.strictEqual(done.status, 0, `${done.stdout}\n${done.stderr}`);
  } finally {
    mock.kill();
  }
});
