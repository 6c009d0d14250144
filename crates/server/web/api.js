// The page's only way to the server: the read API and the acts below /v1, with a bearer of this tab alone.

import { exact } from "./words.js";

const KEY = "outlast.bearer";
const WHO = "outlast.who";

export class Refused extends Error {
  constructor(status, code, message, hint) {
    super(message);
    Object.assign(this, { status, code, hint });
  }
}

export const session = {
  bearer: () => sessionStorage.getItem(KEY),
  keep: (bearer) => sessionStorage.setItem(KEY, bearer),
  end: () => sessionStorage.removeItem(KEY),
  who: () => sessionStorage.getItem(WHO) || "",
  keepWho: (name) => sessionStorage.setItem(WHO, name),
};

async function send(method, path, headers, rest) {
  const bearer = session.bearer();
  if (bearer) headers.authorization = `Bearer ${bearer}`;
  try {
    return await fetch(path, { method, headers, cache: "no-store", credentials: "omit", redirect: "error", ...rest });
  } catch {
    throw new Refused(0, "unreachable", "the server does not answer", "start it again: the runs are in the store");
  }
}

async function ask(method, path, body, parse = JSON.parse) {
  const headers = body === undefined ? {} : { "content-type": "application/json" };
  const response = await send(method, path, headers, { body: body === undefined ? undefined : JSON.stringify(body) });
  const text = await response.text();
  let told = {};
  try {
    told = text ? parse(text) : {};
  } catch {
    told = { error: { message: text.slice(0, 200) } };
  }
  if (response.ok) return told;
  const error = told.error ?? told;
  throw new Refused(response.status, error.code ?? String(response.status), error.message ?? response.statusText, error.hint);
}

const query = (words) => {
  const kept = Object.entries(words ?? {}).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return kept.length ? "?" + kept.map(([k, v]) => `${k}=${encodeURIComponent(v)}`).join("&") : "";
};
const part = encodeURIComponent;

export const get = (path, words) => ask("GET", path + query(words));
// Where values of people and programs are shown, a number is shown as it was written.
const getExact = (path, words) => ask("GET", path + query(words), undefined, exact);
export const post = (path, body) => ask("POST", path, body ?? {});

export const about = () => ask("GET", "/ui/about");
export const enter = (link) => ask("POST", "/ui/session", { link });

export const runs = (words) => get("/v1/runs", words);
export const run = (id) => get(`/v1/runs/${part(id)}/summary`);
export const attempts = (id, words) => get(`/v1/runs/${part(id)}/attempts`, words);
export const entries = (id, words) => get(`/v1/runs/${part(id)}/entries`, words);
export const entry = (id, seq) => getExact(`/v1/runs/${part(id)}/entries/${part(seq)}`);
export const files = (id, seq) => get(`/v1/runs/${part(id)}/entries/${part(seq)}/files`);
export const items = (id, words) => get(`/v1/runs/${part(id)}/items`, words);
export const jobs = (words) => get("/v1/jobs", words);
export const spend = (words) => get("/v1/spend", words);
export const budgets = () => get("/v1/budgets");
export const approvals = (words) => getExact("/v1/approvals", words);
export const decide = (one, approve, by) =>
  post(`/v1/approvals/${part(one.id)}`, {
    decision: approve ? "approve" : "deny", decidedBy: by || "page", argumentsDigest: one.argumentsDigest,
  });
/** Events as they come, each with the `id` that its reader goes on from. Not by EventSource, which sends no bearer. */
export async function* events(words, signal) {
  const response = await send("GET", "/v1/events" + query(words), { accept: "text/event-stream" }, { signal });
  if (!response.ok) throw new Refused(response.status, String(response.status), response.statusText);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let kept = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const messages = (kept + value).split("\n\n");
    kept = messages.pop();
    for (const message of messages) {
      const lines = message.split("\n").map((one) => [one.slice(0, one.indexOf(":")), one.slice(one.indexOf(":") + 2)]);
      const { id, event, data } = Object.fromEntries(lines);
      if (event) yield { id, event, data };
    }
  }
}

export const act = (id, verb, body) => post(`/v1/runs/${part(id)}/${verb}`, body);

export const namespaces = (words) => get("/v1/state/namespaces", words);
export const agents = (namespace) => get("/v1/state/agents", { namespace });
export const keys = (words) => get("/v1/state/keys", words);
export const value = (namespace, agent, key, words) =>
  getExact(`/v1/state/${part(namespace)}/${part(agent)}/${part(key)}`, words);
export const history = (namespace, agent, key, words) =>
  getExact(`/v1/state/${part(namespace)}/${part(agent)}/${part(key)}/history`, words);
