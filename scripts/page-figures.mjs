// Measures the page in Chromium over a store of 100,000 runs, one of them with 10,000 entries and three lives: first paint,
// and tasks longer than 50 ms while it is listed, searched, drawn, zoomed and scrolled. Prints medians of five; no figure
// here is a test.
//
//     cargo build --release -p outlast -p outlast-bench
//     OUTLAST_BIN=target/release/outlast OUTLAST_BENCH=target/release/outlast-bench \
//         OUTLAST_TEST_MODULES=$(scripts/page-modules.sh target/page) node scripts/page-figures.mjs [RUNS] [ENTRIES]

import { execFileSync } from "node:child_process";
import { mkdir, writeFile } from "node:fs/promises";
import path from "node:path";
import { World, press, says, until } from "../tests/page/world.mjs";

const [RUNS, ENTRIES] = [Number(process.argv[2] ?? 100_000), Number(process.argv[3] ?? 10_000)];
const TIMES = 5;

// Twelve threads ask; the process dies after a third and after two thirds of what is asked.
const AGENT = `
import http.client, json, os, sys, threading, urllib.parse
base, key = urllib.parse.urlparse(os.environ["OPENAI_BASE_URL"]), os.environ["OPENAI_API_KEY"]
many, threads = int(sys.argv[1]), 12
life = int(os.environ["OUTLAST_ATTEMPT"])
ends = [many // 3, 2 * many // 3, many][min(life, 3) - 1]
def ask(first):
    line = http.client.HTTPConnection(base.hostname, base.port)
    for n in range(first, ends, threads):
        body = json.dumps({"model": ["gpt-5-mini", "gpt-5"][n % 2], "max_completion_tokens": 64 + n % 5,
                           "messages": [{"role": "user", "content": "question %d" % n}]})
        line.request("POST", base.path + "/chat/completions", body, {"authorization": "Bearer " + key, "content-type": "application/json"})
        line.getresponse().read()
all = [threading.Thread(target=ask, args=(n,)) for n in range(threads)]
[one.start() for one in all]
[one.join() for one in all]
if life < 3:
    os.kill(os.getpid(), 9)
`;

const median = (all) => [...all].sort((a, b) => a - b)[all.length >> 1];
const world = await World.make();
try {
  const store = world.env.OUTLAST_STORE;
  execFileSync(process.env.OUTLAST_BENCH, ["many-runs", store, String(RUNS)], { stdio: "inherit" });
  const agent = path.join(world.directory, "many.py");
  await writeFile(agent, AGENT);
  const here = path.join(world.directory, "many");
  await mkdir(here);
  await world.told("run", "--name", "long", "--usd", "500", "--", "python3", agent, String(ENTRIES));
  const id = JSON.parse(await world.told("ls", "--json")).runs.find((run) => run.name === "long").run;
  const browser = await world.browser();
  const { link } = await world.ui();
  const page = await browser.newPage();
  await page.setViewport({ width: 1440, height: 1000 });
  await page.evaluateOnNewDocument(() => {
    window.long = [];
    new PerformanceObserver((list) => window.long.push(...list.getEntries().map((task) => task.duration))).observe({ type: "longtask", buffered: true });
  });
  await page.goto(link);
  await page.waitForSelector("header.top");
  const figures = new Map();
  const put = (what, value) => figures.set(what, [...(figures.get(what) ?? []), value]);
  const phase = async (what, act) => {
    await page.evaluate(() => { window.long = []; });
    const began = performance.now();
    await act();
    // Tasks are told when the frame that they delayed is over.
    await page.evaluate(() => new Promise((go) => requestAnimationFrame(() => setTimeout(go, 100))));
    put(`${what}: ms until it is shown`, performance.now() - began - 100);
    put(`${what}: longest task over 50 ms`, Math.max(0, ...(await page.evaluate(() => window.long))));
  };
  const rows = () => until("rows are listed", () => page.$("table.cards tbody tr"));
  for (let n = 0; n < TIMES; n++) {
    await page.goto("about:blank");
    const began = performance.now();
    await page.goto(new URL(link).origin + "/#/runs");
    await rows();
    put("first load: ms until rows are listed", performance.now() - began);
    put("first load: first contentful paint, ms", await page.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0].startTime));
    await page.evaluate(() => new Promise((go) => setTimeout(go, 200)));
    put("first load: longest task over 50 ms", Math.max(0, ...(await page.evaluate(() => window.long))));
    await phase("ten older pages", async () => {
      for (let turn = 0; turn < 10; turn++) {
        const first = await page.$eval("table.cards a.name", (a) => a.href);
        await press(page, "Older");
        await until("the page has turned", () => page.evaluate((first) => {
          const link = document.querySelector("table.cards a.name");
          return link && link.href !== first;
        }, first));
      }
    });
    await page.evaluate(() => { location.hash = "#/spend"; });
    await says(page, "usd by day");
    await page.evaluate(() => { location.hash = "#/runs"; });
    await rows();
    await phase("a search by name", async () => {
      await page.type("#seek", "triage 4");
      await until("it is found", () => page.evaluate(() => /triage 4/.test(document.querySelector("table.cards tbody tr")?.innerText ?? "")));
    });
    await phase(`a run of ${ENTRIES} entries`, async () => {
      await page.evaluate((id) => { location.hash = `#/run/${id}`; }, id);
      await until("all entries are there", () => page.evaluate((many) => {
        const told = /([\d,]+) entries/.exec(document.querySelector("main").innerText);
        return told && Number(told[1].replaceAll(",", "")) >= many;
      }, ENTRIES));
    });
    await phase("zoom and order", async () => {
      await page.focus("canvas");
      for (const key of ["+", "+", "+", "-", "0", "ArrowLeft", "ArrowLeft"]) await page.keyboard.press(key);
      await press(page, "in order");
      await press(page, "in order");
    });
    await phase("the journal scrolled and searched", async () => {
      for (let y = 0; y < 20; y++) await page.$eval(".rows", (box, y) => { box.scrollTop = y * 9000; }, y);
      await page.type("#find", "replayed");
      await page.$eval("#find", (field) => { field.value = ""; field.dispatchEvent(new Event("input", { bubbles: true })); });
    });
  }
  for (const [what, all] of figures) console.log(`${median(all).toFixed(0).padStart(6)}  ${what}`);
} finally {
  await world.end();
}
