// One run: what it is doing, what it cost, its lives as a timeline, and its journal.

import { html, useEffect, useMemo, useRef, useState } from "./html.js";
import * as api from "./api.js";
import { ofRun } from "./events.js";
import { ONCE, useKeys, useLater, useNews, useRead } from "./live.js";
import { Acts } from "./acts.js";
import { Journal, actWord, isOwn, standing, told as said } from "./journal.js";
import { replaysOf } from "./lanes.js";
import { Timeline } from "./timeline.js";
import { Command, Meter, Problem, Spent, State, Tags, To, Waits, paid } from "./parts.js";
import { ago, amount, between, change, clean, count, ended, lasted, line, some, span, unitWord, usd, when } from "./words.js";

const PAGE = 1000;
// Milliseconds between two reads of a run that is at work.
const BETWEEN = 700;

/**
 * Reads all entries of a run, page by page, and then what is new and what was open. An answer that is replayed changes an
 * entry that was closed long ago: when the run's count of them grows, all is read again. A run that is over is not.
 */
function useEntries(id, live, replayed, told) {
  const kept = useRef(null);
  const [all, tell] = useState({ list: [], whole: false, error: null });
  useEffect(() => {
    kept.current = { map: new Map(), after: 0, counted: null, ended: false };
    tell({ list: [], whole: false, error: null });
  }, [id]);
  const again = useNews(async (over) => {
    const had = kept.current;
    // What the run is, and how its entries are told, is known first.
    if (had.ended || replayed.current === null) return;
    // A run that was over before this look changes no more after it.
    had.ended = !live.current;
    try {
      // Open entries and lost calls may change: they are read again from the oldest of them on.
      const counted = replayed.current;
      const same = had.counted === counted || (had.counted === null && had.ended);
      let from = same ? had.after : 0;
      for (const e of had.map.values()) {
        if ((e.state === "open" || e.state === "unknown") && e.seq - 1 < from) from = Math.max(e.seq - 1, had.after - PAGE);
      }
      let changed = !had.map.size;
      for (let next = from; next !== null && !over(); ) {
        const page = await api.entries(id, { after: next, limit: PAGE, gist: told.current || undefined });
        for (const e of page.entries) {
          const known = had.map.get(e.seq);
          if (!known || known.state !== e.state || known.replayed_to !== e.replayed_to) changed = true;
          had.map.set(e.seq, e);
          had.after = Math.max(had.after, e.seq);
        }
        next = page.after;
        if (next !== null && had.map.size <= 2 * PAGE) tell({ list: [...had.map.values()], whole: false, error: null });
      }
      had.counted = counted;
      if (changed && !over()) tell({ list: [...had.map.values()].sort((a, b) => a.seq - b.seq), whole: true, error: null });
    } catch (error) {
      had.ended = false;
      if (!over()) tell((told) => ({ ...told, error }));
    }
  }, [id], { on: ofRun(id), least: BETWEEN });
  useEffect(() => {
    if (replayed.current !== null) again();
  }, [replayed.current]);
  return all;
}

