#!/usr/bin/env node
// `npx outlast …`: the command, with this process's own input, output, signals and exit code.
import { spawn } from 'node:child_process';
import { constants } from 'node:os';
import process from 'node:process';

import { binary } from '../src/binary.js';

let command;
try {
  command = binary();
} catch (error) {
  console.error(`outlast: ${error.message}`);
  process.exit(127);
}
const child = spawn(command, process.argv.slice(2), { stdio: 'inherit' });
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGQUIT']) process.on(signal, () => child.kill(signal));
child.on('error', (error) => {
  console.error(`outlast: ${command}: ${error.message}`);
  process.exit(126);
});
child.on('exit', (code, signal) => process.exit(signal ? 128 + constants.signals[signal] : code));
