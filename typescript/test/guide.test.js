// The guide's code, block after block, as it stands there, in Node, Bun and Deno: against a private server and a fake provider.
import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';

import { binary } from '../src/binary.js';

const MODULES = join(process.env.OUTLAST_TEST_TYPESCRIPT ?? '', 'node_modules');
const GUIDE = readFileSync(new URL('../../docs/guides/typescript.md', import.meta.url), 'utf8');
const BLOCKS = [...GUIDE.matchAll(/^```js\n(.*?)^```$/gms)].map(([, code]) => code);
const home = mkdtempSync(join(tmpdir(), 'outlast-guide-'));
after(() => rmSync(home, { recursive: true, force: true }));

for (const [runtime, command] of Object.entries({
  node: [process.execPath],
  bun: [join(MODULES, '.bin', 'bun')],
  deno: [join(MODULES, '.bin', 'deno'), 'run', '--allow-all', '--node-modules-dir=manual'],
})) {
  test(`each block of the guide runs in ${runtime}`, async () => {
    assert.ok(process.env.OUTLAST_TEST_TYPESCRIPT, 'OUTLAST_TEST_TYPESCRIPT is wanted: what scripts/typescript.sh DIRECTORY prints');
    assert.ok(BLOCKS.length > 9);
    const here = join(home, runtime);
    mkdirSync(here);
    symlinkSync(MODULES, join(here, 'node_modules'));
    writeFileSync(join(here, 'package.json'), '{"type": "module"}');
    BLOCKS.forEach((code, n) => writeFileSync(join(here, `block-${n}.mjs`), code));
    writeFileSync(join(here, 'all.mjs'), BLOCKS.map((_, n) => `await import('./block-${n}.mjs');\n`).join(''));
    const mock = spawn(binary(), ['mock', '--listen', '127.0.0.1:0'], { stdio: ['ignore', 'pipe', 'inherit'] });
    try {
      const url = String(await once(mock.stdout, 'data').then(([line]) => line)).trim();
      const env = { PATH: process.env.PATH, HOME: here, OUTLAST_BIN: binary(), OPENAI_BASE_URL: `${url}/v1`, OPENAI_API_KEY: 'sk-a-fake-key', MASTRA_TELEMETRY_DISABLED: '1' };
      const [program, ...words] = command;
      const done = spawnSync(program, [...words, 'all.mjs'], { cwd: here, env, encoding: 'utf8', timeout: 300_000 });
      assert.strictEqual(done.status, 0, `${done.error ?? ''}\n${done.stdout}\n${done.stderr}`);
      assert.match(done.stdout, /approvedBy: ["']ann["']/);
    } finally {
      mock.kill();
    }
  });
}
