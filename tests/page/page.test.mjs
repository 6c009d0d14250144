// The page in Chromium: every view and every act, while a run dies and goes on; and what must never happen in it.
//
// By `make test-clients`, or: OUTLAST_BIN=… OUTLAST_TEST_MODULES=target/page/node_modules node --test tests/page/

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import http from "node:http";
import { after, before, test } from "node:test";
import { World, axe, lineTo, press, says, tab, text, until } from "./world.mjs";

const EVIL = `<img src=x onerror=alert(1)><svg onload=alert(2)><a href="javascript:alert(3)">x</a>`;

let world, browser, problems;
before(async () => {
  world = await World.make();
  browser = await world.browser();
  // The page is of a store that is there.
  await world.told("run", "--name", "first", "--", "true");
});
after(() => world?.end());

/** A tab of a visitor who has come by a link of a page of its own. */
async function visitor(...flags) {
  const { link, origin } = await world.ui(...flags);
  const page = await tab(browser, origin, (problems = []));
  await page.goto(link);
  await page.waitForSelector("header.top");
  return Object.assign(page, { link, origin });
}

const rows = (page) => page.$$eval("table.cards tbody tr", (all) => all.map((row) => row.innerText));

/** Opens the run of a name from the list. */
async function open(page, name) {
  await page.evaluate(() => { location.hash = "#/runs"; });
  const link = await until(`${name} is listed`, () => page.evaluateHandle((name) =>
    [...document.querySelectorAll("a.name")].find((a) => a.innerText === name) ?? null, name).then((h) => h.asElement()));
  await link.click();
  await says(page, "Timeline");
}

test("a run is seen to die and to go on, and its calls are read", async () => {
  const run = await world.runs("watched", [
    { say: "first question" }, { say: "second question" }, { wait: "die-now" }, { die: "dead" }, { say: "third question" }, { wait: "end" },
  ]);
  const page = await visitor();
  await until("two calls are told", async () => (await rows(page)).some((row) => row.includes("watched") && row.includes("running") && /\t2\t1\t/.test(row)));
  await open(page, "watched");
  await says(page, /Calls\s+2/);
  await run.go("die-now");
  await says(page, /1 death/);
  await says(page, /2 answers\s+[\d.]+ usd saved/);
  await says(page, "killed by SIGKILL");
  await says(page, /Calls\s+3/);
  // The journal says which answers were replayed, and leads to what was said.
  await says(page, "replayed to attempt 2");
  // The attempts' list says what the second one was given, and where the first one died, by the journal's number.
  await until("the attempts tell it", async () => {
    const [second, first] = await page.$$eval("section[aria-labelledby=lives] tbody tr", (all) => all.map((row) => row.innerText));
    return /2 answers\s+[\d.]+ usd saved/.test(second) && !/usd saved/.test(first) && /after entry 2, call/.test(first);
  });
  await page.focus("canvas");
  await page.keyboard.press("ArrowLeft");
  await says(page, /entry 3 · call gpt-5-mini/);
  await page.keyboard.press("Enter");
  await says(page, "third question");
  await says(page, "first question");
  await press(page, "What is new in it");
  await says(page, /turns as in entry 2/);
  await until("shared turns are left out", async () => !(await text(page)).includes("first question"));
  await page.keyboard.press("k");
  await says(page, /\/ entry 2/);
  await run.go("end");
  await open(page, "watched");
  await says(page, "completed");
  assert.deepEqual(problems, []);
  await page.close();
});

test("an entry shows which files its tools changed, and the lines", async () => {
  const run = await world.runs("keeps files", [
    { write: "one\n" }, { say: "first" }, { write: `two ${EVIL}\n` }, { say: "second" }, { wait: "end" },
  ], "--files");
  const page = await visitor();
  await open(page, "keeps files");
  await says(page, "notes.txt");
  const calls = JSON.parse(await world.told("journal", "keeps files", "--all", "--json")).entries.filter((e) => e.kind === "call");
  await page.evaluate((seq) => { location.hash += `/${seq}`; }, calls[0].seq);
  await says(page, /Files\s+1 path changed from here to the next snapshot/);
  await says(page, /changed\s+notes\.txt\s+\+1 −0/);
  await says(page, "+two <img src=x onerror=alert(1)>");
  await run.go("end");
  assert.deepEqual(problems, []);
  await page.close();
});

