// Data that is read again while somebody looks at it.

import { useEffect, useRef, useState } from "./html.js";

/**
 * Reads now and every `ms`, and again after `again()`. Keeps the last good answer while a later read fails.
 * Nothing is read while the tab is hidden.
 */
export function useRead(read, keys, ms = 2000) {
  const [told, tell] = useState({ data: null, error: null });
  const now = useRef(null);
  useEffect(() => {
    let over = false;
    let timer = null;
    let busy = false;
    tell({ data: null, error: null });
    const look = async () => {
      clearTimeout(timer);
      if (over || busy) return;
      if (document.hidden) {
        timer = setTimeout(look, ms);
        return;
      }
      busy = true;
      try {
        const data = await read();
        if (!over) tell({ data, error: null });
      } catch (error) {
        if (error.status === 401) window.dispatchEvent(new Event("outlast-out"));
        if (!over) tell((had) => ({ data: had.data, error }));
      }
      busy = false;
      if (!over && ms) timer = setTimeout(look, ms);
    };
    now.current = look;
    look();
    const seen = () => document.hidden || look();
    document.addEventListener("visibilitychange", seen);
    return () => {
      over = true;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", seen);
    };
  }, keys);
  return { ...told, again: () => now.current?.() };
}

/** Calls `act(key, event)` for keys that are typed outside of fields and dialogs. */
export function useKeys(act, keys) {
  useEffect(() => {
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
