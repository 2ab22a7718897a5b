import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { createServer } from "node:http";
import { after, before, beforeEach, test } from "node:test";
import { BadBundle, BadShard } from "../src/errors.js";
import { deliver, fetchJson } from "../src/weights.js";

const sha256 = (bytes) => createHash("sha256").update(bytes).digest("hex");
const shardOf = (name, bytes) => [name, bytes.length, sha256(bytes)];

/** Returns bytes that differ from shard to shard. */
const bytesOf = (length, seed) => Buffer.from(Array.from({ length }, (_, k) => (k * 7 + seed * 31 + (k >> 8)) & 255));
const data = [bytesOf(300000, 1), bytesOf(1000, 2), bytesOf(70000, 3), bytesOf(5, 4), bytesOf(40000, 5)];
const shards = data.map((bytes, k) => shardOf(`shard-00${k}.bin`, bytes));
const allData = Buffer.concat(data);

// A server that supports Range. `answer(request, response, name)` may handle a request first, and then returns true.
// Each test has its own folder, so that late requests of the test before are not in its log.
let server, base, log, answer;
let folder = 0;
const files = new Map();
const handle = (request, response) => {
  const path = new URL(base).pathname;
  if (!request.url.startsWith(path)) return response.writeHead(404).end();
  const name = request.url.slice(path.length);
  log.push(request.headers.range ? `${name} ${request.headers.range}` : name);
  if (answer(request, response, name)) return;
  const bytes = files.get(name);
  if (!bytes) return response.writeHead(404).end("not here");
  const from = Number(/^bytes=(\d+)-$/.exec(request.headers.range ?? "")?.[1] ?? 0);
  if (from >= bytes.length && from) return response.writeHead(416).end();
  const head = { "Content-Length": bytes.length - from };
  if (from) head["Content-Range"] = `bytes ${from}-${bytes.length - 1}/${bytes.length}`;
  response.writeHead(from ? 206 : 200, head).end(bytes.subarray(from));
};
before(async () => {
  server = createServer(handle);
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
});
after(() => {
  server.closeAllConnections();
  server.close();
});
beforeEach(() => {
  base = `http://127.0.0.1:${server.address().port}/site-${++folder}/`;
  log = [];
  answer = () => false;
  files.clear();
  data.forEach((bytes, k) => files.set(shards[k][0], bytes));
  delete globalThis.caches;
});

/** Returns a fake of the browser's caches. `fail(operation, url)` may throw or wait. */
function fakeCaches(fail = async () => {}) {
  const stores = new Map();
  return {
    stores,
    async open(name) {
      await fail("open", name);
      if (!stores.has(name)) stores.set(name, new Map());
      const entries = stores.get(name);
      return {
        async match(url) {
          await fail("match", url);
          return entries.has(url) ? new Response(entries.get(url)) : undefined;
        },
        async put(url, response) {
          await fail("put", url);
          entries.set(url, new Uint8Array(await response.arrayBuffer()));
        },
        delete: async (url) => entries.delete(url),
        keys: async () => [...entries.keys()].map((url) => new Request(url)),
      };
    },
    hashes: (name = `ptegpu ${base}`) => [...(stores.get(name)?.keys() ?? [])].map((url) => url.split("/").pop()),
  };
}

const ALL = [[0, Infinity]];

/** Yields the parts that `deliver` delivers, each after the one before was consumed. Leaving the loop stops the delivery. */
async function* pieces(base, shards, ranges, options) {
  const queue = [];
  let wake = () => {};
  const readers = ranges.map(([start, end], range) => [
    start,
    end,
    (at, bytes) => new Promise((resolve, reject) => { queue.push({ piece: { range, at, bytes }, resolve, reject }); wake(); }),
  ]);
  let ended = false;
  const end = () => { ended = true; wake(); };
  const delivery = deliver(base, shards, readers, options);
  delivery.then(end, end);
  let last;
  try {
    for (;;) {
      last?.resolve();
      last = undefined;
      while (!queue.length && !ended) await new Promise((resolve) => (wake = resolve));
      if (!queue.length) return await delivery;
      last = queue.shift();
      yield last.piece;
    }
  } finally {
    last?.reject(new Error("left"));
    await delivery.catch(() => {});
  }
}
async function collect(source) {
  const all = [];
  for await (const { range, at, bytes } of source) all.push([range, at, Buffer.from(bytes)]);
  return all;
}
const load = async (options, ranges = ALL, list = shards) => {
  const collected = await collect(pieces(base, list, ranges, options));
  const all = collected.map(([range, at, bytes]) => [ranges[range][0] + at, bytes]);
  for (const [at, bytes] of all) assert.ok(allData.subarray(at, at + bytes.length).equals(bytes));
  return all;
};
const names = shards.map(([name]) => name);