export function Run({ id, looks }) {
  const live = useRef(true);
  const replayed = useRef(null);
  const read = useRead(() => Promise.all([api.run(id), api.attempts(id)]), [id], { on: ofRun(id), least: BETWEEN });
  const [run, lives] = read.data ?? [];
  replayed.current = run ? run.replayed ?? 0 : null;
  // What was said and done is worth a line where a program keeps its conversation itself; a job's calls are too many.
  const told = useRef(false);
  told.current = Boolean(run?.command);
  live.current = !run || !["completed", "failed", "cancelled"].includes(run.status);
  const entries = useEntries(id, live, replayed, told);
  const drawn = useLater(entries.list);
  const [chosen, choose] = useState(null);
  const [act, ask] = useState(null);
  // The same attempts are the same list: a timeline is not laid out anew for nothing.
  const attempts = useMemo(() => lives?.attempts ?? [], [JSON.stringify(lives?.attempts)]);
  const waits = useMemo(() => lives?.waits ?? [], [JSON.stringify(lives?.waits)]);
  const printed = useRead(async () => (run?.command ? (await api.attempts(id, { lines: PRINTED })).attempts : []),
    [id, Boolean(run?.command), attempts.filter((a) => a.ended_at).length], ONCE);
  useKeys((key) => {
    if (key === "u" || key === "Escape") location.hash = "#/runs";
    else if (key === "x" && !looks) ask("stop");
    else if (key === "+" && !looks) ask("raise");
  }, [looks]);
  if (!run) return html`<${Problem} error=${read.error} again=${read.again} />${read.error ? "" : html`<${Waits} />`}`;
  return html`
    <div class="head">
      <h1>${line(run.name ?? run.job?.name ?? run.run, 90)}</h1>
      <${State} of=${run.status} word=${run.stop_requested && live.current ? `${run.status}, stopping` : run.status} />
      <span class="grow"></span>
      ${looks ? "" : html`<${Acts} run=${run} attempts=${attempts} chosen=${chosen} act=${act} ask=${ask} done=${read.again} />`}
    </div>
    <${Problem} error=${read.error} />
    <${Place} run=${run} />
    ${run.last_words ? html`<p class="place">Last words: “${line(run.last_words, 200)}”</p>` : ""}
    <${Why} run=${run} attempts=${attempts} entries=${entries.list} />
    <${Facts} run=${run} attempts=${attempts} />
    <${Plans} plans=${run.plans ?? []} />
    <section class="panel" aria-labelledby="timeline">
      <${Timeline} entries=${drawn} attempts=${attempts} waits=${waits} run=${run} chosen=${chosen} choose=${choose} />
    </section>
    <${Waited} waits=${waits} />
    <${Partings} run=${run} attempts=${attempts} entries=${entries.list} />
    <${Decisions} id=${run.run} entries=${entries.list} />
    <${Problem} error=${entries.error} />
    <section class="panel" aria-labelledby="journal">
      <${Journal} id=${run.run} entries=${entries.list} whole=${entries.whole} chosen=${chosen} choose=${choose} />
    </section>
    <div class="two">
      <section class="panel" aria-labelledby="lives"><h2 id="lives">Attempts</h2><${Lives} run=${run} attempts=${attempts} entries=${entries.list} printed=${printed.data ?? []} /></section>
      <section class="panel" aria-labelledby="budget"><h2 id="budget">Budget</h2><${Budget} units=${run.budget ?? []} /></section>
    </div>
    <${About} run=${run} />`;
}

/** Where it runs, and its tags. */
function Place({ run }) {
  const tags = Object.entries(run.tags ?? {});
  if (!run.directory && !tags.length) return null;
  return html`<p class="place">${run.directory ? html`<span class="soft mono">${line(run.directory, 300)}</span> ` : ""}<${Tags} tags=${tags} /></p>`;
}

// Lines that an attempt printed last.
const PRINTED = 4;

/** How far the windows of its login's plan are used, by whomever, and when they turn. */
function Plans({ plans }) {
  const windows = plans.flatMap((plan) => plan.windows.filter((w) => !w.is_over));
  if (!windows.length) return null;
  const percent = (n) => `${Number(n.toFixed(1))} %`;
  return html`<section class="panel" aria-labelledby="plan"><h2 id="plan">Plan</h2><div class="scroll" tabindex="0" role="group" aria-label="Table"><table>
    <thead><tr><th scope="col">Window</th><th scope="col">Used</th><th scope="col">Turns</th><th scope="col">Used up</th></tr></thead>
    <tbody>${windows.map((w, n) => html`<tr key=${n}><td>${line(w.window, 40)}</td>
      <td class=${`nowrap ${w.used_percent >= (w.ceiling_percent ?? 100) ? "bad" : ""}`}>${percent(w.used_percent)}${w.ceiling_percent === null ? "" : ` of ${percent(w.ceiling_percent)}`}</td>
      <td class="nowrap">${when(w.resets_at, false)}</td><td class="nowrap">${when(w.used_up_at, false)}</td></tr>`)}</tbody></table></div></section>`;
}

// Most waits that are listed, the newest ones. The timeline shows all.
const WAITS = 20;

