// Small parts that every view is made of.

import { html, useLayoutEffect, useRef, useState } from "./html.js";
import { amount, clean, line, unitWord, usd, whose } from "./words.js";

// A shape for each status, so that colour is never what tells it.
const SHAPES = {
  ring: html`<circle cx="6" cy="6" r="4.5" />`,
  disc: html`<circle class="full" cx="6" cy="6" r="5" />`,
  half: html`<circle cx="6" cy="6" r="4.5" /><path class="full" d="M6 1a5 5 0 0 0 0 10z" />`,
  square: html`<rect class="full" x="1.5" y="1.5" width="9" height="9" />`,
  bars: html`<path d="M4 1.5v9M8 1.5v9" />`,
  tick: html`<path d="M1 6.5 4.5 10 11 2" />`,
  cross: html`<path d="M2 2l8 8M10 2l-8 8" />`,
  dash: html`<path d="M1 6h10" />`,
  moon: html`<path d="M9.8 8A4.6 4.6 0 1 1 5 1.6 4 4 0 0 0 9.8 8z" />`,
  ask: html`<path d="M3 3.5a3 3 0 1 1 3.6 3q-.6.2-.6 1M6 10.4v.6" />`,
};

const STATES = {
  running: ["disc", "calm", "beat"], waiting: ["half", "care"], sleeping: ["moon", "soft"],
  interrupted: ["bars", "care"], halted: ["square", "bad"], completed: ["tick", "good"],
  failed: ["cross", "bad"], cancelled: ["dash", "soft"],
  open: ["ring", "calm"], done: ["tick", "good"], void: ["dash", "soft"], unknown: ["ask", "care", "", "in doubt"],
  dead: ["square", "bad"], skipped: ["dash", "soft"],
  pending: ["half", "care"], approved: ["tick", "good"], denied: ["cross", "bad"], timeout: ["dash", "soft"], blocked: ["square", "bad"],
};

export function State({ of, word }) {
  const [shape, colour, beat, said] = STATES[of] ?? ["ring", "soft"];
  return html`<span class="state ${colour}"><svg viewBox="0 0 12 12" aria-hidden="true" class=${beat ?? ""}>${SHAPES[shape]}</svg><span>${clean(word ?? said ?? of)}</span></span>`;
}

/** Spend against a limit: what is spent, what is held for calls in flight, and the limit in words. */
export function Meter({ spent, held = 0, limit, unit = "cost_nano_usd" }) {
  const words = (n) => (unit === "cost_nano_usd" ? usd(n) : amount(unit, n));
  if (limit === null || limit === undefined) {
    return html`<div class="meter"><span>${words(spent)}</span> <span class="soft">no limit</span></div>`;
  }
  const share = (n) => (limit > 0 ? Math.min(100, (100 * n) / limit) : 100);
  const used = share(spent);
  const level = spent >= limit ? "over" : used >= 80 ? "near" : "";
  const tells = `${words(spent)} of ${words(limit)}, ${Math.floor(limit > 0 ? (100 * spent) / limit : 100)} percent`;
  return html`<div class="meter ${level}" role="img" aria-label=${tells}>
    <span>${words(spent)}</span> <span class="soft">of ${words(limit)}</span>
    <div class="track"><i class="held" style=${{ width: `${share(spent + held)}%` }}></i><i style=${{ width: `${used}%` }}></i></div>
  </div>`;
}

/** Tags as small labels; `act(key, value)` is called for one that is pressed. */
export const Tags = ({ tags, act }) => tags.map(([k, v]) => {
  const text = line(v ? `${k}=${v}` : k, 60);
  return act ? html`<button key=${k} class="tag" title="Only runs with this tag" onClick=${() => act(k, v)}>${text}</button>` : html`<span key=${k} class="tag">${text}</span>`;
});

// Percent of another limit, from which on it is shown instead of the run's own in dollars.
const NEAR = 10;

/** What a run's limits count: its own calls, and those of its children and forks. */
export const charged = (run) => run.with_children_nano_usd ?? run.spent_nano_usd;