test("delivers all data in order; progress never exceeds the total", async () => {
  const progress = [];
  const all = await load({ onBytes: (done, total) => progress.push([done, total]) });
  assert.ok(Buffer.concat(all.map(([, bytes]) => bytes)).equals(allData));
  assert.deepEqual(
    all.map(([at]) => at),
    [0, 300000, 301000, 371000, 371005],
  );
  assert.deepEqual(progress.at(-1), [allData.length, allData.length]);
  assert.ok(progress.every(([done, total], k) => total === allData.length && done >= (progress[k - 1]?.[0] ?? 0)));
  assert.deepEqual([...log].sort(), names);
});

test("without shards, delivers nothing", async () => {
  assert.deepEqual(await load({}, undefined, []), []);
});

test("only shards with requested bytes are fetched; ranges are split at shard boundaries", async () => {
  const progress = [];
  const ranges = [
    [10, 20],
    [299000, 300500],
    [371002, 371002],
    [371001, 371010],
  ];
  const all = await load({ onBytes: (done, total) => progress.push([done, total]) }, ranges);
  assert.deepEqual(
    all.map(([at, bytes]) => [at, at + bytes.length]),
    [
      [10, 20],
      [299000, 300000],
      [300000, 300500],
      [371001, 371005],
      [371005, 371010],
    ],
  );
  assert.deepEqual([...log].sort(), [names[0], names[1], names[3], names[4]]);
  const total = 300000 + 1000 + 5 + 40000;
  assert.deepEqual(progress.at(-1), [total, total]);
});

test("names are relative to the base, also with a query", async () => {
  const urls = [];
  const fetch = async (url) => (urls.push(url), new Response(data[3]));
  await load(
    { fetch },
    [[371000, 371005]],
    shards.map(([name, ...rest]) => [`${name}?v=2`, ...rest]),
  );
  assert.deepEqual(urls, [`${base}shard-003.bin?v=2`]);
});

test("a second load reads everything from the cache, by hash", async () => {
  globalThis.caches = fakeCaches();
  await load();
  assert.deepEqual(caches.hashes().sort(), shards.map(([, , hash]) => hash).sort());
  log = [];
  const progress = [];
  await load({ onBytes: (done) => progress.push(done) });
  assert.deepEqual(log, []);
  assert.equal(progress.length, shards.length); // one report for each cached shard
  assert.equal(progress.at(-1), allData.length);
});

test("the option cache names the cache, together with the site; null means no cache", async () => {
  globalThis.caches = fakeCaches();
  await load({ cache: "mine" });
  assert.deepEqual([...caches.stores.keys()], [`mine ${base}`]);
  globalThis.caches = fakeCaches();
  await load({ cache: null });
  assert.deepEqual([...caches.stores.keys()], []);
});

test("a load after an interrupted one starts with the cached shards", async () => {
  globalThis.caches = fakeCaches();
  for await (const { at } of pieces(base, shards, ALL)) if (at === 300000) break;
  const cached = shards.filter(([, , hash]) => caches.hashes().includes(hash)).map(([name]) => name);
  assert.ok(cached.length >= 2 && cached.length < 5, `cached: ${cached}`);
  log = [];
  await load();
  assert.deepEqual(
    cached.filter((name) => log.includes(name)),
    [],
  );
  assert.equal(caches.hashes().length, 5);
});

