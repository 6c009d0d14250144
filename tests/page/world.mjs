// The world around a test of the page: a store, a fake provider, runs that die, a server, and a browser.

import { spawn } from "node:child_process";
import net from "node:net";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import path from "node:path";

const OUTLAST = process.env.OUTLAST_BIN;
const MODULES = process.env.OUTLAST_TEST_MODULES;
if (!OUTLAST || !MODULES) throw new Error("OUTLAST_BIN and OUTLAST_TEST_MODULES are wanted: run `make test-clients`");
const require = createRequire(path.join(MODULES, "x.js"));
export const puppeteer = (await import(require.resolve("puppeteer-core"))).default;
export const axe = require.resolve("axe-core/axe.min.js");

const PATIENCE = 60_000;

/** Waits until `look` tells something that counts as true, and returns it. */
export async function until(what, look) {
  const end = Date.now() + PATIENCE;
  for (;;) {
    const found = await look();
    if (found) return found;
    if (Date.now() > end) throw new Error(`waited in vain until ${what}`);
    await new Promise((go) => setTimeout(go, 50));
  }
}

// An agent in Python's standard library: it asks, and it dies where it is told to, or waits until it may.
const AGENT = `
import json, os, sys, time, urllib.request
base, key, here = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"], sys.argv[1]
def post(url, body):
    head = {"authorization": "Bearer " + key, "content-type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), head)) as answer:
        return json.load(answer)
def waits(name):
    while not os.path.exists(os.path.join(here, name)):
        time.sleep(0.02)
said = []
plan = json.load(open(os.path.join(here, "plan.json")))
for act in plan:
    if "say" in act:
        said.append({"role": "user", "content": act["say"]})
        out = post(base + "/chat/completions", {"model": act.get("model", "gpt-5-mini"), "messages": said, "max_completion_tokens": 64})
        said.append({"role": "assistant", "content": out["choices"][0]["message"]["content"]})
    elif "write" in act:
        with open("notes.txt", "a") as file: file.write(act["write"])
    elif "wait" in act:
        waits(act["wait"])
    elif "ask" in act:
        post(base.removesuffix("/v1") + "/v1/approvals", act["ask"])
    elif "die" in act:
        mark = os.path.join(here, act["die"])
        if not os.path.exists(mark):
            open(mark, "w").close()
            os.kill(os.getpid(), 9)
`;

export class World {
  static async make() {
    const world = new World();
    world.directory = await mkdtemp(path.join(tmpdir(), "page-"));
    world.children = [];
    world.env = {
      PATH: process.env.PATH, HOME: world.directory, OPENAI_API_KEY: "sk-test", USER: "ann", TZ: "UTC",
      OUTLAST_STORE: path.join(world.directory, "store.db"),
    };
    await writeFile(path.join(world.directory, "agent.py"), AGENT);
    const provider = await world.starts(["mock", "--listen", "127.0.0.1:0", "--latency", "100ms"], /http:\/\/[0-9.:]+/);
    world.env.OPENAI_BASE_URL = `${provider}/v1`;
    return world;
  }

  /** Starts a program of ours, and returns what it first printed that `sign` fits. */
  async starts(argv, sign, directory = this.directory) {
    const child = spawn(OUTLAST, argv, { cwd: directory, env: this.env, stdio: ["ignore", "pipe", "pipe"] });
    this.children.push(child);
    let said = "";
    child.stdout.on("data", (more) => (said += more));
    child.stderr.on("data", (more) => (said += more));
    child.said = () => said;
    this.last = child;
    const found = await until(`${argv.join(" ")} says ${sign}`, () => {
      if (child.exitCode !== null) throw new Error(`${argv.join(" ")} ended: ${said}`);
      return sign.exec(said);
    });
    return found[0];
  }

  /** Runs a command to its end, and returns what it printed. */
  async told(...argv) {
    const child = spawn(OUTLAST, argv, { cwd: this.directory, env: this.env, stdio: ["ignore", "pipe", "pipe"] });
    let [said, wrong] = ["", ""];
    child.stdout.on("data", (more) => (said += more));
    child.stderr.on("data", (more) => (wrong += more));
    const code = await new Promise((go) => child.once("close", go));
    if (code !== 0) throw new Error(`${argv.join(" ")} ended with ${code}: ${wrong}`);
    return said;
  }

