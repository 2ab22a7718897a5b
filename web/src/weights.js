// Files of a site over the network, proved before use: JSON, and the shards that hold the weights. No GPU in here.
import { BadBundle, BadShard } from "./errors.js";

/** @typedef {[name: string, length: number, sha256: string]} Shard */
/** @typedef {(url: string, init?: RequestInit) => Promise<Response>} Fetch */
/** @typedef {[start: number, end: number, take: (at: number, bytes: Uint8Array<ArrayBuffer>) => unknown]} Wanted */

const AT_ONCE = 3;
const CACHE_WAIT = 10000; // ms that the cache may take for one thing

/**
 * The bytes of a file. A broken connection is resumed, with up to five tries; what has not the right hash is fetched
 * again, past the browser's own cache; then it is an error of the class `Bad`.
 * @param {string} url
 * @param {new (message: string) => Error} Bad
 * @param {string | undefined} sha256
 * @param {RequestCache} cache how the browser's own one is used
 * @param {AbortSignal | undefined} signal
 * @param {Fetch} [fetch]
 * @param {(bytes: number) => void} [count] is told of bytes as they come, and, below 0, of those that were no good
 */
async function download(url, Bad, sha256, cache, signal, fetch = globalThis.fetch, count = () => {}) {
  let length = 0;
  /** @type {Uint8Array[]} */
  let parts = [];
  const restart = () => {
    count(-length);
    length = 0;
    parts = [];
  };
  for (let wait = 250; ; wait *= 2) { // ms
    try {
      /** @type {HeadersInit} */
      const headers = length ? { Range: `bytes=${length}-` } : {};
      const { status, ok, body } = await fetch(url, { signal, cache, headers });
      if (status !== 206) restart();
      if (status > 499 || status === 429) throw `status ${status}`; // it may pass
      if (!ok) throw new Bad(`${url}: status ${status}. A file of the site is missing.`);
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
      if (cache === "reload") throw new Bad(`${url}: not what bundle.json says. The site is incomplete.`);
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
 * @param {{signal?: AbortSignal, fetch?: Fetch}} [options]
 * @param {string} [sha256]
 * @returns {Promise<any>}
 */
export async function fetchJson(url, { signal, fetch } = {}, sha256) {
  // Without a hash, the browser asks whether its copy is current.
  const bytes = await download(url, BadBundle, sha256, sha256 ? "default" : "no-cache", signal, fetch);
  try {
    return await new Response(bytes).json();
  } catch {
    throw new BadBundle(`${url}: no JSON. A file of the site is missing.`);
  }
}

/**
 * What `work` gives, or nothing if it fails or hangs: a cache is a help, never a need.
 * @template T
 * @param {() => Promise<T>} work
 * @returns {Promise<T | void>}
 */
const tried = async (work) => {
  try {
    return await Promise.race([
      work(),
      /** @type {Promise<void>} */ (
        new Promise((resolve) => (AbortSignal.timeout(CACHE_WAIT).onabort = () => resolve()))
      ),
    ]);
  } catch {}
};

/**
 * Gives out the data of a bundle, which is its shards one behind the other: to each of `wanted` the bytes from `start`
 * to `end`, in order, and from which place in them on. They come from the cache or the network, and are proved before.
 * @param {string} base the URL that the names of shards are relative to
 * @param {Shard[]} shards
 * @param {Wanted[]} wanted
 * @param {{fetch?: Fetch, cache?: string | null, signal?: AbortSignal, onBytes?: (done: number, total: number) => void,
 *   pause?: () => unknown}} [options] `cache` is what the browser's caches are named after, one for each site, null:
 *   none; `pause` is waited for after each shard
 */
export async function deliver(base, shards, wanted, { fetch, cache = "ptegpu", signal: outer, onBytes, pause } = {}) {
  const stop = new AbortController();
  const signal = AbortSignal.any([stop.signal, outer ?? stop.signal]);
  let done = 0;
  let total = 0;
  let end = 0;
  const count = (/** @type {number} */ bytes) => onBytes?.((done += bytes), total);
  const needed = shards
    .map(([name, length, sha256]) => ({ name, length, sha256, at: (end += length) - length }))
    .filter(({ at, length }) => wanted.some(([from, to]) => from < at + length && to > at) && (total += length));
  const store = /** @type {Cache} */ (cache && (await tried(() => caches.open(`${cache} ${base}`))));
  await tried(async () => {
    // What the site had before it changed.
    for (const { url } of await store.keys())
      if (!shards.some(([, , sha256]) => url.endsWith(sha256))) await store.delete(url);
  });
  /** @param {any} shard @returns {Promise<Uint8Array<ArrayBuffer>>} */
  const get = async ({ name, length, sha256 }) => {
    const key = base + sha256;
    const kept = await tried(
      async () => new Uint8Array(await /** @type {any} */ (await store.match(key)).arrayBuffer()), // or it fails
    );
    if (kept && (await hash(kept)) === sha256) {
      count(length);
      return kept;
    }
    const mode = store ? "no-store" : "default"; // what is cached here need not be cached twice
    const bytes = await download(new URL(name, base).href, BadShard, sha256, mode, signal, fetch, count);
    await tried(() => store.put(key, new Response(bytes)));
    return bytes;
  };
  try {
    for (const [k, shard] of /** @type {any} */ (needed).entries()) {
      const { at, length } = shard;
      for (const one of /** @type {any[]} */ (needed.slice(k, k + AT_ONCE)))
        (one.coming ??= get(one)).catch(() => {}); // thrown below, if the loop comes that far
      const bytes = await shard.coming;
      shard.coming = null;
      for (const [start, end, take] of wanted) {
        const from = Math.max(start, at);
        const to = Math.min(end, at + length);
        signal.throwIfAborted();
        if (from < to) await take(from - start, bytes.subarray(from - at, to - at));
      }
      await pause?.();
    }
  } finally {
    stop.abort();
  }
}
