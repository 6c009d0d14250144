// The page's frame: who is let in, where the visitor is, and the keys that lead elsewhere.

import { html, render, useEffect, useLayoutEffect, useState } from "./html.js";
import * as api from "./api.js";
import { follow, ofApprovals } from "./events.js";
import { useClock, useKeys, useRead } from "./live.js";
import { Runs } from "./runs.js";
import { Run } from "./run.js";
import { Call } from "./call.js";
import { Spend } from "./spend.js";
import { Budgets } from "./budgets.js";
import { Approvals } from "./approvals.js";
import { Job, Jobs } from "./jobs.js";
import { State } from "./state.js";
import { clean } from "./words.js";

const PLACES = [
  ["runs", "Runs", "r"], ["approvals", "Approvals", "p"], ["spend", "Spend", "s"],
  ["budgets", "Budgets", "b"], ["jobs", "Jobs", "j"], ["state", "State", "t"],
];

/** Takes a link's secret out of the address before anything else may see it. */
function secret() {
  const found = /^#in=([0-9a-f]{64})$/.exec(location.hash);
  if (found) history.replaceState(null, "", location.pathname + "#/runs");
  return found?.[1];
}

function here() {
  const words = location.hash.replace(/^#\/?/, "").split("?")[0].split("/").filter(Boolean);
  return words.map((word) => {
    try {
      return decodeURIComponent(word);
    } catch {
      return word;
    }
  });
}

function Gate({ about, problem, enter }) {
  const send = (event) => {
    event.preventDefault();
    enter(new FormData(event.target).get("token"));
  };
  return html`<main class="gate" id="main">
    <h1>Outlast</h1>
    ${problem ? html`<div class="note bad" role="alert">${clean(problem)}</div>` : ""}
    <p>To get in, type this on the machine that has the store, and open the link that it prints:</p>
    <p><code>outlast ui</code></p>
    <p class="soft">A link works once, within a minute, in one browser tab.</p>
    ${about?.api_token && !about.alone
      ? html`<form onSubmit=${send}>
          <label class="only-read" for="token">API token</label>
          <input id="token" name="token" type="password" autocomplete="off" required placeholder="or the server's API token" />
          <button class="main">Enter</button>
        </form>`
      : ""}
  </main>`;
}

function View({ path, looks }) {
  useClock();
  const [place, ...rest] = path;
  switch (place) {
    case "run":
      return rest.length > 1
        ? html`<${Call} key=${path.join("/")} id=${rest[0]} seq=${Number(rest[1])} looks=${looks} />`
        : html`<${Run} key=${rest[0]} id=${rest[0]} looks=${looks} />`;
    case "approvals":
      return html`<${Approvals} looks=${looks} />`;
    case "spend":
      return html`<${Spend} />`;
    case "budgets":
      return html`<${Budgets} />`;
    case "jobs":
      return rest.length ? html`<${Job} key=${rest[0]} id=${rest[0]} looks=${looks} />` : html`<${Jobs} />`;
    case "state":
      return html`<${State} path=${rest} />`;
    default:
      return html`<${Runs} />`;
  }
}

function Page({ about, looks, leave }) {
  const [path, go] = useState(here());
  const waiting = useRead(() => api.approvals({ status: "pending", limit: 100 }), [], { on: ofApprovals });
  useEffect(follow, []);
  // A page that is seen is heard too: as an effect after painting, this would miss an address typed before it.
  useLayoutEffect(() => {
    const moved = () => {
      go(here());
      window.scrollTo(0, 0);
      document.getElementById("main")?.focus({ preventScroll: true });
    };
    window.addEventListener("hashchange", moved);
    return () => window.removeEventListener("hashchange", moved);
  }, []);
  useEffect(() => {
    const [place, name] = path;
    document.title = name ? `${clean(name)} · Outlast` : `${PLACES.find((p) => p[0] === place)?.[1] ?? "Runs"} · Outlast`;
    document.querySelector("nav.main [aria-current]")?.scrollIntoView({ inline: "center", block: "nearest" });
  }, [path.join("/")]);
  // g and then a letter leads to a place, as in other programs with many of them.
  const [going, begin] = useState(false);
  useKeys((key) => {
    if (going) {
      begin(false);
      const to = PLACES.find((place) => place[2] === key);
      if (to) location.hash = "#/" + to[0];
    } else if (key === "g") {
      begin(true);
    }
  }, [going]);
  const at = ["run", ""].includes(path[0] ?? "") ? "runs" : path[0];
  const pending = waiting.data?.length ?? 0;
  return html`
    <a class="skip" href="#main" onClick=${(e) => { e.preventDefault(); document.getElementById("main").focus(); }}>To the content</a>
    <header class="top">
      <a class="brand" href="#/runs" aria-label="Outlast: runs"><img src="/ui/icon.svg" alt="" /><span>Outlast</span></a>
      <nav class="main" aria-label="Places">
        ${PLACES.map(([name, word, key]) => html`<a key=${name} href=${"#/" + name} title=${`g ${key}`}
          aria-current=${at === name ? "page" : undefined}>${word}${name === "approvals" && pending
            ? html`<span class="count" aria-label=${`${pending} waiting`}>${pending}</span>` : ""}</a>`)}
      </nav>
      ${looks ? html`<span class="tag">only looks</span>` : ""}
      <button class="plain soft" onClick=${leave} title="Forget this tab's access">Leave</button>
    </header>
    <main id="main" tabindex="-1"><${View} path=${path} looks=${looks} /></main>`;
}

function App({ link }) {
  const [about, know] = useState(null);
  const [inside, letIn] = useState(null);
  const [problem, tell] = useState("");
  const out = (why) => {
    api.session.end();
    letIn(false);
    tell(why);
  };
  useLayoutEffect(() => {
    (async () => {
      try {
        know(await api.about());
        if (link) api.session.keep((await api.enter(link)).bearer);
        letIn(Boolean(api.session.bearer()));
      } catch (error) {
        letIn(false);
        tell(error.message);
      }
    })();
    const gone = () => out("This tab's access is over.");
    const again = () => {
      // A new link that is opened in the same tab.
      const found = secret();
      if (found) api.enter(found).then((told) => { api.session.keep(told.bearer); tell(""); letIn(true); }, (e) => out(e.message));
    };
    window.addEventListener("outlast-out", gone);
    window.addEventListener("hashchange", again);
    return () => {
      window.removeEventListener("outlast-out", gone);
      window.removeEventListener("hashchange", again);
    };
  }, []);
  const enter = async (token) => {
    api.session.keep(token.trim());
    try {
      await api.runs({ limit: 1 });
      tell("");
      letIn(true);
    } catch (error) {
      out(error.message);
    }
  };
  if (inside === null) return html`<div class="empty" role="status">…</div>`;
  if (!inside) return html`<${Gate} about=${about} problem=${problem} enter=${enter} />`;
  return html`<${Page} about=${about} looks=${about?.read_only} leave=${() => out("")} />`;
}

render(html`<${App} link=${secret()} />`, document.getElementById("app"));
