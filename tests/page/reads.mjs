// Reads the page as a person does, for a test that is not of the page: standard input is `{link, views: [[view, [words]]]}`.
// Opens each view, waits until it says all of its words, and prints a line of JSON for each: `[view, text]`.

import { readFileSync } from "node:fs";

import { World, tab, text, until } from "./world.mjs";

const { link, views } = JSON.parse(readFileSync(0, "utf8"));
const plain = (said) => said.replace(/\s+/g, " ").toLowerCase();
const problems = [];
const world = new World();
const page = await tab(await world.browser(), new URL(link).origin, problems);
try {
  await page.goto(link);
  for (const [view, words] of views) {
    await page.evaluate((view) => { location.hash = `#/${view}`; }, view);
    let missing = words;
    await until(`${view} says all of it`, async () => {
      const said = plain(await text(page));
      missing = words.filter((word) => !said.includes(plain(word)));
      return !missing.length;
    }).catch(async (e) => { throw new Error(`${e.message}: ${JSON.stringify(missing)}; it says: ${await text(page)}`); });
    for (const width of process.env.OUTLAST_SHOTS ? [390, 1440] : []) {
      await page.setViewport({ width, height: 1000 });
      await page.screenshot({ path: `${process.env.OUTLAST_SHOTS}/night-${view.replace(/\W/g, "-")}-${width}.png`, fullPage: true });
    }
    console.log(JSON.stringify([view, await text(page)]));
  }
  if (problems.length) throw new Error(problems.join("\n"));
} finally {
  await world.chromium.close();
}
