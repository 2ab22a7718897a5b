import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { createServer } from "node:http";
import { after, before, beforeEach, test } from "node:test";
import { BadBundle, BadShard } from "../src/errors.js";
import { deliver, fetchJson } from "../src/weights.js";

const sha256 = (bytes) => createHash("sha256").update(bytes).digest("hex");
const shardOf = (name, bytes) => [name, bytes.length, sha256(bytes)];

/** Bytes that differ from shard to shard. */
const made = (length, seed) => Buffer.from(Array.from({ length }, (_, k) => (k * 7 + seed * 31 + (k >> 8)) & 255));
const data = [made(300000, 1), made(1000, 2), made(70000, 3), made(5, 4), made(40000, 5)];
const shards = data.map((bytes, k) => shardOf(`shard-00${k}.bin`, bytes));
const whole = Buffer.concat(data);

// A server with Range. `answer(request, response, name)` may handle a request first: it is done if it gives true.
// Each test has a folder of its own: what the one before still asks for is not in its log.
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

/** The browser's caches, with what we use of them. `fail(what, url)` may throw or wait. */
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

/** What is delivered, as a loop: the next piece is taken when it is asked for, and whoever leaves takes no more. */
async function* pieces(base, shards, ranges, options) {
  const given = [];
  let wake = () => {};
  const wanted = ranges.map(([start, end], of) => [
    start,
    end,
    (at, bytes) => new Promise((taken, left) => { given.push({ piece: { of, at, bytes }, taken, left }); wake(); }),
  ]);
  let over = false;
  const end = () => { over = true; wake(); };
  const delivered = deliver(base, shards, wanted, options);
  delivered.then(end, end);
  let last;
  try {
    for (;;) {
      last?.taken();
      last = undefined;
      while (!given.length && !over) await new Promise((resolve) => (wake = resolve));
      if (!given.length) return await delivered;
      last = given.shift();
      yield last.piece;
    }
  } finally {
    last?.left(new Error("left"));
    await delivered.catch(() => {});
  }
}
async function collect(source) {
  const all = [];
  for await (const { of, at, bytes } of source) all.push([of, at, Buffer.from(bytes)]);
  return all;
}
const load = async (options, wanted = ALL, list = shards) => {
  const given = await collect(pieces(base, list, wanted, options));
  const all = given.map(([of, at, bytes]) => [wanted[of][0] + at, bytes]);
  for (const [at, bytes] of all) assert.ok(whole.subarray(at, at + bytes.length).equals(bytes));
  return all;
};
const names = shards.map(([name]) => name);

test("all of the data, in order, with progress that never runs over", async () => {
  const seen = [];
  const all = await load({ onBytes: (done, total) => seen.push([done, total]) });
  assert.ok(Buffer.concat(all.map(([, bytes]) => bytes)).equals(whole));
  assert.deepEqual(
    all.map(([at]) => at),
    [0, 300000, 301000, 371000, 371005],
  );
  assert.deepEqual(seen.at(-1), [whole.length, whole.length]);
  assert.ok(seen.every(([done, total], k) => total === whole.length && done >= (seen[k - 1]?.[0] ?? 0)));
  assert.deepEqual([...log].sort(), names);
});

test("no shards give nothing", async () => {
  assert.deepEqual(await load({}, undefined, []), []);
});

test("only shards with wanted bytes are fetched; ranges are cut where shards end", async () => {
  const seen = [];
  const wanted = [
    [10, 20],
    [299000, 300500],
    [371002, 371002],
    [371001, 371010],
  ];
  const all = await load({ onBytes: (done, total) => seen.push([done, total]) }, wanted);
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
  assert.deepEqual(seen.at(-1), [total, total]);
});

test("names are relative to the base, also with a query", async () => {
  const asked = [];
  const fetch = async (url) => (asked.push(url), new Response(data[3]));
  await load(
    { fetch },
    [[371000, 371005]],
    shards.map(([name, ...rest]) => [`${name}?v=2`, ...rest]),
  );
  assert.deepEqual(asked, [`${base}shard-003.bin?v=2`]);
});

test("a second load takes everything from the cache, under the hash", async () => {
  globalThis.caches = fakeCaches();
  await load();
  assert.deepEqual(caches.hashes().sort(), shards.map(([, , hash]) => hash).sort());
  log = [];
  const seen = [];
  await load({ onBytes: (done) => seen.push(done) });
  assert.deepEqual(log, []);
  assert.equal(seen.length, shards.length); // each counts at once
  assert.equal(seen.at(-1), whole.length);
});

