// What agents ask people. One key decides over the one that is marked.

import { html, useState } from "./html.js";
import * as api from "./api.js";
import { ofApprovals } from "./events.js";
import { useKeys, useRead } from "./live.js";
import { Empty, Problem, State, To, Waits } from "./parts.js";
import { ago, line, pretty, span, when } from "./words.js";

export function Approvals({ looks }) {
  const [status, choose] = useState("pending");
  const read = useRead(() => api.approvals({ status, limit: 200 }), [status], { on: ofApprovals });
  const [at, move] = useState(null);
  const [problem, tell] = useState(null);
  const [busy, work] = useState(false);
  const [by, name] = useState(api.session.who());
  const all = read.data ?? [];
  // The mark stays with its question: another one that arrives must not slide below the finger.
  const place = Math.max(0, all.findIndex((one) => one.id === at));
  const marked = all[place];
  const decide = async (one, approve) => {
    if (looks || busy || !one || one.outcome !== "pending") return;
    work(true);
    tell(null);
    move(all[place + 1]?.id ?? all[place - 1]?.id ?? null);
    try {
      await api.decide(one, approve, by.trim());
    } catch (error) {
      tell(error);
    }
    work(false);
    read.again();
  };
  useKeys((key, event) => {
    if (key === "j" || key === "ArrowDown") move(all[Math.min(all.length - 1, place + 1)]?.id);
    else if (key === "k" || key === "ArrowUp") move(all[Math.max(0, place - 1)]?.id);
    else if (key === "a" && !event.repeat) decide(marked, true);
    else if (key === "d" && !event.repeat) decide(marked, false);
    else return;
    event.preventDefault();
  }, [all, place, by, busy, looks]);
  return html`
    <div class="head"><h1>Approvals</h1><span class="grow"></span>
      ${looks ? "" : html`<label for="who" class="soft">You are</label><input id="who" size="12" maxlength="80" placeholder="page" value=${by}
        onInput=${(e) => { name(e.target.value); api.session.keepWho(e.target.value); }} />`}
      <label for="of" class="only-read">Which</label>
      <select id="of" value=${status} onChange=${(e) => { choose(e.target.value); move(null); }}>
        ${[["pending", "that wait"], ["approved", "approved"], ["denied", "denied"], ["timeout", "nobody decided"], ["blocked", "blocked"], ["", "all"]].map(([v, word]) => html`<option key=${v} value=${v}>${word}</option>`)}
      </select>
    </div>
    <${Problem} error=${problem ?? read.error} again=${problem ? null : read.again} />
    ${looks || status !== "pending" || !all.length ? "" : html`<p class="soft"><kbd>j</kbd> <kbd>k</kbd> mark one, <kbd>a</kbd> approves it, <kbd>d</kbd> denies it. What you see is what is approved, to the byte.</p>`}
    <div class="panel">
      ${!read.data && !read.error ? html`<${Waits} />` : ""}
      ${read.data && !all.length ? html`<${Empty}>${status === "pending" ? "Nobody waits for you." : "None."}</${Empty}>` : ""}
      ${all.map((one) => html`<article key=${one.id} class=${one === marked ? "ask at" : "ask"} onClick=${() => move(one.id)} aria-label=${`${one.tool} of ${one.runName ?? one.runId}`}>
        <div class="head"><${State} of=${one.outcome} /><strong>${line(one.tool, 120)}</strong>
          ${one.sideEffect ? html`<span class="tag">${line(one.sideEffect, 40)}</span>` : ""}
          <${To} path=${["run", one.runId]} title=${line(one.runId, 140)}>${line(one.runName ?? one.runId, 80)}</${To}>
          ${one.runName ? html`<span class="soft mono">${line(one.runId, 60)}</span>` : ""}
          <span class="soft">${ago(one.createdAt)}${one.outcome === "pending" ? `, ${left(one)}` : ""}</span><span class="grow"></span>
          ${one.outcome === "pending" && !looks ? html`<div class="buttons">
            <button class="main" disabled=${busy} onClick=${() => decide(one, true)}>Approve</button><button class="grave" disabled=${busy} onClick=${() => decide(one, false)}>Deny</button></div>` : ""}
        </div>
        ${one.arguments !== null && one.arguments !== undefined ? html`<pre tabindex="0" aria-label="Arguments">${pretty(one.arguments)}</pre>` : ""}
        ${one.decidedBy || one.reason ? html`<div class="soft">${one.decidedBy ? `${line(one.decidedBy, 80)}, ${when(one.decidedAt)}` : ""} ${line(one.reason ?? "", 300)}</div>` : ""}
      </article>`)}
    </div>`;
}

function left(one) {
  const ms = Date.parse(one.expiresAt) - Date.now();
  return ms > 0 ? `${span(ms)} left` : "too late";
}
