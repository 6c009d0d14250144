// Batch jobs: how far each is, and the items of one, with what failed grouped by why.

import { html, useMemo, useState } from "./html.js";
import * as api from "./api.js";
import { ofRun } from "./events.js";
import { SUMS, useRead } from "./live.js";
import { Ask, Empty, Meter, Problem, State, To, Waits, charged, opens } from "./parts.js";
import { ago, count, line, pretty, some, spoilt, usd } from "./words.js";

const STANDINGS = ["open", "failed", "dead", "done", "skipped"];
const PAGE = 1000;
const MOST = 20;

export function Jobs() {
  const read = useRead(() => api.jobs({ limit: 200 }), [], SUMS);
  const jobs = read.data?.jobs ?? [];
  return html`
    <div class="head"><h1>Jobs</h1></div>
    <${Problem} error=${read.error} again=${read.again} />
    <div class="panel">
      ${!read.data && !read.error ? html`<${Waits} />` : ""}
      ${read.data && !jobs.length ? html`<${Empty}>No batch jobs: <code>outlast.map(…)</code> in Python begins one.</${Empty}>` : ""}
      ${jobs.length ? html`<table class="cards"><thead><tr><th scope="col">Job</th><th scope="col">Status</th><th scope="col">Items</th><th scope="col">Spent, usd</th><th scope="col" class="num">Began</th></tr></thead>
        <tbody>${jobs.map(({ job, ...run }) => html`<tr key=${run.run} onClick=${opens(["jobs", run.run])}>
          <td><${To} path=${["jobs", run.run]} class="name">${line(job.name, 100)}</${To}></td><td><${State} of=${run.status} /></td>
          <td class="whole"><${Progress} job=${job} /></td><td class="whole"><${Meter} spent=${charged(run)} limit=${run.limit_nano_usd} /></td>
          <td class="num wide soft">${ago(run.began_at ?? run.created_at)}</td></tr>`)}</tbody></table>` : ""}
    </div>`;
}

function Progress({ job }) {
  const over = job.done + job.skipped;
  const share = job.items ? (100 * over) / job.items : 0;
  const bad = spoilt(job);
  return html`<div class="meter" role="img" aria-label=${[`${over} of ${job.items} items done`, bad].filter(Boolean).join(", ")}>
    <span>${count(over)}</span> <span class="soft">of ${count(job.items)}</span>${bad ? html` <span class="bad">✗ ${bad}</span>` : ""}
    <div class="track"><i style=${{ width: `${share}%` }}></i></div></div>`;
}

/** Reads the items of one standing, at most `MOST` pages. */
async function itemsOf(id, standing) {
  let [found, after] = [[], 0];
  for (let n = 0; n < MOST && after !== null; n++) {
    const page = await api.items(id, { standing, after, limit: PAGE, values: standing === "failed" || standing === "dead" || undefined });
    found = found.concat(page.items);
    after = page.after;
    if (found.length >= PAGE) break;
  }
  return { items: found, more: after !== null };
}

/** Tells in one line why an item failed: what its error says, and why it is not tried again. */
function why(item) {
  const error = item.value?.error ?? item.value;
  const said = [String(error?.type ?? "").replace(/^.*\./, ""), error?.message].filter(Boolean).join(": ");
  const told = said || (typeof error === "string" ? error : error && JSON.stringify(error));
  return line([told, item.reason].filter(Boolean).join("; ") || "no reason is kept", 200);
}

