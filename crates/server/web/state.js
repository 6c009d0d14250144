// The state: namespaces, agents and keys, each key with its history, and all of it as it stood at an earlier commit.

import { html, useEffect, useLayoutEffect, useState } from "./html.js";
import * as api from "./api.js";
import { ofState } from "./events.js";
import { ONCE, useRead } from "./live.js";
import { ofLines } from "./diff.js";
import { Empty, Problem, To, Waits } from "./parts.js";
import { clean, line, pretty, when } from "./words.js";

const KEYS = 1000;

const WRITTEN = { on: ofState };

export function State({ path }) {
  const [namespace, agent, key] = path;
  const names = useRead(() => api.namespaces({ limit: 1000 }), [], WRITTEN);
  const [own, show] = useState(false);
  // Outlast's own tables are nobody's notes.
  const isOwn = (name) => name.startsWith("outlast:");
  const stored = names.data?.namespaces ?? [];
  const all = stored.filter((one) => own || !isOwn(one.namespace) || one.namespace === namespace);
  const newest = all.find((one) => one.namespace === namespace)?.commit ?? 0;
  const [commit, travel] = useState(null);
  useLayoutEffect(() => travel(null), [namespace]);
  return html`
    <div class="head"><h1>State</h1>
      ${namespace !== undefined && newest ? html`<span class="grow"></span>
        <label for="commit" class="soft nowrap">as of commit</label>
        <input id="commit" type="range" min="1" max=${newest} value=${commit ?? newest} onInput=${(e) => travel(Number(e.target.value) >= newest ? null : Number(e.target.value))} />
        <span class="nowrap">${commit ?? newest} of ${newest}</span>
        <button disabled=${commit === null} onClick=${() => travel(null)}>Now</button>` : ""}
    </div>
    <${Problem} error=${names.error} again=${names.again} />
    <div class="split">
      <nav class="panel" aria-label="Namespaces and agents"><div class="bar"><h2>Namespaces</h2><span style=${{ flex: 1 }}></span>
          ${stored.some((one) => isOwn(one.namespace)) ? html`<button aria-pressed=${own} onClick=${() => show(!own)} title="Those of Outlast's own too">all</button>` : ""}</div>
        ${names.data && !all.length ? html`<${Empty}>Nothing is stored.</${Empty}>` : ""}
        <ul class="list">${all.map((one) => html`<li key=${one.namespace}><button aria-current=${one.namespace === namespace ? "true" : undefined}
            onClick=${() => { location.hash = `#/state/${encodeURIComponent(one.namespace)}`; }}>${line(one.namespace || "(empty)", 60)}</button>
          ${one.namespace === namespace ? html`<${Agents} namespace=${namespace} agent=${agent} />` : ""}</li>`)}</ul>
      </nav>
      ${agent !== undefined ? html`<${Keys} key=${`${namespace}/${agent}`} namespace=${namespace} agent=${agent} at=${commit} chosen=${key} />`
        : html`<div class="panel"><h2>Keys</h2><${Empty}>Choose an agent.</${Empty}></div>`}
      ${key !== undefined ? html`<${Key} key=${`${namespace}/${agent}/${key}`} namespace=${namespace} agent=${agent} name=${key} at=${commit} />`
        : html`<div class="panel"><h2>Value</h2><${Empty}>Choose a key.</${Empty}></div>`}
    </div>`;
}

function Agents({ namespace, agent }) {
  const read = useRead(() => api.agents(namespace), [namespace], WRITTEN);
  const all = read.data?.agents ?? [];
  // The only agent is meant.
  useEffect(() => {
    if (agent === undefined && all.length === 1) location.replace(`#/state/${encodeURIComponent(namespace)}/${encodeURIComponent(all[0])}`);
  }, [all.length]);
  return html`<ul class="list">${all.map((one) => html`<li key=${one}><button aria-current=${one === agent ? "true" : undefined}
    onClick=${() => { location.hash = `#/state/${encodeURIComponent(namespace)}/${encodeURIComponent(one)}`; }}>${line(one || "(empty)", 50)}</button></li>`)}</ul>`;
}