/** When the run waited, and for whom. */
function Waited({ waits }) {
  if (!waits.length) return null;
  return html`<section class="panel" aria-labelledby="waited"><h2 id="waited">Waited</h2><div class="scroll" tabindex="0" role="group" aria-label="Table"><table>
    <thead><tr><th scope="col">For</th><th scope="col">From</th><th scope="col" class="num">How long</th><th scope="col">Why</th></tr></thead>
    <tbody>${waits.slice(-WAITS).reverse().map((w) => html`<tr key=${w.from}><td class="nowrap">${line(w.whom, 40)}</td><td class="nowrap">${when(w.from)}</td>
      <td class="num">${span(between(w.from, w.to))}${w.to ? "" : " so far"}</td><td>${line(w.why, 200)}${w.why_since > w.from ? ` since ${when(w.why_since)}` : ""}</td></tr>`)}</tbody></table></div></section>`;
}

/** What is wrong, and what a person can do. */
function Why({ run, attempts, entries }) {
  const last = attempts.at(-1);
  const notes = [];
  // What halts a run is also what it waits for.
  if (run.why) notes.push([["halted", "failed"].includes(run.status) ? "bad" : "care", run.why, run.resume?.length ? null : run.halt?.hint]);
  const asked = entries.filter((e) => e.approval && e.state === "open" && !run.ended_at);
  for (const e of asked) notes.push(["care", `Asks a person: ${e.approval.tool}`, null, "approvals"]);
  if (run.status === "interrupted") notes.push(["care", `Nobody drives it${last?.died ? `; attempt ${last.attempt}: ${ended(last)}` : ""}.`]);
  if (run.status === "sleeping" && run.wake_at) notes.push(["care", `It sleeps until ${when(run.wake_at)}.`]);
  return notes.map(([kind, text, hint, to], n) => html`<div key=${n} class="note ${kind}">
    ${line(text, 400)}${to ? html` <${To} path=${[to]}>Decide</${To}>` : ""}${hint ? html`<p class="soft mono">${line(hint, 400)}</p>` : ""}
  </div>`).concat(run.resume?.length ? html`<${Resume} key="resume" run=${run} />` : []);
}

/** Commands that take the run up again. A page has no process of the person's machine to start them in. */
function Resume({ run }) {
  return html`<div class="note" role="group" aria-label="To go on">
    <p>To go on, type ${run.resume.length > 1 ? "one of these" : "this"} on the machine on which it ran. ${run.halt?.unit
      ? "It gets room in its budget, and a new attempt begins." : "A new attempt begins."} ${run.calls
      ? "Recorded answers are replayed where the agent asks the same, and not paid again." : ""}</p>
    ${run.resume.map((text) => html`<${Command} key=${text} text=${text} />`)}
  </div>`;
}

function Facts({ run, attempts }) {
  const died = attempts.filter((a) => a.died).length;
  const fact = (label, value, small) => html`<div><div class="label">${label}</div><div class="value">${value}${small ? html` <small>${small}</small>` : ""}</div></div>`;
  return html`<div class="panel facts">
    <div><div class="label">${run.login ? "List price, usd; not billed" : "Billed, usd"}</div><div class="value"><${Spent} run=${run} /></div></div>
    ${fact("Calls", count(paid(run)), `${count(run.tokens)} tokens${run.unpaid_calls ? `, ${count(run.unpaid_calls)} failed` : ""}`)}
    ${fact("Lives", some(attempts.length, "attempt"), died ? some(died, "death") : "no death")}
    ${fact("Replayed, not paid again", some(run.replayed ?? 0, "answer"), `${usd(run.saved_nano_usd)} usd saved`)}
    ${run.in_doubt_nano_usd ? fact("In doubt", `${usd(run.in_doubt_nano_usd)} usd`, "outcome unknown") : ""}
    ${run.job ? fact("Job", `${count(run.job.done)} of ${some(run.job.items, "item")} done`, html`<${To} path=${["jobs", run.run]}>open the job</${To}>`) : ""}
    ${run.loop ? fact("Iterations", count(run.loop.finished), run.loop.max_iterations ? `of at most ${run.loop.max_iterations}` : "") : ""}
    ${fact("Began", when(run.began_at ?? run.created_at), run.began_at ? `took ${span(lasted(run))}` : "")}
  </div>`;
}

