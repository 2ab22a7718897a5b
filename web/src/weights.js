// Files of a site over the network, proved before use: JSON, and the shards that hold the weights. No GPU in here.
import { BadBundle, BadShard } from "./errors.js";

/** @typedef {[name: string, length: number, sha256: string]} Shard */
/** @typedef {(url: string, init?: RequestInit) => Promise<Response>} Fetch */

const KEYS = "https://ptegpu.invalid/"; // a cached shard has this URL with its hash
const AT_ONCE = 3;
const CACHE_WAIT = 10000; // ms that the cache may take for one thing

/**
 * The bytes of a file. A broken connection is resumed, five tries in all; what has not the right hash is fetched again, past
 * the browser's own cache; then it is an error of the class `Bad`.
 * @param {string} url
 * @param {new (message: string) => Error} Bad
 * @param {string | undefined} sha256
 * @param {AbortSignal | undefined} signal
 * @param {Fetch} [fetch]
 * @param {(bytes: number) => void} [count] is told of bytes as they come, and, below 0, of those that were no good
 */
async function download(url, Bad, sha256, signal, fetch = globalThis.fetch, count = () => {}) {
  /** Without a hash, the browser asks whether its copy is current. @type {RequestCache} */
  let cache = sha256 ? "default" : "no-cache";
  let length = 0;
  /** @type {Uint8Array[]} */
  let parts = [];
  const restart = () => {
    count(-length);
    length = 0;
    parts = [];
  };
  for (let wait = 250; ; ) { // ms, doubled from try to try
    try {
      const { status, ok, body } = await fetch(url, { signal, cache, headers: length ? { Range: `bytes=${length}-` } : {} });
      if (status !== 206) restart();
      if (status > 499 || status === 429) throw `status ${status}`; // it may pass
      if (!ok) throw new Bad(`${url}: status ${status}. Is the whole folder there?`);
      const reader = /** @type {ReadableStream<Uint8Array>} */ (body).getReader();
      for (let part; (part = (await reader.read()).value);) {
        parts.push(part);
        length += part.length;
        count(part.length);
      }
      const bytes = new Uint8Array(length);
      let at = 0;
      for (const part of parts) {
        bytes.set(part, at);
        at += part.length;
      }
      if (!sha256 || (await hash(bytes)) === sha256) return bytes;
      if (cache === "reload") throw new Bad(`${url}: not what bundle.json says, twice. Upload the whole folder again.`);
      cache = "reload";
      restart();
    } catch (error) {
      signal?.throwIfAborted();
      if (error instanceof Bad) throw error;
      if (wait > 2000) throw new Bad(`${url}: ${error}. Check the network and load again.`);
      await new Promise((resolve) => {
        setTimeout(resolve, wait);
        signal?.addEventListener("abort", resolve);
      });
      wait *= 2;
    }
  }
}

/** @type {(bytes: Uint8Array<ArrayBuffer>) => Promise<string>} */
const hash = async (bytes) =>
  new Uint8Array(await crypto.subtle.digest("SHA-256", bytes)).reduce(
    (hex, byte) => hex + (byte + 256).toString(16).slice(1),
    "",
  );

/**
 * A JSON file. BadBundle, if it is not there, is no JSON, or has not the hash that is expected.
 * @param {string} url
 * @param {{signal?: AbortSignal, fetch?: Fetch, sha256?: string}} [options]
 * @returns {Promise<any>}
 */
export async function fetchJson(url, { signal, fetch, sha256 } = {}) {
  const bytes = await download(url, BadBundle, sha256, signal, fetch);
  try {
    return JSON.parse(new TextDecoder().decode(bytes));
  } catch {
    throw new BadBundle(`${url}: no JSON. Is the whole folder there?`);
  }
}

/**
 * What `work` gives, or nothing if it fails or hangs: a cache is a help, never a need.
 * @template T
 * @param {() => Promise<T>} work
 * @returns {Promise<T | void>}
 */
const tried = (work) =>
  Promise.race([
    work(),
    /** @type {Promise<void>} */ (
      new Promise((resolve) => (AbortSignal.timeout(CACHE_WAIT).onabort = () => resolve()))
    ),
  ]).catch(() => {});

/**
 * The data of a bundle, which is its shards one behind the other: the bytes within `wanted`, in order. They come from the
 * cache or the network, and are proved before they are given out.
 * @param {string} base the URL that the names of shards are relative to
 * @param {Shard[]} shards
 * @param {readonly [start: number, end: number, ...any][]} wanted
 * @param {{fetch?: Fetch, cache?: string | null, signal?: AbortSignal, onBytes?: (done: number, total: number) => void}}
 *   [options] `cache` is what the browser's caches are named after, one for each site; null: none
 * @returns {AsyncGenerator<{of: number, at: number, bytes: Uint8Array<ArrayBuffer>}>} bytes from the place `at` on in the
 *   range number `of`
 */
export async function* pieces(base, shards, wanted, { fetch, cache = "ptegpu", signal: outer, onBytes } = {}) {
  const stop = new AbortController();
  const signal = AbortSignal.any([stop.signal].concat(outer ?? []));
  let done = 0;
  let total = 0;
  let end = 0;
  const count = (/** @type {number} */ bytes) => onBytes?.((done += bytes), total);
  const needed = shards
    .map(([name, length, sha256]) => ({ name, length, key: KEYS + sha256, sha256, at: (end += length) - length }))
    .filter(({ at, length }) => wanted.some(([from, to]) => from < at + length && to > at) && (total += length));
  const store = cache && (await tried(async () => caches.open(`${cache} ${base}`)));
  if (store)
    await tried(async () => {
      // What the site had before it changed.
      for (const { url } of await store.keys())
        if (!shards.some(([, , sha256]) => url === KEYS + sha256)) await store.delete(url);
    });
  const get = async ({ name, length, key, sha256 } = needed[0]) => {
    const hit = store && (await tried(async () => (await store.match(key))?.arrayBuffer()));
    if (hit) {
      const bytes = new Uint8Array(hit);
      if ((await hash(bytes)) === sha256) {
        count(length);
        return bytes;
      }
      await tried(() => store.delete(key));
    }
    const bytes = await download(new URL(name, base).href, BadShard, sha256, signal, fetch, count);
    if (store) await tried(() => store.put(key, new Response(bytes)));
    return bytes;
  };
  const coming = [];
  let next = 0;
  try {
    for (const { at, length } of needed) {
      for (; next < needed.length && coming.length < AT_ONCE; next++) {
        const shard = get(needed[next]);
        shard.catch(() => {}); // thrown below, if the loop comes that far
        coming.push(shard);
      }
      const bytes = await /** @type {ReturnType<typeof get>} */ (coming.shift());
      for (const [of, [start, end]] of wanted.entries()) {
        const from = Math.max(start, at);
        const to = Math.min(end, at + length);
        signal.throwIfAborted();
        if (from < to) yield { of, at: from - start, bytes: bytes.subarray(from - at, to - at) };
      }
    }
  } finally {
    stop.abort();
  }
}
