// Plays one life of a story in JavaScript: reads it from the environment, works in the run, says what came of each thing.
import { appendFileSync } from 'node:fs';
import process from 'node:process';

import { connect, current, OutlastError, tool } from '../../typescript/src/index.js';

const life = JSON.parse(process.env.STORY_LIFE);
const add = (line) => appendFileSync(process.env.STORY_LEDGER, `${line}\n`);
const say = (what) => appendFileSync(process.env.STORY_SAID, `${JSON.stringify(what ?? null)}\n`);
const die = () => process.kill(process.pid, 'SIGKILL');
const worked = (name, arg, how) => () => {
  add(`${name} ${arg}`);
  if (how === 'dies') die();
  if (how === 'throws') throw new Error(`no ${arg}`);
  return { [name]: arg };
};
const tools = new Map();

const DEEDS = {
  step: (run, name, arg, how) => run.step(name, (a) => worked(name, a, how)(), arg),
  once: (run, name, arg, how) => run.step({ name, key: name, atMostOnce: true }, (a) => worked(name, a, how)(), arg),
  retried: (run, name, tries, how) =>
    run.step({ name, retries: { retries: tries - 1, base: 0 } }, () => {
      const tried = current().attempt;
      add(`${name} ${tried}`);
      if (how === 'dies') die();
      if (tried < tries) throw new Error('again');
      return { [name]: tried };
    }),
  tool: (run, name, arg, how) => {
    if (!tools.has(name)) tools.set(name, (a) => worked(name, a, tools.get(`${name} ${a}`))());
    tools.set(`${name} ${arg}`, how);
    return tool(tools.get(name), { name })(arg);
  },
  die,
  map: async (run, items, dies) => {
    const batch = outlast.map(items, async (item) => {
      add(`item ${item}`);
      if (item === dies) die();
      return item.toUpperCase();
    }, { job: 'job', key: (item) => item, concurrency: 1 });
    return (await batch.all()).map((result) => result.value);
  },
  loop: (run, key) => run.loop(key),
  set: (run, key, value) => run.state.set(key, value),
  cas: (run, key, version, value) => run.state.compareAndSet(key, version, value),
  get: async (run, key) => {
    const { version, value } = await run.state.entry(key);
    return [version, value ?? null];
  },
  counts: (run, key, how) =>
    run.step('counts', async () => {
      add(`counts ${key}`);
      const { version, value = 0 } = await run.state.entry(key);
      await run.state.compareAndSet(key, version, value + 1);
      if (how === 'dies') die();
      return value + 1;
    }),
  save: (run, name, value) => run.checkpoint(name, value),
  latest: (run, name) => run.latestCheckpoint(name),
  approve: async (run, name, args) => {
    await run.approve(name, args);
    return 'approved';
  },
  snapshot: (run, name) => run.snapshot(name),
  reserve: async (run, most, cost) => {
    const held = await run.reserve({ usd: most });
    if (cost !== undefined) await held.settle({ usd: cost });
  },
  // Waits until its input ends.
  hold: async () => {
    say('held');
    for await (const part of process.stdin) say(part);
  },
};

const outlast = connect();
const budget = { ...(life.loops && { loops: life.loops }), ...(life.usd && { usd: life.usd }) };
let isOpen = false;
try {
  const how = { ...(Object.keys(budget).length && { budget }), ...(life.from && { from: { snapshot: life.from } }) };
  await outlast.run(process.env.STORY_RUN, how, async (run) => {
    isOpen = true;
    for (const [deed, ...about] of life.does) {
      try {
        say(await DEEDS[deed](run, ...about));
      } catch (error) {
        if (error instanceof OutlastError && !error.code.startsWith('tool_')) {
          say(error.code);
          throw error;
        }
        say(`error: ${error.message.split('\n')[0]}`);
      }
    }
  });
} catch (error) {
  if (!(error instanceof OutlastError)) throw error;
  if (!isOpen) say({ opens: error.code });
  process.exitCode = 1;
}
