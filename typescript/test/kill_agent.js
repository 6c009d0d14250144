// Works in a run and kills itself, its server, or both at the point that KILL_AT names. Writes a ledger: `do` when a function
// runs, `ack` when its result was returned, `doubt` when a call is told to be in doubt.
import { randomBytes } from 'node:crypto';
import { appendFileSync, readFileSync } from 'node:fs';

import { connect, current, OutlastError, StepInDoubt, tool } from '../src/index.js';
import { OutlastSession } from '../src/openai-agents.js';

const { KILL_AT = '-1', KILL_WHAT, LEDGER } = process.env;
const outlast = connect();
const write = (line) => appendFileSync(LEDGER, `${line}\n`);
let points = 0;

async function point() {
  if (points++ !== Number(KILL_AT)) return;
  if (KILL_WHAT !== 'node') {
    const { child } = await outlast.server();
    const ended = new Promise((resolve) => child.once('exit', resolve));
    child.ref();
    child.kill('SIGKILL');
    if (KILL_WHAT === 'server') await ended;
  }
  if (KILL_WHAT !== 'server') process.kill(process.pid, 'SIGKILL');
}

const work = (name) => async () => {
  await point();
  write(`do ${name}`);
  await point();
  return randomBytes(4).toString('hex');
};

async function acked(name, made) {
  write(`ack ${name} ${await made}`);
  await point();
}

const pay = tool(work('pay'), { name: 'pay' });
const look = tool(work('look'), { name: 'look', effects: 'read' });

/** What was done once and is in doubt: a person looks at the ledger, and says. */
async function once(run, name, call) {
  for (;;) {
    try {
      return await acked(name, call());
    } catch (error) {
      if (!(error instanceof StepInDoubt)) throw error;
      const wasDone = readFileSync(LEDGER, 'utf8').includes(`do ${name}\n`);
      write(`doubt ${name}`);
      await run.resolve({ key: error.key }, wasDone ? { result: 'looked' } : { rerun: true });
    }
  }
}

try {
  await outlast.run('kills', async (run) => {
    await point();
    for (const name of ['a', 'b']) await acked(name, run.step(name, work(name)));
    await acked('outer', run.step('outer', async () => {
      const inner = await current().run.step('inner', work('inner'));
      write(`ack inner ${inner}`);
      return inner;
    }));
    await once(run, 'charge', () => run.step({ name: 'charge', key: 'charge', atMostOnce: true }, work('charge')));
    await once(run, 'pay', () => pay());
    await acked('look', look());
    const session = new OutlastSession('chat');
    for (const n of [1, 2]) {
      await session.addItems([{ n }]);
      await point();
    }
    await acked('items', session.getItems().then((items) => items.map(({ n }) => n).join()));
    const batch = outlast.map(['x', 'y', 'z'], async (item) => {
      await acked(`item-step-${item}`, current().run.step('in', work(`item-step-${item}`)));
      return work(`item-${item}`)();
    }, { job: 'kills-job', key: (item) => item, concurrency: 2 });
    for await (const result of batch) await acked(`item-${result.key}`, result.value);
  });
} catch (error) {
  if (!(error instanceof OutlastError) || error.code !== 'no_server') throw error;
  process.exitCode = 3;
}
write(`points ${points}`);