test("a damaged shard in the cache is fetched again and replaced", async () => {
  globalThis.caches = fakeCaches();
  await load();
  const entries = caches.stores.get(`ptegpu ${base}`);
  const keyOf = (k) => [...entries.keys()].find((url) => url.endsWith(shards[k][2]));
  entries.get(keyOf(0))[77] ^= 1;
  entries.set(keyOf(2), entries.get(keyOf(2)).slice(0, 10));
  log = [];
  await load();
  assert.deepEqual([...log].sort(), [names[0], names[2]]);
  assert.equal(sha256(entries.get(keyOf(0))), shards[0][2]);
  log = [];
  await load();
  assert.deepEqual(log, []);
});

for (const broken of ["open", "match", "put"]) {
  test(`a load works without a cache whose ${broken} fails`, async () => {
    globalThis.caches = fakeCaches(async (operation) => {
      if (operation === broken) throw new DOMException("no", "QuotaExceededError");
    });
    await load();
    await load();
    assert.equal(log.length, 10);
  });
}

test("a load works where caches are forbidden", async () => {
  globalThis.caches = {
    open() {
      throw new DOMException("insecure", "SecurityError");
    },
  };
  await load();
});

test("a load works without a cache that hangs", async (t) => {
  t.mock.method(AbortSignal, "timeout", () => {
    const soon = new AbortController();
    setTimeout(() => soon.abort(), 20);
    return soon.signal;
  });
  globalThis.caches = fakeCaches((operation) => (operation === "match" ? new Promise(() => {}) : Promise.resolve()));
  await load();
  globalThis.caches = fakeCaches(() => new Promise(() => {}));
  await load();
});

test("shards that a site no longer has are deleted from its cache; caches of other sites stay", async () => {
  globalThis.caches = fakeCaches();
  const old = bytesOf(2000, 9);
  files.set("old.bin", old);
  const elsewhere = `${base}there/../`;
  await collect(pieces(base, [shardOf("old.bin", old), shards[1]], ALL));
  await collect(pieces(elsewhere, [shardOf("old.bin", old)], ALL));
  log = [];
  await load();
  assert.ok(!log.includes(names[1]));
  assert.deepEqual(caches.hashes().sort(), shards.map(([, , hash]) => hash).sort());
  assert.deepEqual(caches.hashes(`ptegpu ${elsewhere}`), [sha256(old)]);
});

test("old shards are deleted before new ones are stored, for a full cache", async () => {
  const sizeOf = (entries) => [...entries.values()].reduce((sum, bytes) => sum + bytes.length, 0);
  let full = false;
  globalThis.caches = fakeCaches(async (operation) => {
    if (operation === "put" && full && sizeOf(caches.stores.get(`ptegpu ${base}`)) > 200000) throw new Error("quota");
  });
  await load();
  full = true;
  await collect(pieces(base, [shards[1], shards[4]], ALL));
  assert.deepEqual(caches.hashes().sort(), [shards[1][2], shards[4][2]].sort());
});

test("a download with the wrong hash is fetched again, bypassing the browser's HTTP cache", async () => {
  const modes = [];
  const fetch = async (url, init) => {
    modes.push(init.cache);
    return new Response(modes.length === 1 ? bytesOf(1000, 6) : data[1]);
  };
  const progress = [];
  await load({ fetch, onBytes: (done) => progress.push(done) }, [[300000, 301000]]);
  assert.deepEqual(modes, ["default", "reload"]);
  globalThis.caches = fakeCaches();
  modes.length = 0;
  await load({ fetch }, [[300000, 301000]]);
  assert.deepEqual(modes, ["no-store", "reload"]);
  assert.deepEqual([Math.max(...progress), progress.at(-1)], [1000, 1000]);
});

test("a second wrong hash raises BadShard, which names the file; nothing of it is delivered or cached", async () => {
  globalThis.caches = fakeCaches();
  for (const wrong of [bytesOf(1000, 6), bytesOf(999, 2), bytesOf(2000, 2), Buffer.concat([data[1], Buffer.of(0)])]) {
    files.set(names[1], wrong);
    log = [];
    const offsets = [];
    await assert.rejects(
      async () => {
        for await (const { at } of pieces(base, shards, ALL)) offsets.push(at);
      },
      (error) => {
        assert.ok(error instanceof BadShard);
        assert.equal(
          error.message,
          `${base}shard-001.bin: wrong SHA-256. The site is incomplete or was changed.`,
        );
        return true;
      },
    );
    assert.deepEqual(offsets, [0]);
    assert.equal(log.filter((line) => line === names[1]).length, 2);
    assert.ok(!caches.hashes().includes(shards[1][2]));
  }
});

