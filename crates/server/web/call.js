// One entry: what was asked and answered, as a person reads it, and what the call before it did not ask.

import { html, useMemo, useState } from "./html.js";
import * as api from "./api.js";
import { ofRun } from "./events.js";
import { ONCE, SLOW, useKeys, useRead } from "./live.js";
import { ofTurns } from "./diff.js";
import { cost, isOwn, marks, standing, took, tokens, what } from "./journal.js";
import { Empty, Problem, State, To, Waits } from "./parts.js";
import { clean, count, line, pretty, some, usd, when } from "./words.js";

const LONG = 6000;

// Lines of a difference that are shown at first, and most changed files whose lines are.
const LINES = 200;
const OPEN = 5;

// No event tells that more of an answer has come.
const COMING = 1000;

export function Call({ id, seq }) {
  const read = useRead(() => api.entry(id, seq), [id, seq],
    { on: ofRun(id), every: (one) => (one?.live ? COMING : SLOW) });
  const e = read.data;
  const run = useRead(() => api.run(id), [id], ONCE);
  const files = useRead(() => api.files(id, seq), [id, seq], { on: ofRun(id) });
  const [diffs, compare] = useState(false);
  const before = useRead(() => (diffs && e?.call_before ? api.entry(id, e.call_before) : Promise.resolve(null)), [diffs, id, e?.call_before], ONCE);
  const go = (n) => {
    if (n > 0) location.hash = `#/run/${encodeURIComponent(id)}/${n}`;
  };
  useKeys((key) => {
    if (key === "j" || key === "ArrowRight") go(seq + 1);
    else if (key === "k" || key === "ArrowLeft") go(seq - 1);
    else if (key === "d") compare((on) => !on);
    else if (key === "u" || key === "Escape") location.hash = `#/run/${encodeURIComponent(id)}`;
  }, [id, seq]);
  return html`
    <div class="head">
      <h1><${To} path=${["run", id]}>${line(run.data?.name ?? run.data?.job?.name ?? id, 60)}</${To}> <span class="soft">/</span> entry ${seq}</h1>${e ? html`<span class="tag">${e.act ? "act" : e.kind}</span>` : ""}
      ${e ? html`<${State} of=${standing(e)} />` : ""}
      <span class="grow"></span>
      <div class="buttons">
        ${e?.kind === "call" ? html`<button aria-pressed=${diffs} disabled=${!e.call_before} onClick=${() => compare(!diffs)} title="d">What is new in it</button>` : ""}
        <button onClick=${() => go(seq - 1)} disabled=${seq < 2} title="k">Before</button>
        <button onClick=${() => go(seq + 1)} title="j">Next</button>
      </div>
    </div>
    <${Problem} error=${read.error} again=${read.again} />
    ${!e ? (read.error ? "" : html`<${Waits} />`) : html`
      <${Facts} e=${e} id=${id} />
      <section class="panel" aria-labelledby="asked"><div class="bar"><h2 id="asked">${e.kind === "call" ? "Request" : "What it is about"}</h2>${settings(e.request)}</div>
        ${diffs && before.data ? html`<${Diff} old=${before.data} now=${e} />` : html`<${Side} side=${e.request} none=${e.kind === "call"
          ? "The request is not kept: the run's record is not “all”." : "Nothing is kept of it."} />`}
      </section>
      <section class="panel" aria-labelledby="answered"><div class="bar"><h2 id="answered">${e.kind === "call" ? "Answer" : "Value"}</h2>
        ${e.live ? html`<${State} of="running" word="still coming" />` : ""}</div>
        <${Side} side=${e.answer} none=${e.state === "open" ? "There is none yet." : "None is kept."} />
      </section>
      ${files.data?.changes.length ? html`<${Files} key=${seq} told=${files.data} own=${isOwn(e)} />` : ""}`}`;
}

/** What changed in the run's files: what a snapshot found, or what was done from an entry on until the next snapshot. */
function Files({ told, own }) {
  const all = told.changes.length + told.more;
  return html`<section class="panel" aria-labelledby="files"><div class="bar"><h2 id="files">Files</h2>
      <span class="soft">${some(all, "path")} changed ${own ? "since the snapshot before" : "from here to the next snapshot"}</span></div>
    ${told.changes.map((one) => html`<details class="in" key=${one.path} open=${all <= OPEN}>
      <summary><span class="soft">${one.what}</span> <span class="mono">${line(one.path, 300)}</span>
        ${one.lines_added || one.lines_removed ? html` <span class="soft">+${count(one.lines_added)} −${count(one.lines_removed)}</span>` : ""}</summary>
      ${one.diff ? html`<${Patch} text=${one.diff} />` : html`<span class="soft">${one.what === "mode" ? "Only the permissions differ." : "No lines to show."}</span>`}
    </details>`)}
    ${told.more ? html`<div class="in soft">and ${count(told.more)} more: “outlast files diff” prints them</div>` : ""}
  </section>`;
}

