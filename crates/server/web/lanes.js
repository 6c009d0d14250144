// Where everything of a timeline stands: lanes, rows within them, and the scale across. Times are microseconds here.

import { micros } from "./words.js";

const MOST_ROWS = 6;

/**
 * Gives each attempt a lane, and each entry of it a row, so that what went on at the same time does not overlap.
 * `replayed` is how many answers the run replayed in all. Returns the lanes, oldest first.
 */
export function lanesOf(entries, attempts, replayed) {
  const byNo = new Map();
  for (const attempt of attempts) byNo.set(attempt.attempt, { attempt, rows: 1, bars: [], free: [] });
  const dearest = entries.reduce((most, e) => (e.kind === "call" ? Math.max(most, e.spent_nano_usd) : most), 1);
  const now = Date.now() * 1000;
  const timed = entries.map((e) => ({ e, from: micros(e.opened_at) }));
  for (const { e, from } of timed.sort((a, b) => a.from - b.from)) {
    const lane = byNo.get(e.attempt);
    if (!lane || e.kind === "loop") continue;
    const end = micros(e.closed_at) ?? micros(lane.attempt.ended_at) ?? now;
    let row = lane.free.findIndex((free) => free <= from);
    if (row < 0) row = lane.free.length < MOST_ROWS ? lane.free.length : lane.free.indexOf(Math.min(...lane.free));
    lane.free[row] = Math.max(end, from + 1);
    lane.rows = Math.max(lane.rows, row + 1);
    lane.bars.push({ e, row, from, to: end, high: Math.sqrt(e.spent_nano_usd / dearest) });
  }
  const given = replaysOf(entries, attempts, replayed);
  return { lanes: [...byNo.values()].map((lane) => ({ ...lane, ...given.get(lane.attempt.attempt) })) };
}

/**
 * Tells what each attempt was given of earlier ones: a map from its number to how many answers were `replayed` to it, and
 * what that `saved`. An answer remembers only the last attempt that took it; that all attempts between took it too is
 * believed only where `replayed`, the run's own count, agrees. Where it does not, the numbers are the `least`.
 */
export function replaysOf(entries, attempts, replayed) {
  const found = new Map(attempts.map((a) => [a.attempt, { replayed: 0, saved: 0, least: false }]));
  const taken = entries.filter((e) => e.kind === "call" && e.replayed_to);
  // An attempt that asked for nothing new is known by what it took last.
  const worked = new Set(entries.filter((e) => e.kind !== "loop").map((e) => e.attempt).concat(taken.map((e) => e.replayed_to)));
  const likely = (no, e) => worked.has(no) && e.attempt < no && e.replayed_to >= no;
  const total = () => attempts.reduce((sum, a) => sum + taken.filter((e) => likely(a.attempt, e)).length, 0);
  const all = attempts.length * taken.length < 2e6 && total() === replayed;
  for (const e of taken) {
    for (const no of all ? found.keys() : [e.replayed_to]) {
      const had = found.get(no);
      if (!had || (all && !likely(no, e))) continue;
      had.replayed += 1;
      had.least = !all;
      had.saved += e.spent_nano_usd;
    }
  }
  return found;
}

/** Parts of a span of microseconds in which the run waited, in their order. */
export const waitedIn = (waits, from, to) => waits
  .map((w) => [Math.max(from, micros(w.from)), Math.min(to, micros(w.to) ?? to)])
  .filter(([a, b]) => b > a);

const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 1.5e4, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5, 18e5, 36e5, 72e5, 216e5, 432e5, 864e5, 2 * 864e5, 7 * 864e5];
const two = (n) => String(n).padStart(2, "0");

/** The scale of a timeline, from 0 to 1: over time, or over what happened, one after the other. */
export function scaleOf(layout, byOrder, run) {
  return byOrder ? overOrder(layout) : overTime(layout, run);
}

function overTime(layout, run) {
  const lanes = layout.lanes.map((lane) => lane.attempt);
  const now = Date.now() * 1000;
  const first = Math.min(...lanes.map((a) => micros(a.started_at)), micros(run.began_at) ?? now);
  const last = Math.max(...lanes.map((a) => micros(a.ended_at) ?? now), first + 1000);
  const whole = last - first;
  const of = (at) => (at - first) / whole;
  return {
    of,
    start: (a) => micros(a.started_at),
    end: (a) => micros(a.ended_at) ?? now,
    at: (lane, seq) => lane.bars.find((bar) => bar.e.seq === seq)?.from ?? micros(lane.attempt.started_at),
    ticks(view, many) {
      const [from, to] = [first + view[0] * whole, first + view[1] * whole];
      const step = (STEPS.find((ms) => (to - from) / 1000 / ms <= many) ?? STEPS.at(-1)) * 1000;
      const found = [];
      for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
        const d = new Date(at / 1000);
        const clock = `${two(d.getHours())}:${two(d.getMinutes())}`;
        const text = step >= 864e8 ? `${two(d.getMonth() + 1)}-${two(d.getDate())}` : step >= 6e7 ? clock
          : step >= 1e6 ? `${clock}:${two(d.getSeconds())}` : `${two(d.getSeconds())}.${String(Math.floor(d.getMilliseconds())).padStart(3, "0")}`;
        found.push([of(at), text]);
      }
      return found;
    },
  };
}

/** Every moment at which something began or ended is one step: pauses take no room. */
function overOrder(layout) {
  const moments = new Set();
  for (const lane of layout.lanes) {
    moments.add(micros(lane.attempt.started_at));
    for (const bar of lane.bars) moments.add(bar.from).add(bar.to);
    if (lane.attempt.ended_at) moments.add(micros(lane.attempt.ended_at));
  }
  const sorted = [...moments].sort((a, b) => a - b);
  const last = Math.max(1, sorted.length - 1);
  const of = (at) => {
    let [low, high] = [0, sorted.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (sorted[middle] < at) low = middle + 1;
      else high = middle;
    }
    return Math.min(low, last) / last;
  };
  const end = sorted.at(-1) ?? 0;
  return {
    of,
    start: (a) => micros(a.started_at),
    end: (a) => micros(a.ended_at) ?? end,
    at: (lane, seq) => lane.bars.find((bar) => bar.e.seq === seq)?.from ?? micros(lane.attempt.started_at),
    ticks: () => [],
  };
}