// Most decisions that are shown, the newest ones. All are in the journal.
const DECISIONS = 50;

/** Lists answers to approvals and orders of people, with who gave them. */
function Decisions({ id, entries }) {
  const all = useMemo(() => entries.filter((e) => e.act || e.approval?.decision || e.approval?.blocked || e.item?.reset_by), [entries]);
  if (!all.length) return null;
  const what = (e) => {
    if (e.act) return [actWord(e.act), e.act.by, e.act.what === "raise" && e.act.about ? change(e.act.about) : e.act.about];
    if (e.item) return ["run again", e.item.reset_by, e.key];
    const decided = e.approval.decision;
    if (!decided) return ["blocked", "the run's policy", e.approval.tool];
    return [decided.approve ? "approved" : "denied", decided.way && !decided.way.includes(decided.by) ? `${decided.by} (${decided.way})` : decided.by,
      `${e.approval.tool}${decided.reason ? `: ${decided.reason}` : ""}`];
  };
  return html`<section class="panel" aria-labelledby="decisions"><h2 id="decisions">Who decided</h2>
    <div class="scroll" tabindex="0" role="group" aria-label="Table"><table>
    <thead><tr><th scope="col">What</th><th scope="col">Who</th><th scope="col">About</th><th scope="col">When</th><th scope="col" class="num">Entry</th></tr></thead>
    <tbody>${all.slice(-DECISIONS).reverse().map((e) => {
      const [word, by, about] = what(e);
      return html`<tr key=${e.seq}><td class="nowrap">${STATED.includes(word) ? html`<${State} of=${word} />` : line(word, 40)}</td><td>${line(by, 120)}</td><td>${line(about ?? "", 200)}</td>
        <td class="nowrap">${when(e.approval?.decision?.at ?? e.closed_at ?? e.opened_at)}</td><td class="num"><${To} path=${["run", id, e.seq]}>${e.seq}</${To}></td></tr>`;
    })}</tbody></table></div></section>`;
}

const STATED = ["approved", "denied", "blocked"];

/** Where an attempt asked something new although recorded answers were left. */
function Partings({ run, attempts, entries }) {
  const parted = attempts.filter((a) => a.diverged_at);
  // An agent that keeps its conversation itself asks something new whenever it is started again.
  const isUsual = entries.some((e) => e.key?.startsWith("outlast:session"));
  if (!parted.length || (isUsual && run.halt?.code !== "diverged")) return null;
  return html`<div class="note care">
    ${parted.map((a) => html`<p key=${a.attempt}>Attempt ${a.attempt} asked something new at
      <${To} path=${["run", run.run, a.diverged_at]}> entry ${a.diverged_at}</${To}> while${" "}
      ${some(a.diverged_untaken, "recorded answer")} were left.</p>`)}
    <p class="soft mono">outlast journal ${clean(run.run)} --divergence</p>
  </div>`;
}

