// Works where it is put: in its supervisor's run, or in RUN at a server. Its first life is killed in the second step.
import { appendFileSync } from 'node:fs';

import { current, run } from '../src/index.js';

const write = (line) => appendFileSync(process.env.LEDGER, `${line}\n`);

await run(process.env.RUN, async (r) => {
  write(`life ${r.attempt}`);
  const step = async (name) => {
    write(name);
    if (name === 'b' && r.attempt === 1) process.kill(process.pid, 'SIGKILL');
    return `${name} of ${current().run.id}`;
  };
  write(`${await r.step('a', step, 'a')}; ${await r.step('b', step, 'b')}`);
  const child = await run('below', async (c) => c.summary());
  write(`below ${child.parent}`);
});
