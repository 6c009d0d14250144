// A run's journal as rows. Only the rows in sight are in the document.

import { html, useEffect, useMemo, useRef, useState } from "./html.js";
import { Empty, State, To, Waits } from "./parts.js";
import { between, change, count, line, span, usd, when } from "./words.js";

const HEIGHT = 30;
const KINDS = ["call", "step", "item", "tool", "approval", "checkpoint", "loop", "iteration", "context"];

/** Returns the word of an act. Limits are lowered by the same order as they are raised. */
export const actWord = (act) => (act.what === "raise" ? "limits" : act.what);

/** Returns the subject of an entry: a call's model, an approval's tool, else the key. */
const subject = (e) => (e.act ? `${actWord(e.act)} by ${e.act.by}` : e.call?.model || e.approval?.tool || e.key || "");
export const what = (e) => line(subject(e), 120);

/** What was said or done in an entry, if that is known; else its subject. */
export const told = (e) => line(e.gist ?? subject(e), 240);

/** Whether an entry is bookkeeping of Outlast's own, such as a copy of an agent's session. */
export const isOwn = (e) => Boolean(e.key?.startsWith("outlast:")) && !e.act;
/** Whether an entry is shown only where all are: changed files are told. */
const isAside = (e) => isOwn(e) && !e.gist;

/** What is unusual about an entry, in words. */
export function marks(e) {
  const call = e.call ?? {};
  const found = [];
  if (e.replayed_to) found.push(`replayed to attempt ${e.replayed_to}`);
  if (call.retry_of) found.push(`retry of ${call.retry_of}`);
  if (e.retried_by) found.push(`retried by ${e.retried_by}`);
  if (call.tries > 1) found.push(`${call.tries} tries`);
  if (call.clamped_to) found.push(`output limited to ${call.clamped_to} tokens`);
  if (call.estimated) found.push("estimated");
  if (call.overrun_nano_usd) found.push(`overrun ${usd(call.overrun_nano_usd)}`);
  if (call.http_status >= 400) found.push(`http ${call.http_status}`);
  if (call.error) found.push(call.error === "upstream_no_answer" ? "sent, no answer: may be paid" : call.error);
  if (e.act?.about) found.push(e.act.what === "raise" ? change(e.act.about) : e.act.about);
  if (e.item?.reset_by) found.push(`reset by ${e.item.reset_by}`);
  if (e.approval?.decision) {
    const { approve, by, reason } = e.approval.decision;
    found.push(`${approve ? "approved" : "denied"} by ${by}${reason ? `: ${reason}` : ""}`);
  }
  if (e.approval?.blocked) found.push("blocked by the run's policy");
  if (e.item && e.item.standing !== "open") found.push(e.item.reason ?? e.item.standing);
  return found;
}

/** Returns an entry's standing: an approval's is its decision, any other's its state. */
export function standing(e) {
  if (!e.approval) return e.in_doubt ? "unknown" : e.state;
  if (e.approval.blocked) return "blocked";
  if (e.approval.decision) return e.approval.decision.approve ? "approved" : "denied";
  return e.state === "open" ? "pending" : e.state;
}

export function cost(e) {
  if (e.kind !== "call" && !e.spent_nano_usd) return "";
  return (e.held_nano_usd ? "≤" : "") + usd(e.spent_nano_usd + e.held_nano_usd);
}

export function tokens(e) {
  const u = e.call?.usage;
  if (!u) return e.tokens ? count(e.tokens) : "";
  return `${count(u.input + u.cache_read + u.cache_write_5m + u.cache_write_1h)}+${count(u.output)}`;
}

const texts = new WeakMap();

/** Returns the text that a search looks at, in small letters. Made once for each entry: there may be 10,000. */
function said(e) {
  let text = texts.get(e);
  if (text === undefined) {
    text = `${e.seq} ${subject(e)} ${e.gist ?? ""} ${e.state} ${standing(e)} ${standing(e) === "unknown" ? "in doubt" : ""} ${marks(e).join(" ")}`.toLowerCase();
    texts.set(e, text);
  }
  return text;
}

