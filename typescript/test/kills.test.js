// The Node process, its server, and both, killed with -9 at each point of steps, tools, sessions and batches. The ledger is outside:
// nothing that was acknowledged is lost or done again, and nothing that may happen once happens twice.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';

const AGENT = fileURLToPath(new URL('kill_agent.js', import.meta.url));
const home = mkdtempSync(join(tmpdir(), 'outlast-kills-'));
after(() => rmSync(home, { recursive: true, force: true }));

function life(directory, at, what) {
  const env = { ...process.env, HOME: directory, OUTLAST_STORE: join(directory, 'runs.db'), LEDGER: join(directory, 'ledger'), KILL_AT: String(at), KILL_WHAT: what };
  for (const name of ['OUTLAST_URL', 'OUTLAST_TOKEN', 'OUTLAST_RUN_ID', 'XDG_STATE_HOME']) delete env[name];
  return spawnSync(process.execPath, [AGENT], { env, encoding: 'utf8', timeout: 120_000 });
}

/** Plays a life that is killed, and one that is not. Gives the ledger. */
function play(name, at, what) {
  const directory = mkdtempSync(join(home, 'one-'));
  const first = life(directory, at, what);
  assert.ok(what === 'server' ? first.status === 3 : at < 0 ? first.status === 0 : first.signal === 'SIGKILL', `${name}: ${first.status} ${first.stderr}`);
  const second = life(directory, -1, what);
  assert.strictEqual(second.status, 0, `${name}: ${second.stderr}`);
  return readFileSync(join(directory, 'ledger'), 'utf8').trim().split('\n').map((line) => line.split(' '));
}

function check(name, ledger) {
  const acks = new Map();
  const told = (word, of) => ledger.filter(([w, n]) => w === word && n === of).length;
  ledger.forEach(([word, of, value], at) => {
    if (word === 'ack') {
      assert.ok(!acks.has(of) || acks.get(of) === value, `${name}: ${of} was acknowledged as ${acks.get(of)} and as ${value}`);
      acks.set(of, value);
    }
    if (word === 'do') assert.ok(!ledger.slice(0, at).some(([w, n]) => w === 'ack' && n === of), `${name}: ${of} was done again after it was acknowledged`);
  });
  for (const of of ['a', 'b', 'inner', 'outer', 'charge', 'pay', 'look', 'item-x', 'item-y', 'item-z']) assert.ok(acks.has(of), `${name}: ${of} was never acknowledged`);
  assert.strictEqual(acks.get('items'), '1,2', `${name}: the session's items`);
  for (const of of ['charge', 'pay']) assert.strictEqual(told('do', of), 1, `${name}: ${of} was done ${told('do', of)} times`);
  for (const of of ['a', 'b', 'look']) assert.ok(told('do', of) <= 2, `${name}: ${of} was done more than once a life`);
}

const whole = play('no kill', -1, 'node');
const points = Number(whole.find(([word]) => word === 'points')[1]);
/** How many kills are played: each of the points, or as many as are asked for, over and over the points. */
const kills = Number(process.env.OUTLAST_TEST_KILLS ?? 3 * points);

test('without a kill each thing is done once, and a second life does nothing', () => {
  check('no kill', whole);
  assert.strictEqual(whole.filter(([word]) => word === 'do').length, 12);
});

for (const [first, what] of ['node', 'server', 'both'].entries()) {
  test(`${what === 'both' ? 'node and server' : what} killed at each of the points`, (t) => {
    assert.ok(points > 20, `${points} points`);
    const sums = { kills: 0, acknowledged: 0, doubts: 0, again: 0 };
    for (let n = first; n < kills; n += 3) {
      const at = Math.floor(n / 3) % points;
      const ledger = play(`${what} at ${at}`, at, what);
      check(`${what} at ${at}`, ledger);
      const told = (word) => ledger.filter(([w]) => w === word);
      sums.kills += 1;
      sums.acknowledged += new Set(told('ack').map(([, of]) => of)).size;
      sums.doubts += told('doubt').length;
      sums.again += told('do').length - new Set(told('do').map(([, of]) => of)).size;
    }
    t.diagnostic(JSON.stringify(sums));
  });
}
