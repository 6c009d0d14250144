// Differences of two requests, turn by turn, and of two texts, line by line.

const MOST_LINES = 2000;

const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

/**
 * Compares the turns of two requests. Returns how many turns they share at the beginning, and what follows: turns that
 * were cut, that were added, or that are the same again.
 */
export function ofTurns(old, now) {
  let shared = 0;
  while (shared < old.length && shared < now.length && same(old[shared], now[shared])) shared += 1;
  const rest = steps(old.slice(shared).map((t) => JSON.stringify(t)), now.slice(shared).map((t) => JSON.stringify(t)));
  return { shared, rest: rest.map(([sign, n]) => [sign, sign === "-" ? old[shared + n] : now[shared + n]]) };
}

/** Compares two texts by lines: pairs of a sign (`+`, `-`, ` `) and a line. */
export function ofLines(old, now) {
  const [a, b] = [old.split("\n"), now.split("\n")];
  if (a.length > MOST_LINES || b.length > MOST_LINES) return [...a.map((l) => ["-", l]), ...b.map((l) => ["+", l])];
  return steps(a, b).map(([sign, n]) => [sign, sign === "-" ? a[n] : b[n]]);
}

/** The shortest way from one list to another: a sign and an index, into `a` for what is cut and into `b` otherwise. */
function steps(a, b) {
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head += 1;
  let tail = 0;
  while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail += 1;
  const [rows, columns] = [a.length - head - tail, b.length - head - tail];
  const out = [];
  for (let n = 0; n < head; n++) out.push([" ", n]);
  if (rows * columns > 4e6) {
    for (let i = 0; i < rows; i++) out.push(["-", head + i]);
    for (let j = 0; j < columns; j++) out.push(["+", head + j]);
  } else {
    const wide = columns + 1;
    const longest = new Uint32Array((rows + 1) * wide);
    for (let i = rows - 1; i >= 0; i--) {
      for (let j = columns - 1; j >= 0; j--) {
        longest[i * wide + j] = a[head + i] === b[head + j] ? longest[(i + 1) * wide + j + 1] + 1
          : Math.max(longest[(i + 1) * wide + j], longest[i * wide + j + 1]);
      }
    }
    let [i, j] = [0, 0];
    while (i < rows || j < columns) {
      if (i < rows && j < columns && a[head + i] === b[head + j]) {
        out.push([" ", head + j]);
        i += 1;
        j += 1;
      } else if (i < rows && (j >= columns || longest[(i + 1) * wide + j] >= longest[i * wide + j + 1])) {
        out.push(["-", head + i]);
        i += 1;
      } else {
        out.push(["+", head + j]);
        j += 1;
      }
    }
  }
  for (let n = b.length - tail; n < b.length; n++) out.push([" ", n]);
  return out;
}
