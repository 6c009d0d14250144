// What calls cost, by day and model, run or tag: as a plot and as a table.

import { html, useEffect, useMemo, useRef, useState } from "./html.js";
import uPlot from "./vendor/uPlot.mjs";
import * as api from "./api.js";
import { SUMS, useRead } from "./live.js";
import { Empty, Problem, To, Waits, paid } from "./parts.js";
import { count, line, usd } from "./words.js";

const DAY = 86400;
const SPANS = [["7", "7 days"], ["30", "30 days"], ["90", "90 days"], ["", "all"]];
const BY = [["model", "model"], ["run", "run"], ["upstream", "provider"], ["tag", "tag…"]];
const SERIES = 6;

export function Spend() {
  const [days, since] = useState("30");
  const [by, group] = useState("model");
  const [tag, name] = useState("team");
  const key = by === "tag" ? `tag.${tag || "team"}` : by;
  const from = days ? new Date(Math.floor(Date.now() / 1000 / DAY - Number(days) + 1) * DAY * 1000).toISOString() : undefined;
  const read = useRead(() => api.spend({ by: `day,${key}`, since: from }), [days, key], SUMS);
  const lines = read.data?.lines ?? [];
  const total = read.data?.total;
  const groups = useMemo(() => sums(lines, key), [read.data]);
  return html`
    <div class="head"><h1>Spend</h1><span class="grow"></span>
      <div class="buttons" role="group" aria-label="Time">${SPANS.map(([n, word]) => html`<button key=${n} aria-pressed=${days === n} onClick=${() => since(n)}>${word}</button>`)}</div>
      <label for="by" class="only-read">By</label>
      <select id="by" value=${by} onChange=${(e) => group(e.target.value)}>${BY.map(([v, word]) => html`<option key=${v} value=${v}>by ${word}</option>`)}</select>
      ${by === "tag" ? html`<label for="tag" class="only-read">Tag</label><input id="tag" size="10" defaultValue=${tag} onChange=${(e) => name(e.target.value.trim())} />` : ""}
    </div>
    <${Problem} error=${read.error} again=${read.again} />
    ${total ? html`<div class="panel facts">
      <div><div class="label">Billed, usd</div><div class="value">${usd(total.billed_nano_usd)}</div></div>
      ${total.listed_nano_usd ? html`<div><div class="label">List price, usd; not billed</div><div class="value">${usd(total.listed_nano_usd)}</div></div>` : ""}
      <div><div class="label">Calls</div><div class="value">${count(paid(total))}${total.unpaid_calls ? html` <small>${count(total.unpaid_calls)} failed</small>` : ""}</div></div>
      <div><div class="label">Tokens</div><div class="value">${count(total.tokens)}</div></div>
      ${total.in_doubt_nano_usd ? html`<div><div class="label">In doubt, usd</div><div class="value">${usd(total.in_doubt_nano_usd)}</div></div>` : ""}
    </div>` : ""}
    <section class="panel" aria-labelledby="days"><h2 id="days">usd by day (UTC) and ${by === "tag" ? tag : by}</h2>
      ${!read.data ? (read.error ? "" : html`<${Waits} />`) : lines.length ? html`<div class="in"><${Plot} lines=${lines} by=${key} groups=${groups} /></div>`
        : html`<${Empty}>No call in this time.</${Empty}>`}
    </section>
    ${groups.length ? html`<section class="panel"><h2>By ${by === "tag" ? tag : by}</h2><div class="scroll" tabindex="0" role="group" aria-label="Table"><table>
      <thead><tr><th scope="col">${by === "tag" ? line(tag, 40) : by}</th><th scope="col" class="num">Calls</th><th scope="col" class="num">Tokens</th>${total?.in_doubt_nano_usd ? html`<th scope="col" class="num">In doubt</th>` : ""}<th scope="col" class="num">Billed, usd</th>${total?.listed_nano_usd ? html`<th scope="col" class="num">List price, usd</th>` : ""}</tr></thead>
      <tbody>${groups.slice(0, 200).map((g) => html`<tr key=${g.key}><td>${by === "run" ? html`<${To} path=${["run", g.key]}>${line(g.name, 120)}</${To}>` : line(g.name || "(none)", 120)}${g.name !== g.key ? html`<span class="under mono">${line(g.key, 120)}</span>` : ""}</td><td class="num">${count(g.calls)}</td><td class="num">${count(g.tokens)}</td>
        ${total.in_doubt_nano_usd ? html`<td class="num">${g.doubt ? usd(g.doubt) : ""}</td>` : ""}<td class="num">${usd(g.billed)}</td>${total.listed_nano_usd ? html`<td class="num">${g.listed ? usd(g.listed) : ""}</td>` : ""}</tr>`)}</tbody>
    </table></div></section>` : ""}`;
}