function Keys({ namespace, agent, at, chosen }) {
  const [prefix, seek] = useState("");
  const read = useRead(() => api.keys({ namespace, agent, prefix, commit: at, limit: KEYS }), [namespace, agent, prefix, at], at === null ? WRITTEN : ONCE);
  const keys = read.data?.keys ?? [];
  return html`<div class="panel"><div class="bar"><h2>Keys</h2><label for="prefix" class="only-read">Begin with</label>
      <input id="prefix" type="search" placeholder="begin with" size="12" value=${prefix} onInput=${(e) => seek(e.target.value)} /></div>
    <${Problem} error=${read.error} />
    ${read.data && !keys.length ? html`<${Empty}>${at === null ? "No keys." : "No keys at that commit."}</${Empty}>` : ""}
    <ul class="list">${keys.map((one) => {
      const name = typeof one === "string" ? one : one.key;
      return html`<li key=${name}><button class="mono" aria-current=${name === chosen ? "true" : undefined}
        onClick=${() => { location.hash = `#/state/${[namespace, agent, name].map(encodeURIComponent).join("/")}`; }}>${line(name, 80)}${one.version ? html` <span class="soft">v${one.version}</span>` : ""}</button></li>`;
    })}</ul>
    ${read.data?.cursor ? html`<p class="in soft">The first ${KEYS} keys.</p>` : ""}</div>`;
}

const shown = (one) => (one?.deleted ? "(deleted)" : one?.value !== undefined ? pretty(one.value) : one?.value_base64 ? `${one.value_base64.length * 3 >> 2} bytes that are no JSON` : "");

function Key({ namespace, agent, name, at }) {
  const read = useRead(() => api.value(namespace, agent, name, { commit: at }).catch((e) => {
    if (e.status === 404) return { none: true };
    throw e;
  }), [namespace, agent, name, at], at === null ? WRITTEN : ONCE);
  const past = useRead(() => api.history(namespace, agent, name, { limit: 1000 }), [namespace, agent, name], WRITTEN);
  const [version, choose] = useState(null);
  const versions = past.data?.versions ?? [];
  const place = versions.findIndex((one) => one.version === version);
  const [now, before] = [versions[place], versions[place - 1]];
  return html`<div>
    <section class="panel" aria-labelledby="value"><div class="bar"><h2 id="value" class="mono">${line(name, 100)}</h2>
        ${read.data?.version ? html`<span class="soft">version ${read.data.version}, commit ${read.data.commit}, ${when(read.data.at)}</span>` : ""}
        ${read.data?.run ? html`<span class="soft">by <${To} path=${["run", read.data.run]}>${line(read.data.run, 60)}</${To}></span>` : ""}</div>
      <${Problem} error=${read.error} />
      <div class="in">${!read.data ? html`<${Waits} />` : read.data.none ? html`<span class="soft">It is not there${at === null ? "" : " at that commit"}.</span>` : html`<pre>${shown(read.data)}</pre>`}</div>
    </section>
    <section class="panel" aria-labelledby="past"><h2 id="past">History</h2>
      <div class="scroll" tabindex="0" role="group" aria-label="Table"><table><thead><tr><th scope="col">Version</th><th scope="col">Commit</th><th scope="col">When</th><th scope="col">By</th><th scope="col">Value</th></tr></thead>
      <tbody>${versions.slice().reverse().map((one) => html`<tr key=${one.version} class=${one.version === version ? "at" : ""}>
        <td><button aria-expanded=${one.version === version} onClick=${() => choose(one.version === version ? null : one.version)}>${one.version}</button></td>
        <td>${one.commit}</td><td class="nowrap">${when(one.at)}</td><td>${one.run ? html`<${To} path=${["run", one.run]}>${line(one.run, 30)}</${To}>` : ""}</td><td class="mono">${line(shown(one), 60)}</td></tr>`)}</tbody></table></div>
      ${now ? html`<div class="in"><p class="soft">Version ${now.version}${before ? `, and what it changed of version ${before.version}` : ""}</p>
        <pre>${before ? ofLines(shown(before), shown(now)).map(([sign, text], n) => html`<span key=${n} class=${sign === "+" ? "ins" : sign === "-" ? "cut" : "same"}>${clean(text)}</span>`) : shown(now)}</pre></div>` : ""}
    </section></div>`;
}
