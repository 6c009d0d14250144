// A run as a timeline: a lane for each attempt, a bar for each call. Drawn on a canvas, so that 10,000 entries are no
// more work for the browser than ten; the journal below says the same in text.

import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./html.js";
import { cost, marks, standing, told, took, what } from "./journal.js";
import { lanesOf, scaleOf, waitedIn } from "./lanes.js";
import { clean, count, ended, line, micros, some, span, usd, when } from "./words.js";

const ROW = 18;
const PAD = 9;
const AXIS = 24;
const MOST_HEIGHT = 460;

export function Timeline({ entries, attempts, waits, run, chosen, choose }) {
  const place = useRef(null);
  const box = useRef(null);
  const [width, fit] = useState(0);
  // The part in sight, as shares of the whole.
  const [view, zoom] = useState([0, 1]);
  const [byOrder, order] = useState(false);
  const [tip, point] = useState(null);
  const [scroll, move] = useState(0);
  const [colours, paint] = useState(0);
  const layout = useMemo(() => lanesOf(entries, attempts, run.replayed), [entries, attempts, run.replayed]);
  const narrow = width < 640;
  const gutter = narrow ? 0 : 176;
  const head = narrow ? 18 : 0;
  const scale = useMemo(() => scaleOf(layout, byOrder, run), [layout, byOrder, run.ended_at, entries]);
  const tops = [];
  let y = AXIS;
  for (const lane of layout.lanes) {
    tops.push(y);
    y += lane.rows * ROW + 2 * PAD + head;
  }
  const full = Math.max(y + 6, 90);
  const height = Math.min(full, MOST_HEIGHT);

  useEffect(() => {
    const sized = new ResizeObserver(() => box.current && fit(box.current.clientWidth));
    sized.observe(box.current);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const turned = () => paint((n) => n + 1);
    dark.addEventListener("change", turned);
    return () => {
      sized.disconnect();
      dark.removeEventListener("change", turned);
    };
  }, []);

  const across = Math.max(1, width - gutter - 14);
  const x = (at) => gutter + 4 + ((scale.of(at) - view[0]) / (view[1] - view[0])) * across;

  useEffect(() => {
    const canvas = place.current;
    if (!canvas || !width) return;
    const dense = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * dense);
    canvas.height = Math.round(height * dense);
    canvas.style.height = `${height}px`;
    const c = canvas.getContext("2d");
    c.setTransform(dense, 0, 0, dense, 0, 0);
    draw(c, { width, height, gutter, head, across, x, view, scale, layout, waits, tops, scroll, chosen, narrow });
  }, [width, height, view, scale, layout, waits, scroll, chosen, colours]);

  const around = (middle, factor) => zoom(([a, b]) => {
    const size = Math.min(1, Math.max((b - a) * factor, 1e-6));
    const from = Math.min(1 - size, Math.max(0, middle - (middle - a) * (size / (b - a))));
    return [from, from + size];
  });
  const pan = (share) => zoom(([a, b]) => {
    const from = Math.min(1 - (b - a), Math.max(0, a + share * (b - a)));
    return [from, from + (b - a)];
  });

  const under = (event) => {
    const at = place.current.getBoundingClientRect();
    return hit(layout, tops, head, { x: event.clientX - at.left, y: event.clientY - at.top + scroll }, x);
  };
  useLayoutEffect(() => {
    const canvas = place.current;
    const wheel = (event) => {
      if (!event.ctrlKey && !event.metaKey && Math.abs(event.deltaX) <= Math.abs(event.deltaY)) {
        if (full <= height) return;
        const next = Math.min(full - height, Math.max(0, scroll + event.deltaY));
        if (next === scroll) return;
        event.preventDefault();
        move(next);
        return;
      }
      event.preventDefault();
      if (event.ctrlKey || event.metaKey) {
        const middle = view[0] + ((event.offsetX - gutter) / across) * (view[1] - view[0]);
        around(middle, Math.exp(event.deltaY / 200));
      } else {
        pan(event.deltaX / across);
      }
    };
    canvas.addEventListener("wheel", wheel, { passive: false });
    return () => canvas.removeEventListener("wheel", wheel);
  }, [view, across, scroll, full, height]);

  const drag = useRef(null);
  const down = (event) => {
    drag.current = { x: event.clientX, view, moved: false };
    place.current.setPointerCapture(event.pointerId);
  };
  const moved = (event) => {
    const had = drag.current;
    if (had) {
      const by = (had.x - event.clientX) / across;
      if (Math.abs(had.x - event.clientX) > 4) had.moved = true;
      const size = had.view[1] - had.view[0];
      const from = Math.min(1 - size, Math.max(0, had.view[0] + by * size));
      if (had.moved) zoom([from, from + size]);
      return;
    }
    const e = under(event);
    point(e ? { e, x: event.nativeEvent?.offsetX ?? event.offsetX, y: event.offsetY } : null);
  };
  const up = (event) => {
    const had = drag.current;
    drag.current = null;
    if (!had || had.moved) return;
    const e = under(event);
    if (e && e.seq === chosen) location.hash = `#/run/${encodeURIComponent(run.run)}/${e.seq}`;
    else choose(e ? e.seq : null);
  };

  const typed = (event) => {
    const steps = { ArrowRight: 1, ArrowLeft: -1 };
    if (steps[event.key]) {
      const n = entries.findIndex((e) => e.seq === chosen);
      const next = entries[n < 0 ? (steps[event.key] > 0 ? 0 : entries.length - 1) : n + steps[event.key]];
      if (next) {
        choose(next.seq);
        const share = scale.of(micros(next.opened_at));
        zoom(([a, b]) => (share >= a && share <= b ? [a, b] : [Math.min(1 - (b - a), Math.max(0, share - (b - a) / 2)), Math.min(1, Math.max(b - a, share + (b - a) / 2))]));
      }
    } else if (event.key === "+" || event.key === "=") around((view[0] + view[1]) / 2, 0.5);
    else if (event.key === "-") around((view[0] + view[1]) / 2, 2);
    else if (event.key === "0") zoom([0, 1]);
    else if (event.key === "Enter" && chosen) location.hash = `#/run/${encodeURIComponent(run.run)}/${chosen}`;
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const at = entries.find((e) => e.seq === chosen);
  const deaths = attempts.filter((a) => a.died).length;
  const tells = `Timeline: ${some(attempts.length, "attempt")}, ${some(deaths, "death")}, ${some(waits.length, "wait")}, ${some(entries.length, "entry")}. Arrow keys choose an entry, Enter opens it, plus and minus zoom.`;
  return html`
    <div class="bar"><h2 id="timeline">Timeline</h2>
      <span class="grow" style=${{ flex: 1 }}></span>
      <div class="buttons">
        <button aria-pressed=${byOrder} onClick=${() => { order(!byOrder); zoom([0, 1]); }} title="Leaves out the time in which nothing happened">in order</button>
        <button onClick=${() => around((view[0] + view[1]) / 2, 0.5)} aria-label="Zoom in" title="+">+</button>
        <button onClick=${() => around((view[0] + view[1]) / 2, 2)} aria-label="Zoom out" title="−">−</button>
        <button onClick=${() => zoom([0, 1])} disabled=${view[0] === 0 && view[1] === 1} title="0">All of it</button>
      </div>
    </div>
    <div class="timeline" ref=${box}>
      <canvas ref=${place} tabindex="0" role="application" aria-label=${tells} aria-describedby="chosen"
        onKeyDown=${typed} onPointerDown=${down} onPointerMove=${moved} onPointerUp=${up} onPointerLeave=${() => point(null)}
        onDblClick=${(event) => { const e = under(event); if (e) location.hash = `#/run/${encodeURIComponent(run.run)}/${e.seq}`; }}></canvas>
      ${tip ? html`<div class="tip" style=${{ left: `${Math.min(tip.x + 12, width - 240)}px`, top: `${Math.min(tip.y + 14, height - 20)}px` }}><${Told} e=${tip.e} waits=${waits} /></div>` : ""}
    </div>
    <div class="legend">
      <span><i class="k-done"></i>call, as wide as it took and as high as it cost</span>${waits.length ? html`<span><i class="k-waited"></i>waited: for its provider, a usage limit, a budget or a person</span>` : ""}<span><i class="k-replayed"></i>replayed to a later attempt</span>
      <span><i class="k-failed"></i>failed</span><span><i class="k-unknown"></i>in doubt</span><span><i class="k-step"></i>step or item</span><span><b class="bad">✗</b> death</span><span><b class="good">↺</b> replayed in it, and the usd saved</span>
    </div>
    <div id="chosen" class="bar" style=${{ borderTop: "1px solid var(--line)", borderBottom: 0 }} aria-live="polite">
      ${at ? html`<${Told} e=${at} waits=${waits} flat /> <span style=${{ flex: 1 }}></span><a href=${`#/run/${encodeURIComponent(run.run)}/${at.seq}`}>Read it</a>`
        : html`<span class="soft">Choose a bar to see what it was. Ctrl and the wheel zoom, dragging moves.</span>`}
    </div>`;
}

function Told({ e, waits, flat }) {
  const waited = waitedIn(waits, micros(e.opened_at), micros(e.closed_at) ?? Date.now() * 1000).reduce((sum, [a, b]) => sum + b - a, 0);
  const words = [`entry ${e.seq}`, [e.act ? "act" : e.kind, e.kind === "call" ? what(e) : told(e)].filter(Boolean).join(" "), e.kind === "call" && e.gist, standing(e) === "unknown" ? "in doubt" : e.state, took(e), waited && `${span(waited / 1000)} of it waiting`, cost(e) && `${cost(e)} usd`, ...marks(e)].filter(Boolean);
  return flat ? html`<span>${words.map((w) => line(w, 160)).join(" · ")}</span>`
    : html`<strong>${words[0]}</strong> ${words.slice(1).map((w) => line(w, 160)).join(" · ")}<div class="soft">${when(e.opened_at)}, attempt ${e.attempt}</div>`;
}

/** Finds the entry below a point: the last one drawn there. */
function hit(layout, tops, head, at, x) {
  for (let n = layout.lanes.length - 1; n >= 0; n--) {
    const lane = layout.lanes[n];
    if (at.y < tops[n] || at.y > tops[n] + lane.rows * ROW + 2 * PAD + head) continue;
    let found = null;
    for (const bar of lane.bars) {
      const y = tops[n] + head + PAD + bar.row * ROW;
      if (at.y < y - 1 || at.y > y + ROW + 1) continue;
      const [from, to] = [x(bar.from) - 2, Math.max(x(bar.to), x(bar.from) + 3) + 2];
      if (at.x >= from && at.x <= to) found = bar.e;
    }
    return found;
  }
  return null;
}

function palette() {
  const of = getComputedStyle(document.documentElement);
  const get = (name) => of.getPropertyValue(`--${name}`).trim();
  return Object.fromEntries(["back", "raised", "sunk", "text", "soft", "line", "accent", "good", "care", "bad", "bar"].map((n) => [n, get(n)]));
}

function draw(c, { width, height, gutter, head, across, x, view, scale, layout, waits, tops, scroll, chosen, narrow }) {
  const p = palette();
  const font = getComputedStyle(document.body).fontFamily;
  c.clearRect(0, 0, width, height);
  c.textBaseline = "middle";
  c.lineWidth = 1;
  c.save();
  c.beginPath();
  c.rect(0, AXIS, width, height - AXIS);
  c.clip();
  c.translate(0, -scroll);
  layout.lanes.forEach((lane, n) => {
    const top = tops[n];
    const tall = lane.rows * ROW + 2 * PAD + head;
    if (top + tall < scroll + AXIS || top > scroll + height) return;
    const a = lane.attempt;
    const [from, to] = [x(scale.start(a)), x(scale.end(a))];
    c.fillStyle = p.sunk;
    c.fillRect(Math.max(gutter, from), top + head + 3, Math.max(2, Math.min(width, to) - Math.max(gutter, from)), tall - head - 6);
    c.save();
    c.beginPath();
    c.rect(gutter, top, width - gutter, tall);
    c.clip();
    waited(c, p, waits, from, to, x, top + head + 3, tall - head - 6);
    bars(c, p, lane, waits, top + head + PAD, x, width, gutter, chosen);
    if (a.diverged_at) mark(c, x(scale.at(lane, a.diverged_at)), top + head + 3, tall - head - 6, p.care, "≠");
    if (a.died) {
      c.strokeStyle = p.bad;
      c.lineWidth = 2;
      c.beginPath();
      c.moveTo(to, top + head + 3);
      c.lineTo(to, top + tall - 3);
      const middle = top + head + (tall - head) / 2;
      const right = Math.min(to + 9, width - 7);
      c.moveTo(right - 4, middle - 4);
      c.lineTo(right + 4, middle + 4);
      c.moveTo(right + 4, middle - 4);
      c.lineTo(right - 4, middle + 4);
      c.stroke();
      c.lineWidth = 1;
    }
    c.restore();
    c.fillStyle = p.text;
    c.font = `600 12px ${font}`;
    const title = `${a.attempt}${a.label ? "  " + line(a.label, 12) : ""}`;
    const said = `${span(a.wall_ms)} · ${ended(a)}`;
    const saved = lane.replayed ? `↺ ${count(lane.replayed)} replayed, ${usd(lane.saved)}` : "";
    if (narrow) {
      c.fillText(title, 8, top + 10);
      const after = 8 + Math.max(14, c.measureText(title).width) + 8;
      c.font = `12px ${font}`;
      c.fillStyle = a.died ? p.bad : p.soft;
      c.fillText(clipped(c, `${said}${saved ? " · " + saved : ""}`, width - after - 8), after, top + 10);
    } else {
      c.fillText(title, 14, top + tall / 2 - (saved ? 8 : 0));
      const after = 14 + Math.max(16, c.measureText(title).width) + 8;
      c.font = `11.5px ${font}`;
      c.fillStyle = a.died ? p.bad : p.soft;
      c.fillText(clipped(c, said, gutter - after - 6), after, top + tall / 2 - (saved ? 8 : 0));
      if (saved) {
        c.fillStyle = p.good;
        c.fillText(clipped(c, saved, gutter - 22), 14, top + tall / 2 + 9);
      }
    }
    c.strokeStyle = p.line;
    c.beginPath();
    c.moveTo(0, top + tall + 0.5);
    c.lineTo(width, top + tall + 0.5);
    c.stroke();
  });
  c.restore();
  axis(c, p, font, { width, gutter, across, view, scale, height });
}

function clipped(c, text, room) {
  let shown = clean(text);
  if (c.measureText(shown).width <= room) return shown;
  while (shown.length > 1 && c.measureText(shown + "…").width > room) shown = shown.slice(0, -1);
  return shown + "…";
}

/** Marks where an attempt's run waited, behind its bars. */
function waited(c, p, waits, from, to, x, top, tall) {
  c.fillStyle = p.care;
  for (const wait of waits) {
    const [left, right] = [Math.max(from, x(micros(wait.from))), Math.min(to, wait.to ? x(micros(wait.to)) : to)];
    if (right <= left) continue;
    c.globalAlpha = 0.16;
    c.fillRect(left, top, Math.max(1, right - left), tall);
    c.globalAlpha = 1;
    c.fillRect(left, top, Math.max(1, right - left), 2);
  }
}

function bars(c, p, lane, waits, top, x, width, gutter, chosen) {
  const drawn = new Float64Array(lane.rows).fill(-1);
  for (const bar of lane.bars) {
    const from = x(bar.from);
    if (from > width) continue;
    const to = Math.max(x(bar.to), from + 2.5);
    if (to < gutter) continue;
    const picked = bar.e.seq === chosen;
    const plain = bar.e.state === "done" && !bar.e.replayed_to;
    // What a pixel already shows is not drawn again.
    if (plain && !picked && to <= drawn[bar.row] + 0.5) continue;
    drawn[bar.row] = Math.max(drawn[bar.row], to);
    const y = top + bar.row * ROW;
    const wide = Math.max(2, to - from - 0.75);
    if (bar.e.kind !== "call") {
      c.fillStyle = bar.e.state === "failed" ? p.bad : p.soft;
      c.fillRect(from, y + ROW / 2 - 1.5, wide, 3);
    } else {
      const tall = 4 + bar.high * (ROW - 7);
      const base = y + ROW - 2;
      if (bar.e.state === "open") {
        c.strokeStyle = p.accent;
        c.setLineDash([3, 2]);
        c.strokeRect(from + 0.5, base - tall + 0.5, wide, tall - 1);
        c.setLineDash([]);
      } else {
        c.fillStyle = { failed: p.bad, unknown: p.care, void: p.line }[bar.e.state] ?? p.bar;
        // What it worked is as high as it cost; what it waited is a line.
        let done = from;
        for (const [a, b] of waitedIn(waits, bar.from, bar.to)) {
          if (x(a) > done) c.fillRect(done, base - tall, x(a) - done, tall);
          c.fillRect(x(a), base - 2, Math.max(1, x(b) - x(a)), 2);
          done = x(b);
        }
        if (done < from + wide) c.fillRect(done, base - tall, from + wide - done, tall);
        if (bar.e.replayed_to) {
          c.strokeStyle = p.good;
          c.lineWidth = 1.5;
          c.strokeRect(from + 0.5, base - tall - 1, wide - 0.5, tall + 1);
          c.lineWidth = 1;
        }
      }
    }
    if (picked) {
      c.strokeStyle = p.text;
      c.lineWidth = 2;
      c.strokeRect(from - 2, y - 1, wide + 4, ROW + 2);
      c.lineWidth = 1;
    }
  }
}

function mark(c, at, top, tall, colour, sign) {
  c.strokeStyle = c.fillStyle = colour;
  c.setLineDash([2, 2]);
  c.beginPath();
  c.moveTo(at - 1.5, top);
  c.lineTo(at - 1.5, top + tall);
  c.stroke();
  c.setLineDash([]);
  c.font = "bold 12px sans-serif";
  c.fillText(sign, at - 12, top + 6);
}

function axis(c, p, font, { width, gutter, across, view, scale, height }) {
  c.font = `11px ${font}`;
  c.fillStyle = p.soft;
  c.strokeStyle = p.line;
  c.beginPath();
  c.moveTo(0, AXIS - 0.5);
  c.lineTo(width, AXIS - 0.5);
  if (gutter) {
    c.moveTo(gutter - 0.5, 0);
    c.lineTo(gutter - 0.5, height);
  }
  c.stroke();
  for (const [share, text] of scale.ticks(view, Math.max(2, Math.floor(across / 110)))) {
    const at = gutter + 4 + ((share - view[0]) / (view[1] - view[0])) * across;
    if (at < gutter || at > width - 30) continue;
    c.fillRect(at, AXIS - 5, 1, 5);
    c.fillText(text, at + 4, AXIS / 2 - 1);
  }
}