// Bug: what a person typed for a budget was 1.00 again when the page looked for news. Consequence: a raise by another
// amount than was typed. Cause: a field whose value is drawn is set anew each time it is drawn.
// Bug: the first keys after "Raise budget" went to the page behind. Consequence: 50 for 2.50. Cause: the dialog was
// opened after it was painted.
test("each act asks once and is done", async () => {
  const page = await visitor();
  await world.runs("stopped", [{ say: "a" }, { wait: "never" }], "--usd", "5");
  await open(page, "stopped");
  await press(page, "Raise budget");
  // A key belongs to the dialog from the press on.
  assert.equal(await page.evaluate(() => document.activeElement.id), "usd");
  await page.evaluate(() => { document.querySelector("dialog input").value = ""; });
  await page.type("dialog input", "2.50");
  const requests = () => page.evaluate(() => performance.getEntriesByType("resource").length);
  const before = await requests();
  await world.told("snapshot", "stopped", "looked-at");
  await until("the page has looked for news again", async () => (await requests()) >= before + 3);
  assert.equal(await page.evaluate(() => document.querySelector("dialog input").value), "2.50");
  await press(page, "Raise it");
  await says(page, "of 7.50");
  await says(page, /limits\s+page:[0-9a-f]{8}\s+usd \+2\.50/);
  await press(page, "Stop");
  // Leaving a dialog changes nothing.
  await press(page, "Leave it");
  await press(page, "Stop");
  await press(page, "Stop it");
  await says(page, "interrupted");
  await press(page, "Fork");
  await press(page, "Fork it");
  await says(page, /stopped/);
  await until("the fork is open", () => page.evaluate(() => decodeURIComponent(location.hash).includes(":seq-")));
  await open(page, "stopped");
  await press(page, "Cancel");
  await press(page, "Cancel it for good");
  await until("it is told as cancelled", async () => JSON.parse(await world.told("ls", "--json")).runs.some((r) => r.status === "cancelled"));
  assert.deepEqual(problems, []);
  await page.close();
});

test("a run that stands still ages no more, and says what to type", async () => {
  const run = await world.runs("left alone", [{ say: "a" }, { wait: "never" }], "--calls", "2", "--usd", "50");
  const page = await visitor();
  const listed = (sign) => until(`the row says ${sign}`, async () => (await rows(page)).find((row) => row.includes("left alone") && sign.test(row)));
  // Half of its calls are used, and next to nothing of its dollars.
  await listed(/of 50\.00\s+nearest limit: calls\s+1\s+of 2/);
  await world.told("stop", "left alone");
  await listed(/interrupted/);
  const later = () => page.evaluate(() => {
    const now = Date.now;
    Date.now = () => now() + 7_200_000;
  });
  await later();
  // Took, and began.
  await listed(/interrupted[^]*\t\d+(\.\d)? (ms|s)\t2 h ago/);
  await open(page, "left alone");
  await says(page, /took \d+(\.\d)? (ms|s)\n/);
  // Its name is no word of a command line: it is called by its short id, as everywhere.
  const id = JSON.parse(await world.told("ls", "--json")).runs.find((r) => r.name === "left alone").run.slice("run_".length, "run_".length + 18);
  await says(page, `outlast resume ${id}`);
  await says(page, "Recorded answers are replayed");
  // The machine's one clipboard is other tests' too, and a browser may refuse it: then the command is marked.
  const clipboard = (gives) => page.evaluate((gives) => {
    navigator.clipboard.writeText = async (text) => {
      if (!gives) throw new Error("not allowed");
      window.copied = text;
    };
  }, gives);
  await clipboard(true);
  await press(page, "Copy");
  await says(page, "copied");
  assert.equal(await page.evaluate(() => window.copied), `outlast resume ${id}`);
  await clipboard(false);
  await press(page, "Copy");
  await says(page, "marked");
  assert.equal(await page.evaluate(() => String(getSelection())), `outlast resume ${id}`);
  await until("its supervisor has left", () => run.child.exitCode !== null);
  assert.deepEqual(problems, []);
  await page.close();
});