/** Sums of each group, the dearest first. */
function sums(lines, key) {
  const found = new Map();
  for (const one of lines) {
    const value = String(one[key] ?? "");
    const had = found.get(value) ?? { key: value, name: one.name ?? value, calls: 0, tokens: 0, spent: 0, billed: 0, listed: 0, doubt: 0 };
    had.calls += paid(one);
    had.tokens += one.tokens;
    had.spent += one.spent_nano_usd;
    had.billed += one.billed_nano_usd;
    had.listed += one.listed_nano_usd;
    had.doubt += one.in_doubt_nano_usd;
    found.set(value, had);
  }
  return [...found.values()].sort((a, b) => b.spent - a.spent);
}

// Eight hues that differ in lightness too, for those who do not see all of them.
const LIGHT = ["#2251c7", "#1d8a6b", "#c26a00", "#7b3fb5", "#b3264e", "#4a7d1f", "#777b84"];
const DARK = ["#8fb0ff", "#63d2ae", "#f0aa52", "#c79cf2", "#ff8fab", "#a8d672", "#a0a6af"];

function Plot({ lines, by, groups }) {
  const place = useRef(null);
  useEffect(() => {
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const days = [...new Set(lines.map((one) => one.day))].sort();
    const first = Date.parse(days[0] + "T00:00:00Z") / 1000;
    const last = Date.parse(days.at(-1) + "T00:00:00Z") / 1000;
    const xs = [];
    for (let at = first; at <= last; at += DAY) xs.push(at);
    const named = groups.slice(0, SERIES).map((g) => g.key);
    const rest = groups.length > SERIES;
    const values = [...named, ...(rest ? [null] : [])].map(() => new Array(xs.length).fill(0));
    for (const one of lines) {
      const n = named.indexOf(String(one[by] ?? ""));
      const at = Math.round((Date.parse(one.day + "T00:00:00Z") / 1000 - first) / DAY);
      values[n < 0 ? values.length - 1 : n][at] += one.spent_nano_usd / 1e9;
    }
    // Bars stand on each other: each series is drawn at the sum up to it, the tallest first.
    const stacked = values.map((own, n) => own.map((v, at) => v + values.slice(0, n).reduce((sum, below) => sum + below[at], 0)));
    const hues = dark.matches ? DARK : LIGHT;
    const series = values.map((own, n) => ({
      label: n < named.length ? line(groups[n].name || "(none)", 40) : `${groups.length - SERIES} more`,
      fill: hues[n], stroke: hues[n], width: 0, points: { show: false },
      paths: uPlot.paths.bars({ size: [0.7, 48] }),
      // Where no day is pointed at, the legend has the sum of all.
      value: (u, v, s, at) => usd((at === null || at === undefined ? own.reduce((sum, one) => sum + one, 0) : own[at]) * 1e9),
    }));
    const drawn = stacked.map((v, n) => [v, series[n]]).reverse();
    const grid = { stroke: colour("line"), width: 1 };
    const font = "11px system-ui, sans-serif";
    const axis = { stroke: colour("soft"), grid, ticks: { ...grid, size: 4 }, font };
    const plot = new uPlot({
      width: place.current.clientWidth, height: 260, tzDate: (ts) => uPlot.tzDate(new Date(ts * 1e3), "Etc/UTC"),
      scales: { x: { range: [first - 0.6 * DAY, last + 0.6 * DAY] }, y: { range: (u, low, high) => [0, (high || 1) * 1.08] } },
      axes: [{ ...axis, space: 70, incrs: [DAY, 2 * DAY, 7 * DAY, 14 * DAY, 28 * DAY], values: (u, ticks) => ticks.map((t) => new Date(t * 1e3).toISOString().slice(5, 10)) },
        { ...axis, size: 58, values: (u, ticks) => ticks.map((v) => (v >= 1 || v === 0 ? v.toFixed(ticks[1] - ticks[0] < 1 ? 2 : 0) : String(Number(v.toPrecision(2))))) }],
      series: [{ label: "day", value: (u, v) => (v === null || v === undefined ? "all days" : new Date(v * 1e3).toISOString().slice(0, 10)) }, ...drawn.map(([, s]) => s)],
      legend: { live: true }, cursor: { drag: { x: false, y: false } },
    }, [xs, ...drawn.map(([v]) => v)], place.current);
    const sized = new ResizeObserver(() => place.current && plot.setSize({ width: place.current.clientWidth, height: 260 }));
    sized.observe(place.current);
    return () => {
      sized.disconnect();
      plot.destroy();
    };
  }, [lines, by]);
  return html`<div ref=${place} role="img" aria-label="Spend by day, in dollars. The table below has the sums."></div>`;
}
