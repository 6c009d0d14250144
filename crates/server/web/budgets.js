// Named budgets: what their current period has left, and how fast it goes.

import { html } from "./html.js";
import * as api from "./api.js";
import { SUMS, useRead } from "./live.js";
import { Empty, Meter, Problem, To, Waits } from "./parts.js";
import { ago, amount, between, change, line, some, span, unitWord, when } from "./words.js";

const LENGTH = { hour: 36e5, day: 864e5, week: 7 * 864e5, month: 30 * 864e5 };

/** The share of a period that is over, from 0 to 1; `null` for a budget without periods. */
function elapsed(budget) {
  const length = LENGTH[budget.per];
  if (!budget.until || !length) return null;
  return Math.min(1, Math.max(0, 1 + between(budget.until) / length));
}

function pace(budget, u) {
  const share = elapsed(budget);
  if (share === null || !u.limit || share < 0.02) return "";
  const used = u.spent / u.limit;
  if (used >= 1) return html`<span class="bad">used up</span>`;
  const projected = used / share;
  if (projected <= 1) return html`<span class="soft">${Math.round(100 * projected)} % of it by the end, at this pace</span>`;
  const left = ((1 - used) / (used / share)) * LENGTH[budget.per];
  return html`<span class="care">used up in ${span(left)} at this pace</span>`;
}

export function Budgets() {
  const read = useRead(api.budgets, [], SUMS);
  const budgets = read.data?.budgets ?? [];
  return html`
    <div class="head"><h1>Budgets</h1></div>
    <${Problem} error=${read.error} again=${read.again} />
    ${!read.data && !read.error ? html`<${Waits} />` : ""}
    ${read.data && !budgets.length ? html`<div class="panel"><${Empty}>No named budgets. One for all runs of a day: <code>outlast budgets set all --set-usd 50 --per day</code></${Empty}></div>` : ""}
    ${budgets.map((b) => html`<section key=${b.name} class="panel" aria-label=${line(b.name, 80)}>
      <div class="bar"><strong>${line(b.name, 80)}</strong><span class="soft">${b.per === "total" || !b.until ? "over all time" : `per ${b.per}: ${line(b.period, 40)}, until ${when(b.until, false)}`}</span>
        ${b.tag ? html`<span class="tag">${line(b.tag, 80)}</span>` : ""}</div>
      <div class="scroll" tabindex="0" role="group" aria-label="Table"><table><thead><tr><th scope="col">Unit</th><th scope="col">Spent</th><th scope="col" class="num">In flight</th><th scope="col" class="num">In doubt</th><th scope="col" class="num">Left</th><th scope="col">Pace</th></tr></thead>
        <tbody>${b.units.map((u) => html`<tr key=${u.unit}><td>${unitWord(u.unit)}</td><td><${Meter} spent=${u.spent} held=${u.reserved} limit=${u.limit} unit=${u.unit} /></td>
          <td class="num">${u.reserved ? amount(u.unit, u.reserved) : ""}</td><td class="num">${u.in_doubt ? amount(u.unit, u.in_doubt) : ""}</td>
          <td class="num ${u.left <= 0 ? "bad" : ""}">${amount(u.unit, u.left)}</td><td class="nowrap">${pace(b, u)}</td></tr>`)}</tbody></table></div>
      ${b.acts?.length ? html`<div class="in soft">${b.acts.slice(-3).reverse().map((act) => html`<p key=${act.at}>${line(act.what, 20)} by ${line(act.by, 120)}, ${ago(act.at)}${act.about ? `: ${line(change(act.about), 160)}` : ""}</p>`)}</div>` : ""}
      ${b.waiting.length ? html`<div class="in care">${some(b.waiting.length, "run")} ${b.waiting.length === 1 ? "waits" : "wait"} for it:
        ${b.waiting.slice(0, 20).map((id) => html` <${To} key=${id} path=${["run", id]}>${line(id, 60)}</${To}>`)}</div>` : ""}
    </section>`)}`;
}