// Bug: what was replayed to the second of three attempts was told nowhere. Consequence: its person took those answers
// for paid twice. Cause: the last attempt had asked for nothing new, and counted as one that took nothing.
test("each attempt tells what was replayed to it, one that asked for nothing new too", async () => {
  const run = await world.runs("thrice", [{ say: "a" }, { say: "b" }, { die: "one" }, { say: "c" }, { die: "two" }, { say: "d" }], "--calls", "3");
  await until("it is halted", () => run.child.exitCode !== null);
  const page = await visitor();
  await open(page, "thrice");
  await until("both are told", async () => {
    const [third, second, first] = await page.$$eval("section[aria-labelledby=lives] tbody tr", (all) => all.map((row) => row.innerText));
    return /\t3 answers\s+[\d.]+ usd saved/.test(third) && /\t2 answers\s+[\d.]+ usd saved/.test(second) && !/usd saved/.test(first);
  });
  // A halt by a limit: one command gives room and goes on.
  await says(page, /outlast resume \S+ --add-calls \d+/);
  assert.deepEqual(problems, []);
  await page.close();
});

test("an address and keys that come as the page appears are followed", async () => {
  const { link, origin } = await world.ui();
  const page = await tab(browser, origin, (problems = []));
  // The earliest moment: what the page drew is there, and nothing is painted yet.
  const first = (act) => page.evaluateOnNewDocument(`new MutationObserver((_, me) => {
    if (!document.querySelector("header.top")) return;
    me.disconnect();
    (${act})();
  }).observe(document, { childList: true, subtree: true });`);
  const early = await first(() => { location.hash = "#/approvals"; });
  await page.goto(link);
  await says(page, "Approvals");
  await page.removeScriptToEvaluateOnNewDocument(early.identifier);
  await first(() => {
    const type = (key) => window.dispatchEvent(new KeyboardEvent("keydown", { key }));
    type("g");
    setTimeout(() => type("b"));
  });
  await page.reload();
  await says(page, "Budgets");
  assert.deepEqual(problems, []);
  await page.close();
});

test("a run opens by a click anywhere on its row", async () => {
  const page = await visitor();
  const cell = await until("the run is listed", () => page.evaluateHandle(() =>
    [...document.querySelectorAll("table.cards tbody tr")].find((row) => row.querySelector("a.name").innerText === "first")?.cells[3] ?? null)
    .then((h) => h.asElement()));
  await cell.click();
  await says(page, "Timeline");
  assert.deepEqual(problems, []);
  await page.close();
});

test("an approval is decided by one key, and a refused one is told", async () => {
  const ask = (to) => ({ ask: { tool: "deploy", sideEffect: "write", arguments: { to, size: "TOO_BIG", hidden: "a\u202eb" } } });
  const run = await world.runs("asks", [ask("first"), ask("second"), { wait: "end" }]);
  const page = await visitor();
  await page.evaluate(() => { location.hash = "#/approvals"; });
  await says(page, "second");
  await says(page, /write\s+asks/);
  assert.match(await text(page), /a\\u202eb/, "what turns the text's direction is written out");
  const waiting = async () => JSON.parse(await world.told("approvals", "--json")).approvals.length;
  assert.equal(await waiting(), 2);
  await page.keyboard.press("d");
  await until("one is denied", async () => (await waiting()) === 1);
  await until("one is shown", async () => (await page.$$("article.ask")).length === 1);
  await page.keyboard.press("a");
  await until("none waits", async () => (await waiting()) === 0);
  await says(page, "Nobody waits for you");
  await page.select("#of", "");
  await says(page, "approved");
  await says(page, "denied");
  await open(page, "asks");
  await says(page, "Who decided");
  await until("both answers are told with who gave them", async () => (await text(page)).match(/(approved|denied)\s+page/g)?.length >= 2);
  await run.go("end");
  assert.deepEqual(problems, []);
  await page.close();
});

