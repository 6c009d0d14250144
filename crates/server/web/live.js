// Data that is read again when something happened that concerns it.

import { useEffect, useLayoutEffect, useRef, useState } from "./html.js";
import { anyRun, hear } from "./events.js";

// Milliseconds: between two reads of the same however much happens, and until what nobody told is read anyway.
const LEAST = 400;
export const SLOW = 30_000;

/** Rules of what never changes. */
export const ONCE = { on: () => false, every: () => null };
/** Rules of sums over many runs, which are more work to read. */
export const SUMS = { least: 3000 };

/**
 * Calls `look(over)` now, after each event that `on` accepts, and when the tab is shown again. One look at a time; what
 * happens meanwhile, or within `least` of the last, is one more look. `every(told)` is how long what `look` returned stays
 * good without an event; `null`: for good. Nothing is looked at while the tab is hidden. Returns a function that looks at once.
 */
export function useNews(look, keys, { on = anyRun, least = LEAST, every = () => SLOW } = {}) {
  const now = useRef(null);
  useEffect(() => {
    let [over, busy, due, timer, ended] = [false, false, false, null, -Infinity];
    const go = async () => {
      clearTimeout(timer);
      if (over || document.hidden) return;
      if (busy) {
        due = true;
        return;
      }
      [busy, due] = [true, false];
      const told = await look(() => over);
      [busy, ended] = [false, performance.now()];
      if (over) return;
      const rest = due ? least : every(told);
      if (rest !== null) timer = setTimeout(go, rest);
    };
    const soon = () => {
      if (busy) {
        due = true;
        return;
      }
      clearTimeout(timer);
      timer = setTimeout(go, Math.max(0, ended + least - performance.now()));
    };
    const deaf = hear((event) => {
      if (event.kind === "opened" || event.kind === "broken" || on(event)) soon();
    });
    const seen = () => document.hidden || go();
    document.addEventListener("visibilitychange", seen);
    now.current = go;
    go();
    return () => {
      over = true;
      clearTimeout(timer);
      deaf();
      document.removeEventListener("visibilitychange", seen);
    };
  }, keys);
  return () => now.current?.();
}

/** Reads what a view shows with `read(over)`, again by the rules of `useNews`. Keeps the last good answer while a later read fails. */
export function useRead(read, keys, rules) {
  const [told, tell] = useState({ data: null, error: null });
  // What was read for other keys is not shown for these, unless the view says that it may be for a moment.
  useEffect(() => { if (!rules?.keep) tell({ data: null, error: null }); }, keys);
  const again = useNews(async (over) => {
    try {
      const data = await read(over);
      if (!over()) tell({ data, error: null });
      return data;
    } catch (error) {
      if (error.status === 401) window.dispatchEvent(new Event("outlast-out"));
      if (!over()) tell((had) => ({ data: had.data, error }));
      return null;
    }
  }, keys, rules);
  return { ...told, again };
}

/** Returns `value`, a changed one in a task of its own: what is drawn of it delays nothing else. */
export function useLater(value) {
  const [kept, keep] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => keep(value));
    return () => clearTimeout(timer);
  }, [value]);
  return kept;
}

/** Draws its view again every second, so that times since then go on. */
export function useClock() {
  const [, turn] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => document.hidden || turn((n) => n + 1), 1000);
    return () => clearInterval(timer);
  }, []);
}

/** Calls `act(key, event)` for keys that are typed outside of fields and dialogs, from the moment the view is seen. */
export function useKeys(act, keys) {
  useLayoutEffect(() => {
    const typed = (event) => {
      const at = event.target;
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (at.closest?.("input, select, textarea, dialog")) return;
      act(event.key, event);
    };
    window.addEventListener("keydown", typed);
    return () => window.removeEventListener("keydown", typed);
  }, keys);
}