/** A unified diff, without the two lines that name its file. */
function Patch({ text }) {
  const [all, show] = useState(false);
  const lines = text.split("\n").slice(2);
  const kind = { "+": "ins", "-": "cut", "@": "soft" };
  return html`<pre class="patch">${lines.slice(0, all ? lines.length : LINES).map((one, n) => html`<span key=${n} class=${kind[one[0]] ?? ""}>${clean(one)}\n</span>`)}</pre>
    ${!all && lines.length > LINES ? html`<button onClick=${() => show(true)}>${count(lines.length - LINES)} more lines</button>` : ""}`;
}

function settings(request) {
  if (!request) return "";
  const words = Object.entries(request.settings ?? {}).map(([k, v]) => `${k} ${v}`);
  if (request.tools?.length) words.push(`tools: ${request.tools.join(" ")}`);
  return words.length ? html`<span class="soft">${line(words.join(", "), 300)}</span>` : "";
}

function Facts({ e, id }) {
  const call = e.call ?? {};
  const fact = (label, value, small) => value || value === 0
    ? html`<div><div class="label">${label}</div><div class="value">${value}${small ? html` <small>${small}</small>` : ""}</div></div>` : "";
  const usage = call.usage;
  const cached = usage ? usage.cache_read : 0;
  const notes = marks(e);
  return html`<div class="panel facts">
      ${fact(e.kind === "call" ? "Model" : "What", what(e), call.upstream)}
      ${fact("Cost, usd", cost(e), call.in_doubt ? "in doubt" : "")}
      ${fact("Tokens, in + out", tokens(e), cached ? `${count(cached)} from the cache` : "")}
      ${fact("Took", took(e), when(e.opened_at))}
      ${fact("Attempt", e.attempt, e.replayed_to ? `replayed to ${e.replayed_to}: ${usd(e.spent_nano_usd)} usd saved` : "")}
    </div>
    ${notes.length ? html`<div class="note ${e.state === "failed" ? "bad" : "care"}">${line(notes.join(", "), 600)}
      ${call.retry_of ? html` <${To} path=${["run", id, call.retry_of]}>Entry ${call.retry_of}</${To}>` : ""}
      ${e.retried_by ? html` <${To} path=${["run", id, e.retried_by]}>Entry ${e.retried_by}</${To}>` : ""}</div>` : ""}`;
}

function Side({ side, none }) {
  if (!side) return html`<${Empty}>${none}</${Empty}>`;
  if (side.turns?.length) return side.turns.map((turn, n) => html`<${Turn} key=${n} turn=${turn} />`);
  if (side.value !== undefined) return html`<div class="in"><${Long} text=${pretty(side.value)} /></div>`;
  return html`<${Empty}>${count(side.bytes)} bytes that are no conversation.</${Empty}>`;
}

export function Turn({ turn, sign }) {
  return html`<div class="turn ${sign === "+" ? "add" : sign === "-" ? "del" : ""}">
    <div class="who">${line(turn.role, 40)}</div>
    <div class="what">${turn.parts.map((part, n) => html`<${Part} key=${n} part=${part} />`)}</div>
  </div>`;
}

function Part({ part }) {
  switch (part.type) {
    case "text":
      return html`<${Long} text=${clean(part.text)} said />`;
    case "thinking":
      return html`<details><summary class="soft">thinking, ${count(part.text.length)} characters</summary><${Long} text=${clean(part.text)} said /></details>`;
    case "call":
      return html`<div class="tool"><strong>→ ${line(part.name, 120)}</strong> <span class="soft mono">${line(part.id, 60)}</span><${Long} text=${pretty(part.input)} /></div>`;
    case "result":
      return html`<div class="tool"><strong>← result</strong> <span class="soft mono">${line(part.id, 60)}</span><${Long} text=${pretty(part.text)} /></div>`;
    default:
      return html`<div class="tool soft">${line(part.what, 120)}, ${count(part.bytes)} bytes</div>`;
  }
}

/** Text, of which a long one is shown in part until somebody asks for all of it. */
function Long({ text, said }) {
  const [all, show] = useState(false);
  const cut = !all && text.length > LONG;
  return html`<pre class=${said ? "said" : ""} dir="auto">${cut ? text.slice(0, LONG) : text}</pre>
    ${cut ? html`<button onClick=${() => show(true)}>${count(text.length - LONG)} more characters</button>` : ""}`;
}

function Diff({ old, now }) {
  const found = useMemo(() => ofTurns(old.request?.turns ?? [], now.request?.turns ?? []), [old, now]);
  return html`<div class="in soft">${found.shared} turns as in entry ${old.seq}${found.rest.length ? "" : ", and nothing else: the two requests say the same"}</div>
    ${found.rest.map(([sign, turn], n) => html`<${Turn} key=${n} turn=${turn} sign=${sign} />`)}`;
}