test("what happened while the line was cut or the tab was hidden is seen, and nothing is asked meanwhile", async () => {
  const { link } = await world.ui();
  const line = await lineTo(new URL(link).port);
  const origin = `http://127.0.0.1:${line.port}`;
  const page = await tab(browser, origin, []);
  await page.goto(link.replace(new URL(link).origin, origin));
  const listed = (name) => until(`${name} is listed`, async () => (await rows(page)).some((row) => row.includes(name)));
  const streams = () => line.asked.filter((path) => path.startsWith("/v1/events"));
  const run = await world.runs("before-the-cut", [{ say: "a" }, { wait: "on" }, { say: "b" }, { wait: "end" }]);
  await listed("before-the-cut");
  assert.match(streams()[0], /after=now/);
  await until("a call is told", async () => (await rows(page)).some((row) => /before-the-cut[^]*\t1\t1\t/.test(row)));
  line.cut();
  await says(page, "the server does not answer");
  await world.told("run", "--name", "in-the-cut", "--", "true");
  line.mend();
  await listed("in-the-cut");
  await until("the problem is over", async () => !(await text(page)).includes("does not answer"));
  assert.ok(streams().slice(1).every((path) => !path.includes("after=now")), `the cursor is kept: ${streams()}`);
  const shown = (hidden) => page.evaluate((hidden) => {
    Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
  }, hidden);
  await shown(true);
  const asked = () => page.evaluate(() => window.asked);
  const had = await asked();
  await run.go("on");
  await world.told("run", "--name", "while-hidden", "--", "true");
  await until("the call is recorded", async () => JSON.parse(await world.told("ls", "--json")).runs.some((r) => r.name === "before-the-cut" && r.calls === 2));
  assert.equal(await asked(), had, "a hidden tab asks nothing");
  await shown(false);
  await listed("while-hidden");
  await until("the call is told", async () => (await rows(page)).some((row) => /before-the-cut[^]*\t2\t1\t/.test(row)));
  await run.go("end");
  await page.close();
  line.end();
});

test("spend, budgets, jobs and the state are shown", async () => {
  await world.told("budgets", "set", "all-of-us", "--usd", "50", "--per", "day");
  const page = await visitor();
  // What a person has in the state comes by its routes, with the visitor's own access.
  await page.evaluate(async () => {
    const put = (value) => fetch("/v1/state/notes/ann/plan", {
      method: "PUT", body: JSON.stringify(value),
      headers: { authorization: `Bearer ${sessionStorage.getItem("outlast.bearer")}`, "content-type": "application/json" },
    });
    await put({ step: 1 });
    await put({ step: 2 });
  });
  await page.evaluate(() => { location.hash = "#/spend"; });
  await says(page, "gpt-5-mini");
  await until("there is a plot", () => page.$(".uplot canvas"));
  await page.evaluate(() => { location.hash = "#/budgets"; });
  await says(page, "all-of-us");
  await says(page, /set by cli:ann@\S+ .*ago: usd 50\.00 per day/);
  await page.evaluate(() => { location.hash = "#/jobs"; });
  await says(page, "No batch jobs");
  await page.evaluate(() => { location.hash = "#/state/notes/ann/plan"; });
  await says(page, '"step": 2');
  await says(page, "2 of 2");
  // Another writer's change is heard of.
  const bearer = await page.evaluate(() => sessionStorage.getItem("outlast.bearer"));
  const more = await fetch(`${page.origin}/v1/state/notes/ann/more`, { method: "PUT", body: "3", headers: { authorization: `Bearer ${bearer}` } });
  assert.equal(more.status, 200);
  await says(page, "3 of 3");
  await says(page, "more");
  await page.$eval("#commit", (range) => { range.value = "1"; range.dispatchEvent(new Event("input", { bubbles: true })); });
  await says(page, '"step": 1');
  await until("the past is what is shown", async () => !(await page.$eval("#value", (h) => h.closest("section").innerText)).includes('"step": 2'));
  await press(page, "2");
  await says(page, "what it changed of version 1");
  assert.deepEqual(problems, []);
  await page.close();
});

