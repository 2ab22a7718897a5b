// The browser job: one Chromium runs all sites that FOLDER/job.json names, and FOLDER/results.json has what came out.
//   node web/test/browser/job.mjs FOLDER
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";
import { serve } from "./server.mjs";

const LIMIT = 280; // seconds that the whole job may take
const FLAGS = [
  "--headless=new", "--no-sandbox", "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader",
  "--host-resolver-rules=MAP insecure.test 127.0.0.1",
];
const WEIGHTS = /shard-\d+\.bin$/;

const folder = resolve(process.argv[2]);
const here = dirname(fileURLToPath(import.meta.url));
const job = JSON.parse(readFileSync(join(folder, "job.json"), "utf8"));
/** @type {Record<string, {ms: number, value?: any, error?: string}>} */
const results = {};
const server = await serve({ "/under/a path/": join(folder, "sites"), "/test/": here, "/web/": resolve(here, "../..") });
const browser = await chromium.launch({
  executablePath: process.env.PTEGPU_CHROMIUM || "/usr/bin/chromium", args: FLAGS, ignoreDefaultArgs: ["--headless"], timeout: 30_000,
});

/** The address of a site. */
const at = (/** @type {string} */ site, host = "127.0.0.1") => `http://${host}:${server.port}/under/a%20path/${site}/`;

/** A page that runs functions of inpage.js. Contexts share caches, like visits of one visitor. */
async function open(context, address = `${server.url}/blank`) {
  const page = await context.newPage();
  page.setDefaultTimeout(60_000);
  await page.goto(address);
  return Object.assign(page, {
    call: (/** @type {string} */ name, /** @type {any[]} */ ...given) =>
      page.evaluate(async ([name, given]) => (await import("/test/inpage.js"))[name](...given), [name, given]),
  });
}

/** Notes what `work` gives, or how it failed, or that it took too long. */
async function step(name, seconds, work) {
  if (!name.match(process.env.ONLY ?? "")) return;
  const begun = performance.now();
  /** @type {any} */
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`took more than ${seconds} s`)), 1000 * seconds);
  });
  const context = await browser.newContext();
  try {
    results[name] = { ms: 0, value: await Promise.race([work(context), late]) };
  } catch (error) {
    results[name] = { ms: 0, error: String(error?.stack ?? error) };
  }
  clearTimeout(timer);
  server.faults.clear();
  await context.close().catch(() => {});
  results[name].ms = Math.round(performance.now() - begun);
  console.log(`${name}: ${results[name].ms} ms${results[name].error ? ` FAILED ${results[name].error.split("\n")[0]}` : ""}`);
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
  await step(`program ${name}`, 40, async (context) => (await open(context)).call("runs", at(site), calls));

const { language } = job;
await step("language model", 80, async (context) => (await open(context)).call("generations", at("tales"), language.requests));

const { digits } = job.calls;
await step("visits", 20, async (context) => {
  const found = [];
  for (const name of ["first", "second", "spoiled", "third"]) {
    const page = await open(context);
    const spoiled = name === "spoiled" ? await page.call("spoil") : null;
    server.log.length = 0;
    const visit = await page.call("visit", at("digits"), digits);
    found.push({ name, spoiled, ...visit, weights: server.sent(WEIGHTS), all: server.sent(/./).bytes });
    await page.close();
  }
  return found;
});

await step("failing cache", 20, async (context) => {
  const found = [];
  for (const how of ["open", "match", "put"]) {
    const page = await open(context);
    await page.call("breakCache", how);
    found.push({ how, ...(await page.call("visit", at("digits"), digits)) });
    await page.close();
  }
  return found;
});

await step("reload while loading", 30, async (context) => {
  const page = await open(context);
  server.faults.set(job.shards.held, { hold: 0.5 });
  server.log.length = 0;
  await page.call("begin", at("sharded"));
  for (;;) {
    const waits = server.log.some(({ path }) => path.endsWith(job.shards.held));
    const done = server.sent(WEIGHTS).requests >= job.shards.before + 1;
    const kept = await page.call("cached");
    if (waits && done && kept >= job.shards.before) break;
    await new Promise((next) => setTimeout(next, 50));
  }
  server.faults.clear();
  const kept = await page.call("cached");
  await page.reload();
  server.log.length = 0;
  const visit = await page.call("visit", at("sharded"), job.calls.sharded);
  return { kept, ...visit, weights: server.sent(WEIGHTS), shards: server.log.map(({ path }) => path).filter((p) => WEIGHTS.test(p)) };
});

await step("broken connection", 20, async (context) => {
  const page = await open(context);
  server.faults.set(job.shards.held, { cut: 0.5 });
  server.log.length = 0;
  const visit = await page.call("visit", at("sharded"), job.calls.sharded);
  return { ...visit, weights: server.sent(WEIGHTS) };
});

await step("errors", 40, async (context) => {
  const page = await open(context);
  const names = ["digits", "halves", "hosted", "nowhere", "html", "changed", "corrupt", "encoder"];
  server.faults.set("/corrupt/shard-000.bin", { corrupt: true });
  const found = await page.call("errors", Object.fromEntries(names.map((name) => [name, at(name)])), job.calls);
  const insecure = await open(context, `http://insecure.test:${server.port}/blank`);
  found.NoWebGPU = await insecure.call("withoutGpu", at("digits", "insecure.test"));
  return found;
});

await step("rounds", 60, async (context) => {
  const page = await open(context);
  const tools = await context.newCDPSession(page);
  const system = await browser.newBrowserCDPSession();
  const memory = async () => {
    await tools.send("HeapProfiler.collectGarbage");
    const { processInfo } = await system.send("SystemInfo.getProcessInfo");
    const gpu = processInfo.find(({ type }) => type === "GPU");
    const resident = Number(readFileSync(`/proc/${gpu.id}/statm`, "utf8").split(" ")[1]) * 4096;
    return { heap: (await tools.send("Runtime.getHeapUsage")).usedSize, gpu: resident };
  };
  const found = [];
  for (const count of [20, 40, 40]) found.push({ count, ...(await page.call("rounds", at("digits"), digits, count)), memory: await memory() });
  return found;
});

await step("worker", 60, async (context) => {
  const page = await open(context);
  return page.call("worker", "/web/src/client.js", at("tales"), language.requests[0], at("nowhere"));
});

await end();
