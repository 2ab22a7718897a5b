// The browser job: runs all sites in FOLDER/job.json in one Chromium and writes the results to FOLDER/results.json.
//   node web/test/browser/job.mjs FOLDER [FOLDER for screenshots] [ADDRESS of a server with a key, and two models]
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";
import { audit, check, draw, shoot, states } from "../pages.check.mjs";
import { serve } from "./server.mjs";

const LIMIT = 900, STEP = 240; // time limits of the job and of each step, in seconds
const FLAGS = [
  "--headless=new", "--no-sandbox", "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader",
  "--host-resolver-rules=MAP insecure.test 127.0.0.1", // an insecure page, which has no WebGPU
];
const WEIGHTS = /shard-\d+\.bin$/;

const folder = resolve(process.argv[2]);
const [, , , screens, served] = process.argv;
if (screens) mkdirSync(screens, { recursive: true });
const here = dirname(fileURLToPath(import.meta.url));
const job = JSON.parse(readFileSync(join(folder, "job.json"), "utf8"));
/** @type {Record<string, {ms: number, value?: any, error?: string}>} */
const results = {};
const web = resolve(here, "../..");
const server = await serve({ "/under/a path/": join(folder, "sites"), "/test/": here, "/web/": web });
const executablePath = process.env.PTEGPU_CHROMIUM || "/usr/bin/chromium";
const ignoreDefaultArgs = ["--headless"];
const browser = await chromium.launch({ executablePath, args: FLAGS, ignoreDefaultArgs, timeout: 30_000 });

/** Returns the address of a site. */
const at = (/** @type {string} */ site, host = "127.0.0.1") => `http://${host}:${server.port}/under/a%20path/${site}/`;

/** Opens a page that runs functions of inpage.js. Pages of a context share caches, like visits of one visitor. */
async function open(context, address = `${server.url}/blank`) {
  const page = await context.newPage();
  page.setDefaultTimeout(1000 * STEP);
  await page.goto(address);
  return Object.assign(page, {
    call: (/** @type {string} */ name, /** @type {any[]} */ ...args) =>
      page.evaluate(async ([name, args]) => (await import("/test/inpage.js"))[name](...args), [name, args]),
  });
}

/** Returns the browser's processor time in seconds. */
const system = await browser.newBrowserCDPSession();
const processes = async () => (await system.send("SystemInfo.getProcessInfo")).processInfo;
const spent = async () => (await processes()).reduce((sum, { cpuTime }) => sum + cpuTime, 0);

/** Records the result of `work`, or its error, or that it exceeded the time limit. */
async function step(name, work) {
  if (!name.match(process.env.ONLY ?? "")) return;
  const begun = performance.now();
  const before = await spent();
  /** @type {any} */
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`took more than ${STEP} s`)), 1000 * STEP);
  });
  const context = await browser.newContext();
  try {
    results[name] = { ms: 0, value: await Promise.race([work(context), late]) };
  } catch (error) {
    results[name] = { ms: 0, error: String(error?.stack ?? error) };
  }
  clearTimeout(timer);
  server.faults.clear();
  const cpu = (await spent()) - before;
  await context.close().catch(() => {});
  const ms = (results[name].ms = Math.round(performance.now() - begun));
  const failed = results[name].error ? `, FAILED: ${results[name].error.split("\n")[0]}` : "";
  console.log(`${name}: ${(ms / 1000).toFixed(1)} s, ${cpu.toFixed(1)} s of processors${failed}`);
}

const alarm = setTimeout(async () => {
  results.job = { ms: 1000 * LIMIT, error: `took more than ${LIMIT} s` };
  await end();
  process.exit(1);
}, 1000 * LIMIT);

async function end() {
  clearTimeout(alarm);
  writeFileSync(join(folder, "results.json"), JSON.stringify(results));
  await Promise.race([browser.close(), new Promise((done) => setTimeout(done, 5000))]);
  server.close();
}

for (const { name, site, calls } of job.programs)
  await step(`program ${name}`, async (context) => (await open(context)).call("runs", at(site), calls));

const { requests } = job.language;
await step("language model", async (context) => (await open(context)).call("generations", at("tales"), requests));

const { digits } = job.calls;
await step("visits", async (context) => {
  const report = [];
  for (const name of ["first", "second", "spoiled", "third"]) {
    const page = await open(context);
    const spoiled = name === "spoiled" ? await page.call("spoil") : null;
    server.log.length = 0;
    const visit = await page.call("visit", at("digits"), digits);
    report.push({ name, spoiled, ...visit, weights: server.sent(WEIGHTS), all: server.sent(/./).bytes });
    await page.close();
  }
  return report;
});

await step("failing cache", async (context) => {
  const report = [];
  for (const operation of ["open", "match", "put"]) {
    const page = await open(context);
    await page.call("breakCache", operation);
    report.push({ how: operation, ...(await page.call("visit", at("digits"), digits)) });
    await page.close();
  }
  return report;
});