test("what agents and people wrote stays text", async () => {
  const run = await world.runs(EVIL, [
    { say: `${EVIL} <script>alert(4)</script> http://evil.example/x.png` },
    { ask: { tool: "<iframe src=//evil.example>", arguments: { a: EVIL } } }, { wait: "go" }, { say: "x", model: "<b>model</b>" },
  ], "--tag", `team=${EVIL}`);
  const page = await visitor();
  await until("it is listed", async () => (await text(page)).includes("<img src=x"));
  const id = JSON.parse(await world.told("ls", "--json")).runs.find((r) => r.name?.includes("onerror")).run;
  const views = [["runs", "<svg onload"], [`run/${id}`, "<img src=x"], [`run/${id}/1`, "<script>alert(4)"], ["approvals", "<iframe"], ["spend", "gpt-5-mini"],
    ["run/..%2f..%2fv1", "unknown run"], [`jobs/${id}`, "no batch job"], ["state/%3Cimg%3E/a/b", "State"]];
  for (const [view, wanted] of views) {
    await page.evaluate((view) => { location.hash = `#/${view}`; }, view);
    await until(`${view} says ${wanted}`, async () => (await text(page)).toLowerCase().includes(wanted.toLowerCase()));
    const found = await page.evaluate(() => ({
      strange: document.querySelectorAll("main img, main iframe, main script, main svg[onload], main object, main embed").length,
      links: [...document.querySelectorAll("a[href]")].map((a) => a.getAttribute("href")).filter((href) => !href.startsWith("#")),
      inline: [...document.querySelectorAll("*")].filter((e) => [...e.attributes].some((a) => a.name.startsWith("on"))).length,
    }));
    assert.deepEqual(found, { strange: 0, links: [], inline: 0 }, view);
    // A model without a price halts the run, and the reason names it.
    if (view === "approvals") {
      await run.go("go");
      await page.evaluate((id) => { location.hash = `#/run/${id}`; }, id);
      await says(page, "<b>model</b>");
    }
  }
  assert.deepEqual(problems, []);
  await page.close();
});

test("a link works once, and its secret stays nowhere", async () => {
  const page = await visitor();
  const secret = new URL(page.link).hash.slice(4);
  assert.ok(!(await page.evaluate(() => location.href)).includes(secret));
  assert.deepEqual(await page.cookies(), []);
  assert.deepEqual(await page.evaluate(() => [Object.keys(localStorage), document.cookie]), [[], ""]);
  // The tab is let in again after it was loaded again; another tab is not.
  await page.reload();
  await page.waitForSelector("header.top");
  const other = await tab(browser, page.origin, problems);
  await other.goto(page.link);
  await says(other, /link is used/);
  await other.goto(`${page.origin}/`);
  await says(other, "outlast ui");
  assert.deepEqual(problems, []);
  await page.close();
  await other.close();
});

test("a page of another port of this host reads nothing and acts on nothing", async () => {
  const page = await visitor();
  const stranger = http.createServer((_, answer) => answer.writeHead(200, { "content-type": "text/html" }).end("<p>hello</p>"));
  await new Promise((go) => stranger.listen(0, "127.0.0.1", go));
  const foreign = await browser.newPage();
  await foreign.goto(`http://127.0.0.1:${stranger.address().port}/`);
  const bearer = await page.evaluate(() => sessionStorage.getItem("outlast.bearer"));
  const got = await foreign.evaluate(async (origin, bearer) => {
    const tries = [];
    const go = async (what, path, options) => {
      try {
        const answer = await fetch(origin + path, options);
        tries.push([what, answer.type, (await answer.text()).length]);
      } catch {
        tries.push([what, "refused", 0]);
      }
    };
    await go("reads runs", "/v1/runs", {});
    await go("reads with the bearer", "/v1/runs", { headers: { authorization: `Bearer ${bearer}` } });
    await go("reads without cors", "/v1/runs", { mode: "no-cors" });
    await go("asks for a session", "/ui/session", { method: "POST", body: '{"link":"x"}' });
    await go("reads the page", "/", {});
    const framed = await new Promise((done) => {
      const frame = document.createElement("iframe");
      frame.src = origin + "/";
      frame.onload = () => {
        try {
          done(frame.contentDocument === null ? "no document" : frame.contentDocument.body.innerText);
        } catch {
          done("no document");
        }
      };
      document.body.append(frame);
    });
    return { tries, framed, stored: sessionStorage.length };
  }, page.origin, bearer);
  for (const [what, , length] of got.tries) assert.equal(length, 0, what);
  assert.equal(got.framed, "no document");
  assert.equal(got.stored, 0);
  stranger.close();
  await foreign.close();
  await page.close();
});