test("the cache is named as is told, and after the site; or there is none", async () => {
  globalThis.caches = fakeCaches();
  await load({ cache: "mine" });
  assert.deepEqual([...caches.stores.keys()], [`mine ${base}`]);
  globalThis.caches = fakeCaches();
  await load({ cache: null });
  assert.deepEqual([...caches.stores.keys()], []);
});

test("a load that stopped in the middle goes on from what is cached", async () => {
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

test("a cached shard that is damaged is fetched again, and put right", async () => {
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
  test(`a cache whose ${broken} fails is done without`, async () => {
    globalThis.caches = fakeCaches(async (what) => {
      if (what === broken) throw new DOMException("no", "QuotaExceededError");
    });
    await load();
    await load();
    assert.equal(log.length, 10);
  });
}

test("a cache that is no use at all is done without", async () => {
  globalThis.caches = {
    open() {
      throw new DOMException("insecure", "SecurityError");
    },
  };
  await load();
});

test("a cache that hangs is done without", async (t) => {
  t.mock.method(AbortSignal, "timeout", () => {
    const soon = new AbortController();
    setTimeout(() => soon.abort(), 20);
    return soon.signal;
  });
  globalThis.caches = fakeCaches((what) => (what === "match" ? new Promise(() => {}) : Promise.resolve()));
  await load();
  globalThis.caches = fakeCaches(() => new Promise(() => {}));
  await load();
});

test("shards that a site no longer has are deleted; those of other sites stay", async () => {
  globalThis.caches = fakeCaches();
  const old = made(2000, 9);
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

test("a full cache is cleared of what nobody needs before anything is put", async () => {
  const sizeOf = (entries) => [...entries.values()].reduce((sum, bytes) => sum + bytes.length, 0);
  let full = false;
  globalThis.caches = fakeCaches(async (what) => {
    if (what === "put" && full && sizeOf(caches.stores.get(`ptegpu ${base}`)) > 200000) throw new Error("quota");
  });
  await load();
  full = true;
  await collect(pieces(base, [shards[1], shards[4]], ALL));
  assert.deepEqual(caches.hashes().sort(), [shards[1][2], shards[4][2]].sort());
});

test("a wrong download is fetched again, past the browser's cache", async () => {
  const modes = [];
  const fetch = async (url, init) => {
    modes.push(init.cache);
    return new Response(modes.length === 1 ? made(1000, 6) : data[1]);
  };
  const seen = [];
  await load({ fetch, onBytes: (done) => seen.push(done) }, [[300000, 301000]]);
  assert.deepEqual(modes, ["default", "reload"]);
  globalThis.caches = fakeCaches();
  modes.length = 0;
  await load({ fetch }, [[300000, 301000]]);
  assert.deepEqual(modes, ["no-store", "reload"]);
  assert.deepEqual([Math.max(...seen), seen.at(-1)], [1000, 1000]);
});

test("wrong twice is BadShard, which names the file; nothing of it is given out or cached", async () => {
  globalThis.caches = fakeCaches();
  for (const wrong of [made(1000, 6), made(999, 2), made(2000, 2), Buffer.concat([data[1], Buffer.of(0)])]) {
    files.set(names[1], wrong);
    log = [];
    const given = [];
    await assert.rejects(
      async () => {
        for await (const { at } of pieces(base, shards, ALL)) given.push(at);
      },
      (error) => {
        assert.ok(error instanceof BadShard);
        assert.equal(
          error.message,
          `${base}shard-001.bin: not what bundle.json says. The site is incomplete.`,
        );
        return true;
      },
    );
    assert.deepEqual(given, [0]);
    assert.equal(log.filter((line) => line === names[1]).length, 2);
    assert.ok(!caches.hashes().includes(shards[1][2]));
  }
});

test("a missing shard is BadShard at once", async () => {
  files.delete(names[2]);
  await assert.rejects(load(), (error) => {
    assert.ok(error instanceof BadShard);
    assert.equal(error.message, `${base}shard-002.bin: status 404. A file of the site is missing.`);
    return true;
  });
  assert.equal(log.filter((line) => line === names[2]).length, 1);
});

test("a broken connection goes on from where it broke", async () => {
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
  const seen = [];
  const onBytes = (done) => {
    seen.push(done);
    if (done === 200000 - 100000 * breaks) open.destroy(); // all that was sent is here
  };
  await load({ onBytes }, [[0, 300000]]);
  assert.deepEqual(log, [names[0], `${names[0]} bytes=100000-`, `${names[0]} bytes=200000-`]);
  assert.ok(seen.every((done, k) => done >= (seen[k - 1] ?? 0)));
  assert.equal(seen.at(-1), 300000);
});

test("a server without Range starts over", async () => {
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
  const seen = [];
  const onBytes = (done) => {
    if (done === 500) open.destroy();
    seen.push(done);
  };
  await load({ onBytes }, [[301000, 371000]]);
  assert.deepEqual(log, [names[2], `${names[2]} bytes=500-`]);
  assert.deepEqual([...new Set(seen)].slice(0, 2), [0, 500]);
  assert.equal(seen.filter((done) => !done).length, 2);
  assert.equal(seen.at(-1), 70000);
});

test("a busy server is asked again", async () => {
  const statuses = [503, 429];
  const fetch = async (url, init) => {
    const status = statuses.shift();
    return status ? new Response("", { status }) : globalThis.fetch(url, init);
  };
  await load({ fetch }, [[0, 10]]);
  assert.deepEqual(statuses, []);
});

test("a network that stays away is BadShard in the end", async (t) => {
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

test("an abort in the last try is an abort", async (t) => {
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

test("an abort rejects with its reason: before, while bytes come, between tries, between pieces", async () => {
  const reason = new Error("enough");
  await assert.rejects(load({ signal: AbortSignal.abort(reason) }), reason);
  assert.deepEqual(log, []);

  let stop = new AbortController();
  let closed;
  const gone = new Promise((resolve) => (closed = resolve));
  answer = (request, response) => {
    response.writeHead(200, { "Content-Length": 300000 }).write(data[0].subarray(0, 1000));
    response.on("close", closed);
    return true;
  };
  const onBytes = () => stop.abort(reason);
  await assert.rejects(load({ signal: stop.signal, onBytes }), reason);
  await gone;

  const later = new AbortController();
  const fetch = async () => {
    setTimeout(() => later.abort(reason), 20);
    throw new TypeError("fetch failed");
  };
  await assert.rejects(load({ signal: later.signal, fetch }), reason);

  stop = new AbortController();
  answer = () => false;
  const given = [];
  await assert.rejects(async () => {
    for await (const { at } of pieces(base, shards, ALL, { signal: stop.signal })) {
      given.push(at);
      stop.abort(reason);
    }
  }, reason);
  assert.deepEqual(given, [0]);
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

test("at most three shards are fetched at once, and no more are held than that", async () => {
  const many = Array.from({ length: 12 }, (_, k) => made(1000, 20 + k));
  let now = 0;
  let most = 0;
  let fetched = 0;
  const fetch = async (url) => {
    most = Math.max(most, ++now);
    await new Promise((resolve) => setTimeout(resolve, 5));
    now--;
    fetched++;
    return new Response(many[Number(/(\d+)\.bin/.exec(url)[1])]);
  };
  let given = 0;
  const list = many.map((bytes, k) => shardOf(`s-${k}.bin`, bytes));
  for await (const { bytes } of pieces(base, list, ALL, { fetch })) {
    assert.ok(many[given++].equals(Buffer.from(bytes)));
    await new Promise((resolve) => setTimeout(resolve, 20)); // a slow consumer
    assert.ok(fetched - given <= 2, `${fetched} fetched, ${given} given`);
  }
  assert.equal(given, 12);
  assert.equal(most, 3);
});

test("JSON: with a hash, without, wrong, missing, none at all", async () => {
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
    says(`${base}site.json: not what bundle.json says. The site is incomplete.`),
  );
  await assert.rejects(
    fetchJson(`${base}none.json`),
    says(`${base}none.json: status 404. A file of the site is missing.`),
  );
  files.set("page.json", Buffer.from("<!doctype html>"));
  await assert.rejects(fetchJson(`${base}page.json`), says(`${base}page.json: no JSON. A file of the site is missing.`));
  const reason = new Error("enough");
  await assert.rejects(fetchJson(`${base}site.json`, { signal: AbortSignal.abort(reason) }), reason);
});