export function Job({ id, looks }) {
  const read = useRead(() => api.run(id), [id], { on: ofRun(id) });
  const job = read.data?.job;
  const bad = job ? job.failed + job.dead : 0;
  const [standing, choose] = useState(null);
  const shown = standing ?? (job?.failed ? "failed" : job?.dead ? "dead" : job?.open ? "open" : "done");
  const items = useRead(() => (job ? itemsOf(id, shown) : Promise.resolve(null)), [id, shown, Boolean(job)], { on: ofRun(id), ...SUMS });
  const [ask, open] = useState(null);
  const [problem, tell] = useState(null);
  const retry = async (form) => {
    try {
      await api.act(id, "retry", { ...(ask.key ? { keys: [ask.key] } : { failed: true }), reuse_answers: Boolean(form.reuse) });
      open(null);
      tell(null);
      read.again();
      items.again();
    } catch (error) {
      tell(error);
    }
  };
  const list = items.data?.items ?? [];
  const groups = useMemo(() => {
    if (shown !== "failed" && shown !== "dead") return null;
    const found = new Map();
    for (const item of list) found.set(why(item), [...(found.get(why(item)) ?? []), item]);
    return [...found.entries()].sort((a, b) => b[1].length - a[1].length);
  }, [items.data, shown]);
  if (!read.data) return html`<${Problem} error=${read.error} again=${read.again} />${read.error ? "" : html`<${Waits} />`}`;
  if (!job) return html`<${Empty}>${line(id, 80)} is no batch job. <${To} path=${["run", id]}>Its run</${To}></${Empty}>`;
  return html`
    <div class="head"><h1>${line(job.name, 90)}</h1><${State} of=${read.data.status} /><span class="grow"></span>
      <${To} path=${["run", id]}>Timeline and journal</${To}>
      ${bad && !looks ? html`<button onClick=${() => open({})}>Retry ${some(bad, "item")}</button>` : ""}</div>
    <${Problem} error=${read.error} />
    <div class="panel facts">
      <div><div class="label">Items</div><div class="value"><${Progress} job=${job} /></div></div>
      <div><div class="label">Spent, usd</div><div class="value"><${Meter} spent=${charged(read.data)} limit=${read.data.limit_nano_usd} /></div></div>
      <div><div class="label">Per item done</div><div class="value">${job.done ? usd(read.data.spent_nano_usd / job.done) : "–"} <small>usd</small></div></div>
    </div>
    <section class="panel" aria-labelledby="items">
      <div class="bar"><h2 id="items">Items</h2><div class="buttons" role="group" aria-label="Standing">
        ${STANDINGS.filter((s) => job[s]).map((s) => html`<button key=${s} aria-pressed=${shown === s} onClick=${() => choose(s)}>${s} ${count(job[s])}</button>`)}</div></div>
      <${Problem} error=${items.error} again=${items.again} />
      ${!items.data && !items.error ? html`<${Waits} />` : ""}
      ${groups ? groups.map(([reason, of]) => html`<details key=${reason} open=${groups.length < 4}><summary class="in"><strong>${some(of.length, "item")}</strong> <span class="mono">${reason}</span></summary>
          <${Items} items=${of} again=${looks ? null : (item) => open({ key: item.key })} /></details>`)
        : list.length ? html`<${Items} items=${list} />` : ""}
      ${items.data?.more ? html`<p class="in soft">The first ${count(list.length)} are shown. All: <code>outlast inspect</code></p>` : ""}
    </section>
    ${ask ? html`<${Ask} title=${ask.key ? `Run ${line(ask.key, 60)} again?` : `Run ${some(bad, "item")} again?`} word="Run again" act=${retry} problem=${problem} close=${() => { open(null); tell(null); }}>
      <p>They become pending. The next start of the job's script runs them.</p>
      <div class="field"><input type="checkbox" id="reuse" name="reuse" value="1" /><label for="reuse">replay answers that were paid for</label></div></${Ask}>` : ""}`;
}

function Items({ items, again }) {
  return html`<div class="scroll" tabindex="0" role="group" aria-label="Table"><table class="cards items"><thead><tr><th scope="col">Key</th><th scope="col" class="num">Tries</th><th scope="col" class="num">Deaths</th><th scope="col" class="num">Calls</th><th scope="col" class="num">usd</th><th scope="col" class="num">Ended</th>${again ? html`<th scope="col"><span class="only-read">Act</span></th>` : ""}</tr></thead>
    <tbody>${items.slice(0, 500).map((item) => html`<tr key=${item.seq}>
      <td class="mono">${line(item.key, 120)}${item.value !== undefined ? html`<details><summary class="soft">error</summary><pre>${pretty(item.value)}</pre></details>` : ""}</td>
      <td class="num wide">${item.tries ?? ""}</td><td class="num wide">${item.deaths || ""}</td><td class="num wide">${count(item.calls)}</td><td class="num" data-unit="usd">${usd(item.spent_nano_usd)}</td>
      <td class="num soft">${item.closed_at ? ago(item.closed_at) : ""}</td>${again ? html`<td class="num"><button onClick=${() => again(item)}>Retry</button></td>` : ""}</tr>`)}</tbody></table></div>`;
}
