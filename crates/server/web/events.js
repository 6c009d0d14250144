// One stream of events for a tab, from which the views hear when there is something to read again.

import * as api from "./api.js";

// The pause before a broken stream is asked for again, which doubles up to the second.
const FIRST = 500;
const MOST = 30_000;

const hearers = new Set();
const tell = (event) => hearers.forEach((act) => act(event));

/** Calls `act` with each event from now on. Returns what ends it. */
export function hear(act) {
  hearers.add(act);
  return () => hearers.delete(act);
}

/** Rules for the events that concern a view. After `opened` and `broken` every view reads, whatever its rule. */
export const anyRun = (event) => event.kind !== "state_changed";
export const ofState = (event) => event.kind === "state_changed";
export const ofRun = (id) => (event) => event.run === id;
export const ofApprovals = (event) => event.kind.startsWith("approval_") || event.kind === "status";

/**
 * Follows the events while the tab is in sight, until what it returns is called. A stream that breaks goes on from its
 * cursor. One for a tab that was hidden begins at the end: `opened` makes each view read what it shows.
 */
export function follow() {
  let open = null;
  const turn = () => {
    open?.abort();
    open = document.hidden ? null : new AbortController();
    if (open) run(open.signal);
  };
  document.addEventListener("visibilitychange", turn);
  turn();
  return () => {
    document.removeEventListener("visibilitychange", turn);
    open?.abort();
  };
}

async function run(signal) {
  let cursor = "now";
  for (let pause = FIRST; !signal.aborted; pause = Math.min(2 * pause, MOST)) {
    try {
      for await (const { id, event, data } of api.events({ after: cursor, progress: true }, signal)) {
        if (id) cursor = id;
        if (event === "error") break;
        pause = FIRST;
        tell(event === "cursor" ? { kind: "opened" } : JSON.parse(data));
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error.status === 401) return void window.dispatchEvent(new Event("outlast-out"));
      // A cursor of another store, or of events that were made anew.
      if (error.status === 400) cursor = "now";
    }
    if (signal.aborted) return;
    tell({ kind: "broken" });
    await new Promise((go) => {
      const timer = setTimeout(go, pause * (0.75 + Math.random() / 2));
      signal.addEventListener("abort", () => { clearTimeout(timer); go(); }, { once: true });
    });
  }
}
