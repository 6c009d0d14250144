// The loops of `loops.py` that are in Node: node steps.mjs steps|fetch STORE RUNS COUNT TEXT. Prints the seconds.

import { connect } from '../../typescript/src/index.js';

const [loop, store, runs, count, text] = process.argv.slice(2);
const outlast = connect({ store });
const { url } = await outlast.server();

const loops = {
  /** As many steps in one run. */
  steps: (name) =>
    outlast.run(name, { budget: { usd: 1 } }, async (run) => {
      for (let i = 0; i < Number(count); i++) await run.step('work', () => text, i);
    }),
  /** As many requests, one after another. */
  fetch: async () => {
    for (let i = 0; i < Number(count); i++) await (await fetch(`${url}/healthz`)).arrayBuffer();
  },
};

const began = performance.now();
await Promise.all(Array.from({ length: Number(runs) }, (_, n) => loops[loop](`r${n}`)));
console.log((performance.now() - began) / 1000);