/** Number of a run's or a sum's calls that were paid. */
export const paid = (of) => of.calls - of.unpaid_calls;

/** Spend of a run against its limit in dollars; where it comes near to another limit, that one is what is drawn. */
export function Spent({ run }) {
  const tight = run.tightest;
  const own = !tight || (tight.whose === "run" && tight.unit === "cost_nano_usd");
  const near = !own && (run.limit_nano_usd === null || 100 * (tight.spent + tight.reserved) >= NEAR * tight.limit);
  const all = charged(run);
  const below = all === run.spent_nano_usd ? "" : html`<div class="under">${usd(run.spent_nano_usd)} of it without children</div>`;
  if (!near) return html`<${Meter} spent=${all} held=${run.reserved_nano_usd} limit=${run.limit_nano_usd} />${below}`;
  const limit = run.limit_nano_usd === null ? "" : html` <span class="soft">of ${usd(run.limit_nano_usd)}</span>`;
  const unit = tight.unit === "cost_nano_usd" ? "" : unitWord(tight.unit);
  return html`<div>${usd(all)}${limit}</div>${below}
    <div class="under">nearest limit: ${[line(whose(tight), 60), unit].filter(Boolean).join(", ")}</div>
    <${Meter} spent=${tight.spent} held=${tight.reserved} limit=${tight.limit} unit=${tight.unit} />`;
}

export function Problem({ error, again }) {
  if (!error) return null;
  return html`<div class="note bad" role="alert">
    <strong>${clean(error.message)}</strong>${error.hint ? html`<p>${clean(error.hint)}</p>` : ""}
    ${again ? html`<p><button onClick=${again}>Try again</button></p>` : ""}
  </div>`;
}

export const Empty = ({ children }) => html`<div class="empty">${children}</div>`;
export const Waits = () => html`<div class="empty" role="status">Reading…</div>`;

const address = (path) => "#/" + path.map(encodeURIComponent).join("/");

/** Opens a place by a click anywhere on its row. The row's link does the same by keyboard; marking text opens nothing. */
export const opens = (path) => (event) => {
  if (!event.target.closest("a, button") && !String(getSelection())) location.hash = address(path);
};

/** A link within the page. Its address begins with # whatever the data says, so it never leads elsewhere. */
export const To = ({ path, children, ...rest }) =>
  html`<a href=${address(path)} ...${rest}>${children}</a>`;

/** A command to type, with a button that copies it. Where copying is refused, it is marked instead. */
export function Command({ text }) {
  const place = useRef(null);
  const [done, tell] = useState("");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      tell("copied");
    } catch {
      getSelection().selectAllChildren(place.current);
      tell("marked");
    }
  };
  return html`<div class="command"><code ref=${place}>${clean(text)}</code> <button onClick=${copy} aria-label=${`Copy: ${clean(text)}`}>Copy</button>
    <span class="soft" role="status">${done}</span></div>`;
}

/** A dialog that asks once. `act` is called with the form's values; a refusal is shown in the dialog. */
export function Ask({ title, word, grave, close, act, problem, busy, children }) {
  const place = useRef(null);
  // Opened with the drawing itself: a key that is typed right after the press belongs to the dialog.
  useLayoutEffect(() => {
    const dialog = place.current;
    dialog.showModal();
    return () => dialog.open && dialog.close();
  }, []);
  const send = (event) => {
    event.preventDefault();
    act(Object.fromEntries(new FormData(event.target)));
  };
  return html`<dialog ref=${place} onCancel=${close} aria-labelledby="ask-title">
    <form onSubmit=${send}>
      <h1 id="ask-title">${title}</h1>
      ${children}
      <${Problem} error=${problem} />
      <div class="buttons">
        <button type="button" onClick=${close}>Leave it</button>
        <button class=${grave ? "grave" : "main"} disabled=${busy}>${word}</button>
      </div>
    </form>
  </dialog>`;
}
