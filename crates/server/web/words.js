// Amounts, times and names as people read them.

// Characters that steer a terminal or turn the direction of text: a name could show what it is not.
const STEERING = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;

/** Text of a run, a model or a person, without what would deceive. */
export const clean = (text) => String(text ?? "").replace(STEERING, "\ufffd");

/** The same in one line, at most `most` characters. */
export function line(text, most = 200) {
  const one = clean(text).replace(/[\n\t]+/g, " ");
  return one.length > most ? one.slice(0, most - 1) + "…" : one;
}

const PLAIN = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
export const count = (n) => PLAIN.format(n ?? 0);

/** "1 call", "2 calls". */
export const some = (n, word) => `${count(n)} ${n === 1 ? word : word.endsWith("y") ? word.slice(0, -1) + "ies" : word + "s"}`;

/** Nano-dollars as exact dollars with at least two decimals, as the command line writes them. */
export function usd(nano) {
  if (nano === null || nano === undefined) return "–";
  const whole = Math.abs(Math.round(nano));
  const rest = String(whole % 1e9).padStart(9, "0").replace(/0+$/, "").padEnd(2, "0");
  return `${nano < 0 ? "-" : ""}${Math.floor(whole / 1e9)}.${rest}`;
}

const TIMES = [["d", 864e5], ["h", 36e5], ["min", 6e4], ["s", 1e3]];

/** Milliseconds by their two largest units, as the command line writes them: "340 ms", "3.2 s", "4 min 10 s", "3 d 4 h". */
export function span(ms) {
  if (ms === null || ms === undefined || !Number.isFinite(ms)) return "–";
  const whole = Math.max(0, Math.floor(ms));
  if (whole < 1e4) return whole >= 1e3 || !whole ? `${Math.floor(whole / 100) / 10} s` : `${whole} ms`;
  const n = TIMES.findIndex(([, size]) => whole >= size);
  const [[unit, size], [small, one] = [null, size]] = [TIMES[n], TIMES[n + 1]];
  const rest = Math.floor((whole % size) / one);
  return `${Math.floor(whole / size)} ${unit}${rest ? ` ${rest} ${small}` : ""}`;
}

const two = (n) => String(n).padStart(2, "0");

/** A time of the API, as microseconds; null for none. A browser's own parser stops at milliseconds. */
export const micros = (at) => (at ? Date.parse(at) * 1000 + Number(at.slice(-4, -1)) : null);

/** A time as local time: the day too, unless it is today. */
export function when(time, seconds = true) {
  if (!time) return "–";
  const at = new Date(time);
  const clock = `${two(at.getHours())}:${two(at.getMinutes())}${seconds ? ":" + two(at.getSeconds()) : ""}`;
  const sameDay = at.toDateString() === new Date().toDateString();
  return sameDay ? clock : `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clock}`;
}

/** Milliseconds from one time to another; without that, to now. */
export const between = (from, to) => ((micros(to) ?? Date.now() * 1000) - micros(from)) / 1000;

/** Milliseconds by one unit, rounded down, as the command line writes an age. */
function age(ms) {
  const s = Math.max(0, Math.floor(ms / 1000));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  return s < 172800 ? `${Math.floor(s / 3600)} h` : `${Math.floor(s / 86400)} d`;
}

export const ago = (time) => (time ? `${age(between(time))} ago` : "–");

/** Milliseconds from a run's beginning to now, or until it stood still. */
export const lasted = (run) => between(run.began_at, run.still_since);

/** How many items of a job came to a bad end, by the words of `outlast jobs`; empty for none. */
export const spoilt = (job) => [job.failed && `${count(job.failed)} failed`, job.dead && `${count(job.dead)} dead`].filter(Boolean).join(", ");

const UNITS = {
  cost_nano_usd: "dollars", tokens: "tokens", calls: "calls", loops: "loops",
  wall_ms: "wall time", active_ms: "active time", restarts: "restarts",
};
export const unitWord = (unit) => UNITS[unit] ?? unit;
export function amount(unit, value) {
  if (value === null || value === undefined) return "–";
  if (unit === "cost_nano_usd") return `${usd(value)} usd`;
  return unit.endsWith("_ms") ? span(value) : count(value);
}

/** The owner of a limit, for a sentence that begins with it. */
export const whose = (tight) => (tight.whose === "budget" ? `budget ${tight.budget}` : tight.whose === "above" ? "run above" : "");

/** Writes a change of limits as people read it, as in "dollars +2.50 usd, calls 20". */
export const change = (text) => text.replace(/\b([a-z_]+) (\+?)(\d+)\b/g, (as, unit, plus, value) =>
  (UNITS[unit] ? `${unitWord(unit)} ${plus}${amount(unit, Number(value))}` : as));

/** A value as indented lines, in which what steers or cannot be seen is written out. Text that is JSON counts as such. */
export function pretty(value) {
  const escaped = (text) => text.replace(STEERING, (c) => `\\u${c.codePointAt(0).toString(16).padStart(4, "0")}`);
  if (typeof value !== "string") return escaped(JSON.stringify(value, null, 2) ?? "");
  try {
    return escaped(JSON.stringify(exact(value), null, 2));
  } catch {
    return clean(value);
  }
}

/** Parses JSON so that a number is shown as it was written: a browser's own numbers have 53 bits. */
export function exact(text) {
  const kept = (key, value, how) =>
    typeof value === "number" && how?.source && String(value) !== how.source && JSON.rawJSON ? JSON.rawJSON(how.source) : value;
  return JSON.parse(text, kept);
}

/** How an attempt ended, in words. */
export const ended = (a) => (a.ended_at ? clean(a.how) : "up");
