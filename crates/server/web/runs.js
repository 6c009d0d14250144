// The list of runs: what each is doing, and what it has cost of what it may.

import { html, useState } from "./html.js";
import * as api from "./api.js";
import { SUMS, useKeys, useRead } from "./live.js";
import { Empty, Problem, Spent, State, Tags, To, Waits, opens, paid } from "./parts.js";
import { ago, clean, count, lasted, line, some, span, spoilt } from "./words.js";

const STATUSES = ["running", "waiting", "sleeping", "interrupted", "halted", "completed", "failed", "cancelled"];
const PAGE = 100;

// Most requests for one page. Each looks at some thousand runs, of which a name may fit few.
const MOST = 20;

async function page(words, over) {
  let found = [];
  for (let n = 1; ; n++) {
    const told = await api.runs({ ...words, limit: PAGE - found.length });
    found = found.concat(told.runs);
    words = { ...words, cursor: told.cursor };
    if (!told.cursor || found.length === PAGE || n === MOST || over()) return { runs: found, cursor: told.cursor };
  }
}

/** What is looked for: `tag:KEY=VALUE` and `dir:/PATH` are words of their own, the rest is a part of a name or an id. */
function words(text) {
  const found = {};
  const rest = text.split(/\s+/).filter((word) => {
    const [, key, value] = /^(tag|dir):(.+)$/.exec(word) ?? [];
    if (key) found[key === "tag" ? "tag" : "directory"] = value;
    return !key;
  });
  return { ...found, name: rest.join(" ") };
}

export function Runs() {
  const [status, choose] = useState("");
  const [name, seek] = useState("");
  const [cursors, turn] = useState([]);
  const cursor = cursors.at(-1);
  const read = useRead((over) => page({ status, ...words(name), cursor }, over), [status, name, cursor], name ? { ...SUMS, keep: true } : { keep: true });
  const [at, move] = useState(0);
  const runs = read.data?.runs ?? [];
  const listed = runs.some((run) => run.login);
  useKeys((key, event) => {
    if (key === "j" || key === "ArrowDown") move((n) => Math.min(runs.length - 1, n + 1));
    else if (key === "k" || key === "ArrowUp") move((n) => Math.max(0, n - 1));
    else if ((key === "Enter" || key === "o") && runs[at] && event.target.closest?.("a, button") === null) location.hash = `#/run/${encodeURIComponent(runs[at].run)}`;
    else if (key === "/") document.getElementById("seek")?.focus();
    else return;
    event.preventDefault();
  }, [runs.length, at]);
  const filter = (act) => (event) => {
    turn([]);
    move(0);
    act(event.target.value);
  };
  const only = (key, value) => filter(seek)({ target: { value: `tag:${key}${value ? `=${value}` : ""}` } });
  return html`
    <div class="head">
      <h1>Runs</h1>
      <span class="grow"></span>
      <label class="only-read" for="seek">Name or id, tag:KEY=VALUE, dir:/PATH</label>
      <input id="seek" type="search" size="28" placeholder="name, tag:team=a, dir:/path" title="/" value=${name} onInput=${filter(seek)} />
      <label class="only-read" for="status">Status</label>
      <select id="status" value=${status} onChange=${filter(choose)}>
        <option value="">every status</option>
        ${STATUSES.map((s) => html`<option key=${s} value=${s}>${s}</option>`)}
      </select>
    </div>
    <${Problem} error=${read.error} again=${read.again} />
    <div class="panel">
      ${!read.data && !read.error ? html`<${Waits} />` : ""}
      ${read.data && !runs.length ? html`<${Empty}>${status || name ? "No such run." : "No runs yet: outlast run -- COMMAND begins one."}</${Empty}>` : ""}
      ${runs.length ? html`<table class="cards">
        <thead><tr><th scope="col">Run</th><th scope="col">Status</th><th scope="col">Billed, usd</th>${listed ? html`<th scope="col">List price, usd</th>` : ""}
          <th scope="col" class="num">Calls</th><th scope="col" class="num">Attempts</th><th scope="col" class="num">Took</th><th scope="col" class="num">Began</th></tr></thead>
        <tbody>${/* By place: a page that is turned keeps its rows, and only their texts change. */
          runs.map((run, n) => html`<${Row} key=${n} run=${run} at=${n === at} listed=${listed} seek=${only} />`)}</tbody>
      </table>` : ""}
    </div>
    <div class="buttons">
      ${cursors.length ? html`<button onClick=${() => turn(cursors.slice(0, -1))}>Newer</button>` : ""}
      ${read.data?.cursor ? html`<button onClick=${() => turn([...cursors, read.data.cursor])}>Older</button>` : ""}
    </div>`;
}

function Row({ run, at, listed, seek }) {
  const job = run.job;
  const tags = Object.entries(run.tags ?? {});
  return html`<tr class=${at ? "at" : ""} onClick=${opens(["run", run.run])}>
    <td>
      <${To} path=${["run", run.run]} class="name">${line(run.name ?? job?.name ?? run.run, 80)}</${To}>
      ${run.name || job ? html`<span class="under mono">${clean(run.run)}</span>` : ""}
      ${run.directory ? html`<span class="under mono">${line(run.directory, 120)}</span>` : ""}
      ${tags.length ? html`<span class="under"><${Tags} tags=${tags} act=${seek} /></span>` : ""}
    </td>
    <td><${State} of=${run.status} word=${run.stop_requested && run.status === "running" ? "stopping" : run.status} />
      ${run.pending_approvals && !run.ended_at ? html`<span class="under care">${some(run.pending_approvals, "approval")} waiting</span>` : ""}
      ${run.restarts ? html`<span class="under bad">${some(run.restarts, "restart")}</span>` : ""}
      ${run.why ? html`<span class="under" title=${clean(run.why)}>${line(run.why, 70)}</span>` : ""}
      ${job ? html`<span class="under">${count(job.done)} of ${some(job.items, "item")}${spoilt(job) ? `, ${spoilt(job)}` : ""}</span>` : ""}
    </td>
    <td class="whole">${run.login ? html`<span class="soft">not billed</span>` : html`<${Spent} run=${run} />`}</td>
    ${listed ? html`<td class="whole">${run.login ? html`<${Spent} run=${run} />` : ""}</td>` : ""}
    <td class="num wide">${count(paid(run))}${run.unpaid_calls ? html`<span class="under bad">${count(run.unpaid_calls)} failed</span>` : ""}</td>
    <td class="num wide">${count(run.attempt_count)}</td>
    <td class="num wide">${run.began_at ? span(lasted(run)) : "–"}</td>
    <td class="num wide soft">${ago(run.began_at ?? run.created_at)}</td>
  </tr>`;
}
