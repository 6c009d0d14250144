// What a person can do to a run. Each act asks once, and says what will happen.

import { html, useState } from "./html.js";
import * as api from "./api.js";
import { Ask, charged } from "./parts.js";
import { clean, line, usd } from "./words.js";

const OVER = ["completed", "failed", "cancelled"];

/** Dollars that a person typed, as nano-dollars; `null` for what is no amount. */
export function nano(text) {
  const found = /^\s*(\d{0,9})(?:[.,](\d{1,9}))?\s*$/.exec(text ?? "");
  if (!found || (!found[1] && !found[2])) return null;
  return Number(found[1] || 0) * 1e9 + Number((found[2] ?? "").padEnd(9, "0"));
}

export function Acts({ run, attempts, chosen, act, ask, done }) {
  const [problem, tell] = useState(null);
  const [busy, work] = useState(false);
  const over = OVER.includes(run.status);
  const close = () => {
    ask(null);
    tell(null);
  };
  const send = async (verb, body, after) => {
    work(true);
    tell(null);
    try {
      const told = await api.act(run.run, verb, body);
      close();
      after?.(told);
      done();
    } catch (error) {
      tell(error);
    }
    work(false);
  };
  const dialog = { close, problem, busy };
  const name = line(run.name ?? run.run, 60);
  const last = attempts.at(-1)?.attempt;
  const forkAt = chosen ?? run.entries;
  const raise = (form) => {
    const amount = nano(form.usd);
    if (!amount) return tell(new Error("an amount in dollars is wanted, such as 1.50"));
    const change = run.limit_nano_usd === null ? { set: { cost_nano_usd: charged(run) + amount } } : { add: { cost_nano_usd: amount } };
    return send("budget", change);
  };
  return html`<div class="buttons">
    ${over ? "" : html`
      <button onClick=${() => ask("stop")} title="x" disabled=${run.stop_requested}>Stop</button>
      <button onClick=${() => ask("raise")} title="+">Raise budget</button>`}
    ${run.status === "sleeping" ? html`<button onClick=${() => ask("wake")}>Wake</button>` : ""}
    <button onClick=${() => ask("fork")} disabled=${!last}>Fork</button>
    ${over || run.status === "halted" ? "" : html`<button class="grave" onClick=${() => ask("cancel")}>Cancel</button>`}
  </div>
  ${act === "stop" ? html`<${Ask} ...${dialog} title=${`Stop ${name}?`} word="Stop it" act=${() => send("stop")}>
    <p>Its supervisor ends the agent. What it has done stays, and the run can be resumed:</p><p class="mono">outlast resume ${clean(run.run)}</p></${Ask}>` : ""}
  ${act === "wake" ? html`<${Ask} ...${dialog} title=${`Wake ${name}?`} word="Wake it" act=${() => send("wake")}>
    <p>It goes on now instead of at its time. If the provider's limit still holds, it sleeps again.</p></${Ask}>` : ""}
  ${act === "cancel" ? html`<${Ask} ...${dialog} grave title=${`Cancel ${name}?`} word="Cancel it for good" act=${(form) => send("cancel", form.reason ? { reason: form.reason } : {})}>
    <p>It ends for good, and cannot be resumed. Its journal and state stay.</p></${Ask}>` : ""}
  ${act === "raise" ? html`<${Ask} ...${dialog} title=${`Raise the budget of ${name}`} word="Raise it" act=${raise}>
    <p>${run.limit_nano_usd === null ? `It has no limit in usd. A limit is set at what it has spent, ${usd(charged(run))} usd, and this much more.`
      : `${usd(charged(run))} of ${usd(run.limit_nano_usd)} usd are spent.`} ${run.status === "halted" ? "A halted run that gets room can be resumed." : "Calls that wait for room go on."}</p>
    <div class="field"><label for="usd">Add</label><input id="usd" name="usd" inputmode="decimal" defaultValue="1.00" required autofocus size="8" /> usd</div></${Ask}>` : ""}
  ${act === "fork" ? html`<${Ask} ...${dialog} title=${`Fork ${name} at entry ${forkAt}?`} word="Fork it" act=${(form) => send("fork", {
      seq: forkAt, ...(form.id ? { id: form.id } : {}) }, (told) => { location.hash = `#/run/${encodeURIComponent(told.run)}`; })}>
    <p>A new run shares the first ${forkAt} entries and the state of now. The answers that were paid for are replayed there.
      ${chosen ? "" : " Choose an entry in the timeline to fork from there."}</p>
    <div class="field"><label for="id">Its id</label><input id="id" name="id" placeholder="chosen for you" maxlength="128" /></div></${Ask}>` : ""}`;
}