function Lives({ run, attempts, entries, printed }) {
  const [id, replayed] = [run.run, run.replayed];
  const last = new Map(printed.map((a) => [a.attempt, a.last_lines ?? []]));
  const done = useMemo(() => {
    const found = new Map();
    const of = (attempt) => found.get(attempt) ?? found.set(attempt, { calls: 0, cost: 0, last: null }).get(attempt);
    for (const e of entries) {
      const had = of(e.attempt);
      // What was at work when it ended says more than what was opened after that.
      if (!isOwn(e) && (!had.last || had.last.closed_at)) had.last = e;
      if (e.kind !== "call") continue;
      if (e.gist) had.words = e.gist;
      // As everywhere: the calls that were paid.
      if (e.state !== "failed" || e.spent_nano_usd) had.calls += 1;
      had.cost += e.spent_nano_usd;
    }
    return found;
  }, [entries]);
  const given = useMemo(() => replaysOf(entries, attempts, replayed), [entries, attempts, replayed]);
  return html`<div class="scroll" tabindex="0" role="group" aria-label="Table"><table>
    <thead><tr><th scope="col">#</th><th scope="col">How it ended</th><th scope="col" class="num">Calls</th><th scope="col" class="num">usd</th><th scope="col" class="num">Replayed to it</th><th scope="col">Began</th><th scope="col">Up</th></tr></thead>
    <tbody>${attempts.slice(-50).reverse().map((a) => {
      const [of, was] = [done.get(a.attempt), given.get(a.attempt)];
      return html`<tr key=${a.attempt}>
        <td>${a.attempt}${a.label ? html`<span class="under">${line(a.label, 30)}</span>` : ""}</td>
        <td>${a.died ? html`<span class="bad">✗ </span>` : ""}${ended(a)}${a.died ? html`<span class="under">${of?.last ? html`${within(a, of.last)} <${To} path=${["run", id, of.last.seq]}>entry ${of.last.seq}</${To}>, ${of.last.act ? "act" : of.last.kind}${of.last.kind === "tool" && of.last.gist ? `: ${said(of.last)}` : ""}`
          : "before it did anything new"}</span>` : ""}${of?.words ? html`<span class="under">${line(of.words, 200)}</span>` : ""}${
          (last.get(a.attempt) ?? []).map((text, n) => html`<span key=${n} class="under mono">${line(text, 160)}</span>`)}</td>
        <td class="num">${count(of?.calls ?? 0)}</td>
        <td class="num">${usd(of?.cost ?? 0)}</td>
        <td class="num nowrap">${was?.replayed ? html`${was.least ? "at least " : ""}${some(was.replayed, "answer")}<span class="under good">${usd(was.saved)} usd saved</span>` : ""}</td>
        <td class="nowrap">${when(a.started_at)}</td>
        <td class="nowrap">${span(a.wall_ms)}</td>
      </tr>`;
    })}</tbody>
  </table></div>`;
}

/** Tells whether a death cut the entry off, or came after it. */
const within = (a, e) => (e.closed_at && e.closed_at <= a.ended_at && standing(e) !== "unknown" ? "after" : "within");

function Budget({ units }) {
  const used = units.filter((u) => u.limit !== null || u.spent > 0);
  const [flies, doubts] = [used.some((u) => u.reserved), used.some((u) => u.in_doubt)];
  return html`<div class="scroll" tabindex="0" role="group" aria-label="Table"><table>
    <thead><tr><th scope="col">Unit</th><th scope="col">Spent</th>${flies ? html`<th scope="col" class="num">In flight</th>` : ""}${doubts ? html`<th scope="col" class="num">In doubt</th>` : ""}<th scope="col" class="num">Left</th></tr></thead>
    <tbody>${used.map((u) => html`<tr key=${u.unit}>
      <td>${unitWord(u.unit)}</td>
      <td><${Meter} spent=${u.spent} held=${u.reserved} limit=${u.limit} unit=${u.unit} /></td>
      ${flies ? html`<td class="num">${u.reserved ? amount(u.unit, u.reserved) : ""}</td>` : ""}
      ${doubts ? html`<td class="num">${u.in_doubt ? amount(u.unit, u.in_doubt) : ""}</td>` : ""}
      <td class="num ${u.left !== null && u.left <= 0 ? "bad" : ""}">${u.left === null ? "" : amount(u.unit, Math.max(0, u.left))}</td>
    </tr>`)}</tbody>
  </table></div>`;
}

function About({ run }) {
  return html`<section class="panel"><h2>About</h2><div class="in">
    <p class="mono">${clean(run.run)}</p>
    ${run.command ? html`<p class="mono">${line(run.command.argv.join(" "), 600)}</p>` : ""}
    ${run.parent ? html`<p>Inside of <${To} path=${["run", run.parent]}>${line(run.parent, 120)}</${To}></p>` : ""}
    <p><${To} path=${["state", `run:${run.run}`]}>Its state</${To}></p>
    <p class="soft">Last changed ${ago(run.changed_at)}</p>
  </div></section>`;
}