test("a page that only looks has no act", async () => {
  const page = await visitor("--read-only");
  await open(page, "first");
  await says(page, "Journal");
  const acts = await page.$$eval("button", (all) => all.map((b) => b.innerText.trim()).filter((word) => ["Stop", "Fork", "Cancel", "Raise budget", "Approve", "Retry"].includes(word)));
  assert.deepEqual(acts, []);
  await page.close();
});

/** A run with three lives, as pictures want it; made once. */
let sample;
const sampled = () => (sample ??= (async () => {
  await world.told("budgets", "set", "all-of-us", "--usd", "50", "--per", "day");
  const says = (from, to) => Array.from({ length: to - from }, (_, n) => ({ say: `question ${from + n}: what does chapter ${from + n} say?` }));
  const plan = [...says(1, 5), { die: "first" }, ...says(5, 10), { die: "second" }, ...says(10, 14), { ask: { tool: "deploy", arguments: { to: "prod" } } }, { wait: "end" }];
  const run = await world.runs("nightly report", plan, "--tag", "team=research");
  await until("it has asked", async () => (await world.told("approvals")).includes("deploy"));
  return run;
})());

for (const [width, scheme] of [[1440, "light"], [1440, "dark"], [390, "light"], [390, "dark"]]) {
  test(`at ${width} px in ${scheme} nothing is out of sight or out of reach`, async () => {
    await sampled();
    const page = await visitor();
    await page.setViewport({ width, height: width > 500 ? 1000 : 844 });
    await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
    const id = JSON.parse(await world.told("ls", "--json")).runs.find((r) => r.name === "nightly report").run;
    for (const [view, wanted] of [["runs", "nightly report"], [`run/${id}`, "replayed to attempt 3"], [`run/${id}/3`, "question 3"], ["approvals", "Approvals"], ["spend", "gpt-5-mini"], ["budgets", "all-of-us"], ["jobs", "No batch"], ["state", "Namespaces"]]) {
      await page.evaluate((view) => { location.hash = `#/${view}`; }, view);
      await says(page, wanted);
      if (process.env.OUTLAST_SHOTS) await page.screenshot({ path: `${process.env.OUTLAST_SHOTS}/${view.split("/")[0]}${view.split("/").length}-${width}-${scheme}.png`, clip: { x: 0, y: 0, width, height: 760 } });
      const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
      assert.ok(wide <= 0, `${view} is ${wide} px too wide`);
      const cut = await page.$$eval("nav.main a", (links, width) => links.filter((a) => {
        const { left, right } = a.getBoundingClientRect();
        return left < 0 || right > width;
      }).map((a) => a.innerText), width);
      assert.deepEqual(cut, [], `${view}: places that are out of sight`);
      await page.evaluate(await readFile(axe, "utf8"));
      const found = await page.evaluate(async () => (await axe.run(document)).violations
        .filter((v) => v.impact === "serious" || v.impact === "critical").map((v) => `${v.id}: ${v.nodes.map((n) => n.html).slice(0, 3).join(" ")}`));
      assert.deepEqual(found, [], view);
    }
    // The approval is what the run waits for, and its entry is headed by the run's name.
    await page.evaluate((id) => { location.hash = `#/run/${id}`; }, id);
    await says(page, /Waited[^]*a person/);
    await says(page, "team=research");
    await page.evaluate((id) => { location.hash = `#/run/${id}/3`; }, id);
    await until("the entry is headed by the run's name", async () => (await page.$eval("h1", (h) => h.innerText)).startsWith("nightly report"));
    assert.deepEqual(problems, []);
    await page.close();
  });
}
