// The `outlast` command: OUTLAST_BIN, else the package of this platform, else the one in PATH.

import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { delimiter, join } from 'node:path';
import process from 'node:process';

import { OutlastError } from './errors.js';

/** @returns {string} The path of the command. */
export function binary() {
  if (process.env.OUTLAST_BIN) return process.env.OUTLAST_BIN;
  try {
    return createRequire(import.meta.url).resolve(`@outlast/${process.platform}-${process.arch}/bin/outlast`);
  } catch {
    // The package of this platform is not there: it is optional.
  }
  const found = (process.env.PATH ?? '').split(delimiter).map((directory) => join(directory, 'outlast')).find((path) => existsSync(path));
  if (found) return found;
  throw new OutlastError(`the outlast command is not there for ${process.platform}-${process.arch}`, {
    code: 'no_command',
    hint: 'install it and set OUTLAST_BIN to its path, or set OUTLAST_URL to the server of another machine',
  });
}