test("a missing shard raises BadShard without another try", async () => {
  files.delete(names[2]);
  await assert.rejects(load(), (error) => {
    assert.ok(error instanceof BadShard);
    assert.equal(error.message, `${base}shard-002.bin: status 404. A file of the site is missing.`);
    return true;
  });
  assert.equal(log.filter((line) => line === names[2]).length, 1);
});

test("a broken connection is resumed", async () => {
  let breaks = 2,
    open;
  answer = (request, response) => {
    if (!breaks) return false;
    breaks--;
    const from = Number(/\d+/.exec(request.headers.range ?? "0")[0]);
    response.writeHead(from ? 206 : 200, { "Content-Length": data[0].length - from });
    response.write(data[0].subarray(from, from + 100000));
    open = response;
    return true;
  };
  const progress = [];
  const onBytes = (done) => {
    progress.push(done);
    if (done === 200000 - 100000 * breaks) open.destroy(); // everything sent has arrived
  };
  await load({ onBytes }, [[0, 300000]]);
  assert.deepEqual(log, [names[0], `${names[0]} bytes=100000-`, `${names[0]} bytes=200000-`]);
  assert.ok(progress.every((done, k) => done >= (progress[k - 1] ?? 0)));
  assert.equal(progress.at(-1), 300000);
});

test("without Range, a broken download starts over", async () => {
  let breaks = true,
    open;
  answer = (request, response) => {
    delete request.headers.range;
    if (!breaks) return false;
    breaks = false;
    response.writeHead(200, { "Content-Length": 70000 }).write(data[2].subarray(0, 500));
    open = response;
    return true;
  };
  const progress = [];
  const onBytes = (done) => {
    if (done === 500) open.destroy();
    progress.push(done);
  };
  await load({ onBytes }, [[301000, 371000]]);
  assert.deepEqual(log, [names[2], `${names[2]} bytes=500-`]);
  assert.deepEqual([...new Set(progress)].slice(0, 2), [0, 500]);
  assert.equal(progress.filter((done) => !done).length, 2);
  assert.equal(progress.at(-1), 70000);
});

test("a request to a busy server is retried", async () => {
  const statuses = [503, 429];
  const fetch = async (url, init) => {
    const status = statuses.shift();
    return status ? new Response("", { status }) : globalThis.fetch(url, init);
  };
  await load({ fetch }, [[0, 10]]);
  assert.deepEqual(statuses, []);
});

test("without a network, the last try raises BadShard", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  let tries = 0;
  const fetch = async () => {
    if (++tries < 5) setImmediate(() => t.mock.timers.tick(5000));
    throw new TypeError("fetch failed");
  };
  await assert.rejects(load({ fetch }, [[0, 10]]), (error) => {
    assert.ok(error instanceof BadShard);
    assert.equal(error.message, `${base}shard-000.bin: TypeError: fetch failed. Check the network and load again.`);
    return true;
  });
  assert.equal(tries, 5);
});

test("an abort in the last try rejects with its reason", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const stop = new AbortController();
  const reason = new Error("enough");
  let tries = 0;
  const fetch = async () => {
    if (++tries < 5) setImmediate(() => t.mock.timers.tick(5000));
    else stop.abort(reason);
    throw new TypeError("fetch failed");
  };
  await assert.rejects(load({ fetch, signal: stop.signal }, [[0, 10]]), reason);
});