export function Journal({ id, entries, whole, chosen, choose }) {
  const [kind, pick] = useState("");
  const [text, seek] = useState("");
  const place = useRef(null);
  const [top, scroll] = useState(0);
  const [all, show] = useState(false);
  const own = useMemo(() => entries.filter(isAside).length, [entries]);
  const rows = useMemo(() => {
    const wanted = text.toLowerCase();
    if (!kind && !wanted && (all || !own)) return entries;
    return entries.filter((e) => (all || !isAside(e)) && (!kind || e.kind === kind) && (!wanted || said(e).includes(wanted)));
  }, [entries, kind, text, all, own]);
  const high = 520;
  useEffect(() => {
    const n = rows.findIndex((e) => e.seq === chosen);
    const box = place.current;
    if (n < 0 || !box) return;
    const y = n * HEIGHT;
    if (y < box.scrollTop || y > box.scrollTop + box.clientHeight - HEIGHT) box.scrollTop = y - box.clientHeight / 2;
  }, [chosen]);
  // The newest rows stay in sight, unless the reader has scrolled away from them.
  const follows = useRef(true);
  useEffect(() => {
    const box = place.current;
    if (box && follows.current && chosen === null) box.scrollTop = box.scrollHeight;
  }, [rows.length]);
  const from = Math.max(0, Math.floor(top / HEIGHT) - 8);
  const shown = rows.slice(from, from + Math.ceil(high / HEIGHT) + 16);
  const scrolled = (event) => {
    const box = event.target;
    follows.current = box.scrollTop + box.clientHeight >= box.scrollHeight - 2 * HEIGHT;
    scroll(box.scrollTop);
  };
  const columns = html`<span class="num">Entry</span><span class="wide">Time</span><span class="wide">Kind</span><span>State</span><span>What</span><span class="num wide">Tokens</span><span class="num">usd</span><span class="num wide">Attempt</span>`;
  return html`
    <div class="bar"><h2 id="journal">Journal</h2><span class="soft">${count(rows.length)}${rows.length !== entries.length ? ` of ${count(entries.length)}` : ""} entries</span>
      <span style=${{ flex: 1 }}></span>
      ${own ? html`<button aria-pressed=${all} onClick=${() => show(!all)} title="Copies of the agent's session, and what else Outlast keeps for itself">all</button>` : ""}
      <label class="only-read" for="kind">Kind</label>
      <select id="kind" value=${kind} onChange=${(e) => pick(e.target.value)}><option value="">every kind</option>${KINDS.map((k) => html`<option key=${k}>${k}</option>`)}</select>
      <label class="only-read" for="find">Find in the journal</label>
      <input id="find" type="search" placeholder="find" size="12" value=${text} onInput=${(e) => seek(e.target.value)} />
    </div>
    ${!entries.length ? (whole ? html`<${Empty}>No entries yet.</${Empty}>` : html`<${Waits} />`) : html`
      <div class="row headed" aria-hidden="true">${columns}</div>
      <div class="rows" ref=${place} onScroll=${scrolled} tabindex="0" role="group" aria-label="Entries of the journal">
        <div class="inner" style=${{ height: `${rows.length * HEIGHT}px` }}>
          ${shown.map((e, n) => html`<${To} key=${e.seq} path=${["run", id, e.seq]} class=${e.seq === chosen ? "row at" : "row"}
              style=${{ top: `${(from + n) * HEIGHT}px` }} onFocus=${() => choose(e.seq)}>
            <span class="num">${e.seq}</span><span class="wide soft">${when(e.opened_at)}</span><span class="wide">${e.act ? "act" : e.kind}</span><span><${State} of=${standing(e)} /></span>
            <span title=${[told(e), ...marks(e).map((m) => line(m, 200))].join(", ")}>${told(e) || e.kind} <span class="soft">${line(marks(e).join(", "), 120)}</span></span>
            <span class="num wide">${tokens(e)}</span><span class="num">${cost(e)}</span><span class="num wide">${e.attempt}</span>
          </${To}>`)}
        </div>
      </div>`}`;
}

/** Returns how long an entry took; nothing for one in doubt, whose end nobody saw. */
export const took = (e) => (standing(e) === "unknown" ? "" : span(between(e.opened_at, e.closed_at)));