  /** Begins a run that acts by `plan`, and returns a function that lets it go on where it waits. */
  async runs(name, plan, ...flags) {
    const here = path.join(this.directory, `run-${this.children.length}`);
    await mkdir(here);
    await writeFile(path.join(here, "plan.json"), JSON.stringify(plan));
    await this.starts(["run", "--name", name, ...flags, "--", "python3", path.join(this.directory, "agent.py"), here], /budget/, here);
    const child = this.last;
    return { child, go: (word) => writeFile(path.join(here, word), "") };
  }

  /** Shows the page, and returns its address and a link. */
  async ui(...flags) {
    const link = await this.starts(["ui", ...flags], /http:\S+#in=[0-9a-f]{64}/);
    return { link, origin: new URL(link).origin };
  }

  async browser() {
    this.chromium = await puppeteer.launch({
      executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
      args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
    });
    return this.chromium;
  }

  async end() {
    await this.chromium?.close();
    for (const child of this.children.reverse()) {
      if (child.exitCode === null) child.kill("SIGTERM");
    }
    await Promise.all(this.children.map((child) => child.exitCode ?? child.signalCode ?? new Promise((go) => child.once("exit", go))));
    await rm(this.directory, { recursive: true, force: true });
  }
}

/** Opens a tab that fails its test on any error, on any request that leaves the origin, and on any dialog. */
export async function tab(browser, origin, problems) {
  const page = await browser.newPage();
  await page.setViewport({ width: 1440, height: 1000 });
  // Nothing is read because time went by: what a view shows, it has heard of.
  await page.evaluateOnNewDocument(() => {
    const [timer, ask] = [window.setTimeout, window.fetch];
    window.asked = 0;
    window.fetch = (...words) => {
      window.asked += 1;
      return ask(...words);
    };
    window.setTimeout = (act, ms, ...rest) => (ms >= 20_000 ? 0 : timer(act, ms, ...rest));
  });
  page.on("pageerror", (e) => problems.push(`error: ${e.stack ?? e}`));
  page.on("console", (m) => {
    // A refusal by design is told as a failed load.
    if (m.type() === "error" && !/status of 4\d\d/.test(m.text())) problems.push(`console: ${m.text()}`);
  });
  page.on("dialog", (d) => {
    problems.push(`dialog: ${d.message()}`);
    d.dismiss();
  });
  page.on("request", (r) => {
    if (!r.url().startsWith(origin + "/")) problems.push(`request to ${r.url()}`);
  });
  return page;
}

/** A line to a port of this machine that a test can cut. It keeps the paths that were asked for over it. */
export async function lineTo(port) {
  const open = new Set();
  let cut = false;
  const line = { asked: [] };
  // A line that a failed test leaves holds no process up.
  const server = net.createServer((near) => {
    if (cut) return near.destroy();
    const far = net.connect(port, "127.0.0.1");
    for (const [one, other] of [[near, far], [far, near]]) {
      open.add(one);
      one.on("error", () => {}).on("close", () => { open.delete(one); other.destroy(); });
      one.pipe(other);
    }
    near.on("data", (some) => line.asked.push(...[...String(some).matchAll(/^GET (\S+) /gm)].map((found) => found[1])));
  });
  await new Promise((go) => server.listen(0, "127.0.0.1", go));
  server.unref();
  const ends = () => open.forEach((one) => one.destroy());
  return Object.assign(line, {
    port: server.address().port,
    cut: () => { cut = true; ends(); },
    mend: () => { cut = false; },
    end: () => { ends(); server.close(); },
  });
}

export const text = (page) => page.evaluate(() => document.querySelector("main")?.innerText ?? "");
export const says = (page, wanted) => until(`the page says ${wanted}; it says: `, async () => {
  const said = await text(page);
  return wanted instanceof RegExp ? wanted.test(said) : said.includes(wanted);
}).catch(async (e) => {
  throw new Error(e.message + (await text(page)).slice(0, 1500));
});

/** Presses the button that says `word`, in a dialog where one is open. */
export async function press(page, word) {
  const button = await until(`there is a button ${word}`, () => page.evaluateHandle((word) => {
    const within = document.querySelector("dialog[open]") ?? document;
    return [...within.querySelectorAll("button")].find((b) => b.innerText.trim() === word && !b.disabled) ?? null;
  }, word).then((h) => h.asElement()));
  await button.click();
}