test("an abort rejects with its reason: before, during a download, between tries, between pieces", async () => {
  const reason = new Error("enough");
  await assert.rejects(load({ signal: AbortSignal.abort(reason) }), reason);
  assert.deepEqual(log, []);

  let stop = new AbortController();
  let closed;
  const connectionClosed = new Promise((resolve) => (closed = resolve));
  answer = (request, response) => {
    response.writeHead(200, { "Content-Length": 300000 }).write(data[0].subarray(0, 1000));
    response.on("close", closed);
    return true;
  };
  const onBytes = () => stop.abort(reason);
  await assert.rejects(load({ signal: stop.signal, onBytes }), reason);
  await connectionClosed;

  const later = new AbortController();
  const fetch = async () => {
    setTimeout(() => later.abort(reason), 20);
    throw new TypeError("fetch failed");
  };
  await assert.rejects(load({ signal: later.signal, fetch }), reason);

  stop = new AbortController();
  answer = () => false;
  const offsets = [];
  await assert.rejects(async () => {
    for await (const { at } of pieces(base, shards, ALL, { signal: stop.signal })) {
      offsets.push(at);
      stop.abort(reason);
    }
  }, reason);
  assert.deepEqual(offsets, [0]);
});

test("leaving the loop, or an error, stops the other downloads", async () => {
  for (const fails of [false, true]) {
    const open = new Set();
    answer = (request, response, name) => {
      if (name === names[0]) return fails && !!response.writeHead(404).end();
      open.add(response);
      response.on("close", () => open.delete(response));
      response.writeHead(200, { "Content-Length": 100000 }).write("some");
      return true;
    };
    if (fails) await assert.rejects(load(), BadShard);
    else for await (const _ of pieces(base, shards, ALL)) break;
    for (let k = 0; open.size && k < 1000; k++) await new Promise((resolve) => setTimeout(resolve, 10));
    assert.equal(open.size, 0);
  }
});

test("at most three shards are downloaded at once, or wait in memory", async () => {
  const contents = Array.from({ length: 12 }, (_, k) => bytesOf(1000, 20 + k));
  let running = 0;
  let maxRunning = 0;
  let fetched = 0;
  const fetch = async (url) => {
    maxRunning = Math.max(maxRunning, ++running);
    await new Promise((resolve) => setTimeout(resolve, 5));
    running--;
    fetched++;
    return new Response(contents[Number(/(\d+)\.bin/.exec(url)[1])]);
  };
  let delivered = 0;
  const list = contents.map((bytes, k) => shardOf(`s-${k}.bin`, bytes));
  for await (const { bytes } of pieces(base, list, ALL, { fetch })) {
    assert.ok(contents[delivered++].equals(Buffer.from(bytes)));
    await new Promise((resolve) => setTimeout(resolve, 20)); // a slow consumer
    assert.ok(fetched - delivered <= 2, `${fetched} fetched, ${delivered} delivered`);
  }
  assert.equal(delivered, 12);
  assert.equal(maxRunning, 3);
});

test("JSON files: with a hash, without one, with a wrong one, missing, invalid", async () => {
  const text = Buffer.from('{"title": "Märchen"}');
  files.set("site.json", text);
  const right = sha256(text);
  assert.deepEqual(await fetchJson(`${base}site.json`), { title: "Märchen" });
  assert.deepEqual(await fetchJson(`${base}site.json`, {}, right), { title: "Märchen" });

  const modes = [];
  const stale = async (url, { cache }) => {
    modes.push(cache);
    return new Response(cache === "default" ? '{"title": "M\u00e4rchem"}' : text);
  };
  assert.deepEqual(await fetchJson(`${base}site.json`, { fetch: stale }, right), { title: "Märchen" });
  await fetchJson(`${base}site.json`, { fetch: stale });
  assert.deepEqual(modes, ["default", "reload", "no-cache"]);

  const says = (message) => (error) => {
    assert.ok(error instanceof BadBundle);
    assert.equal(error.message, message);
    return true;
  };
  await assert.rejects(
    fetchJson(`${base}site.json`, {}, sha256("")),
    says(`${base}site.json: wrong SHA-256. The site is incomplete or was changed.`),
  );
  await assert.rejects(
    fetchJson(`${base}none.json`),
    says(`${base}none.json: status 404. A file of the site is missing.`),
  );
  files.set("page.json", Buffer.from("<!doctype html>"));
  await assert.rejects(fetchJson(`${base}page.json`), says(`${base}page.json: invalid JSON. A file of the site is missing.`));
  const reason = new Error("enough");
  await assert.rejects(fetchJson(`${base}site.json`, { signal: AbortSignal.abort(reason) }), reason);
});