await step("reload while loading", async (context) => {
  const page = await open(context);
  server.faults.set(job.shards.held, { hold: 0.5 });
  server.log.length = 0;
  await page.call("begin", at("sharded"));
  while ((await page.call("kept")) < job.shards.others) await new Promise((next) => setTimeout(next, 50));
  server.faults.clear();
  await page.reload();
  server.log.length = 0;
  const visit = await page.call("visit", at("sharded"), job.calls.sharded);
  return { ...visit, shards: server.log.map(({ path }) => path).filter((path) => WEIGHTS.test(path)) };
});

await step("broken connection", async (context) => {
  const page = await open(context);
  server.faults.set(job.shards.held, { hold: 0.5 });
  server.log.length = 0;
  const visit = await page.call("visit", at("sharded"), job.calls.sharded, { cutAt: job.shards.cutAt });
  return { ...visit, weights: server.sent(WEIGHTS) };
});

await step("errors", async (context) => {
  const page = await open(context);
  const names = ["digits", "halves", "hosted", "nowhere", "html", "changed", "corrupt", "encoder"];
  server.faults.set("/corrupt/shard-000.bin", { corrupt: true });
  const report = await page.call("errors", Object.fromEntries(names.map((name) => [name, at(name)])), job.calls);
  const insecure = await open(context, `http://insecure.test:${server.port}/blank`);
  report.NoWebGPU = await insecure.call("withoutGpu", at("digits", "insecure.test"));
  return report;
});

await step("rounds", async (context) => {
  const page = await open(context);
  const tools = await context.newCDPSession(page);
  const memory = async () => {
    await tools.send("HeapProfiler.collectGarbage");
    const gpu = (await processes()).find(({ type }) => type === "GPU");
    const resident = Number(readFileSync(`/proc/${gpu.id}/statm`, "utf8").split(" ")[1]) * 4096;
    return { heap: (await tools.send("Runtime.getHeapUsage")).usedSize, gpu: resident };
  };
  const report = [];
  for (const count of [20, 40, 40]) {
    const alive = await page.call("rounds", at("methods"), job.calls.methods, count);
    report.push({ count, ...alive, memory: await memory() });
  }
  return report;
});

await step("worker", async (context) => {
  const page = await open(context);
  const report = await page.call("worker", "/web/src/client.js", at("tales"), requests[0], at("nowhere"));
  const summary = ({ fps, longest }) => `${fps.toFixed(0)} frames a second, ${longest.toFixed(0)} ms at most`;
  console.log(`  loading: ${summary(report.loading)}; generating: ${summary(report.generating)}`);
  return report;
});

/**
 * Actions of a visitor on each page; each returns the text shown afterwards.
 * @type {Record<string, (page: import("playwright-core").Page) => Promise<string>>}
 */
const ACTS = {
  async tales(page) {
    await page.fill("#prompt", "Once upon a time");
    await page.press("#prompt", "Enter");
    await page.waitForFunction(() => (document.querySelector("#tale .text")?.textContent ?? "").length > 60);
    await page.keyboard.press("Escape");
    await page.waitForSelector("#tale .row button");
    return (await page.textContent("#tale .text")) ?? "";
  },
  async digits(page) {
    await draw(page);
    return (await page.textContent("#best-label")) ?? "";
  },
  async encoder(page) {
    await page.click("#run");
    await page.waitForSelector("#outputs h3");
    return (await page.textContent("#outputs")) ?? "";
  },
};
for (const [site, act] of Object.entries(ACTS))
  await step(`page ${site}`, async (context) => {
    const page = await context.newPage();
    page.setDefaultTimeout(1000 * STEP);
    await page.goto(at(site));
    const problems = await check(page);
    const state = await page.evaluate(() => document.body.dataset.state);
    if (state === "idle") await page.click("#load-button");
    await page.waitForFunction(() => document.body.dataset.state === "ready");
    const text = await act(page);
    problems.push(...(await audit(page)));
    await page.evaluate(() => scrollTo(0, 0));
    if (screens) await shoot(page, join(screens, site));
    return { problems, state, text };
  });

const STATES = /^(tale-stopped|tale-lost|tale-sent-in-error|chat-busy|chat-settings|photo-ready|photo-no-picture|task-answered|error-NoWebGPU)$/; // pages.check.mjs runs all
await step("pages with fake models", () => states(browser, `${server.url}/web/pages/`, { only: STATES }));

await step("served page", async (context) => {
  const page = await open(context, served);
  const heard = /** @type {string[]} */ ([]);
  page.on("console", (m) => m.type() === "error" && heard.push(m.text())).on("pageerror", (e) => heard.push(e.message));
  const text = (/** @type {string} */ where) => page.textContent(where);
  const report = { problems: await audit(page), heard };
  await page.fill("#key", "a wrong key");
  await page.press("#key", "Enter");
  await page.waitForFunction(() => document.getElementById("unlock-note")?.textContent?.includes("does not know"));
  await page.fill("#key", job.served.key);
  await page.press("#key", "Enter");
  await page.waitForFunction(() => document.body.dataset.state === "ready");
  report.problems.push(...(await audit(page)));
  const set = async (/** @type {Record<string, number>} */ values) => {
    await page.click("#settings-open");
    for (const [name, value] of Object.entries(values)) await page.fill(`#${name}`, String(value));
    await page.click("#settings .main");
  };
  await set(job.served.endless);
  await page.click("#examples button");
  await page.waitForFunction(() => (document.querySelector(".turn.model .said")?.textContent ?? "").length > 20);
  await page.keyboard.press("Escape");
  await page.waitForSelector(".turn .row button");
  report.stopped = [await text(".turn.model .said"), await text(".turn .note")];
  await page.selectOption("#model", "tales");
  report.offers = await page.locator("#examples button").allTextContents();
  await set(job.served.settings);
  await page.fill("#prompt", job.served.prompt);
  await page.press("#prompt", "Enter");
  await page.waitForSelector("#tale .row button");
  report.tale = [await text("#tale .text"), await text("#tale .note"), await text("#context"), await page.title()];
  await page.reload(); // the key and the model are remembered
  await page.waitForFunction(() => document.body.dataset.state === "ready");
  report.again = await page.inputValue("#model");
  report.stored = await page.evaluate(() => Object.keys(sessionStorage).map((name) => name.replace(location.href, "HERE")));
  return report;
});

await step("lost GPU", async (context) => {
  const page = await context.newPage();
  page.setDefaultTimeout(1000 * STEP);
  // Lets the page destroy the worker's device.
  const injected = `const { requestDevice } = GPUAdapter.prototype;
    GPUAdapter.prototype.requestDevice = async function (...args) {
      const device = await requestDevice.apply(this, args);
      new BroadcastChannel("GPU").onmessage = () => device.destroy();
      return device;
    };`;
  await page.route("**/worker.js", async (route) => {
    const response = await route.fetch();
    await route.fulfill({ response, body: injected + (await response.text()) });
  });
  await page.goto(at("tales"));
  await page.waitForFunction(() => document.body.dataset.state === "ready");
  const states = await page.evaluateHandle(() => {
    const history = /** @type {string[]} */ ([]);
    const note = () => history.push(document.body.dataset.state ?? "");
    new MutationObserver(note).observe(document.body, { attributeFilter: ["data-state"] });
    return history;
  });
  await page.click("#settings-open");
  for (const [name, value] of Object.entries({ maxTokens: 40, seed: 5 })) await page.fill(`#${name}`, String(value));
  await page.click("#settings .main");
  await page.fill("#prompt", "Once upon a time");
  await page.press("#prompt", "Enter");
  await page.waitForFunction(() => (document.querySelector("#tale .text")?.textContent ?? "").length > 40);
  await page.evaluate(() => new BroadcastChannel("GPU").postMessage("taken"));
  const tale = async () => {
    await page.waitForSelector("#tale .row button");
    return [await page.textContent("#tale .text"), await page.textContent("#tale .note")];
  };
  const continued = await tale();
  const errors = await page.evaluate(() => !(/** @type {HTMLElement} */ (document.getElementById("error")).hidden));
  await page.click("#tale .row button:nth-of-type(2)"); // the same text again, without interruption
  await page.waitForSelector("#tale .row button", { state: "detached" });
  return { continued, whole: await tale(), states: await states.jsonValue(), errors };
});

await step("another site", async (context) => {
  const requests = /** @type {string[]} */ ([]);
  const other = "http://other.test/site/"; // readable from every origin
  await context.route(`${other}**`, (route) => {
    requests.push(route.request().url());
    const headers = { "access-control-allow-origin": "*" };
    route.fulfill({ headers, json: { title: "Other", page: "chat", method: "forward", server: { keys: true } } });
  });
  const report = { asked: requests, titles: /** @type {string[]} */ ([]), fetched: /** @type {boolean[]} */ ([]) };
  const query = `?site=${encodeURIComponent(other)}`;
  const pages = [at("tales") + query, `${at("encoder")}?site=../digits/`, `${server.url}/web/pages/chat.html${query}`];
  for (const address of pages) {
    const page = await context.newPage();
    page.setDefaultTimeout(1000 * STEP);
    await page.goto(address);
    await page.waitForFunction(() => document.body.dataset.state !== "loading" || document.querySelector("dialog[open]"));
    const error = await page.textContent("#error");
    report.titles.push(error || (await page.title()));
    const reach = (/** @type {string} */ url) => fetch(url, { mode: "no-cors" }).then(() => true, () => false);
    report.fetched.push(await page.evaluate(reach, other));
    await page.close();
  }
  return report;
});

await step("unbuilt page", async (context) => {
  const page = await context.newPage();
  page.setDefaultTimeout(1000 * STEP);
  server.log.length = 0;
  await page.goto(`${server.url}/web/pages/chat.html?site=${encodeURIComponent(at("tales"))}`);
  await page.waitForFunction(() => document.body.dataset.state === "ready");
  const text = await ACTS.tales(page);
  return { text, fetched: server.log.map(({ path }) => path).filter((path) => path.startsWith("/web/")) };
});

await end();
