// Downloads a site's files, JSON and weight shards, and verifies them before use. Independent of the GPU.
import { BadBundle, BadShard } from "./errors.js";

/** @typedef {[name: string, length: number, sha256: string]} Shard */
/** @typedef {(url: string, init?: RequestInit) => Promise<Response>} Fetch */
/** @typedef {[start: number, end: number, take: (at: number, bytes: Uint8Array<ArrayBuffer>) => unknown]} Reader */

const PARALLEL_DOWNLOADS = 3;
const CACHE_TIMEOUT = 10000; // ms for one operation

/**
 * Returns the bytes of a file. Resumes a broken connection, up to five tries; fetches a file with the wrong hash once
 * more, bypassing the browser's HTTP cache; then throws an error of the class `Bad`.
 * @param {string} url
 * @param {new (message: string) => Error} Bad
 * @param {string | undefined} sha256
 * @param {RequestCache} cache mode of the browser's HTTP cache
 * @param {AbortSignal | undefined} signal
 * @param {Fetch} [fetch]
 * @param {(bytes: number) => void} [count] receives the size of each part, negative for bytes that are thrown away
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
      if (status > 499 || status === 429) throw `status ${status}`; // may be temporary
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
      if (cache === "reload") throw new Bad(`${url}: wrong SHA-256. The site is incomplete or was changed.`);
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

/** Returns the SHA-256 in hexadecimal. @type {(bytes: Uint8Array<ArrayBuffer>) => Promise<string>} */
const hash = async (bytes) =>
  new Uint8Array(await crypto.subtle.digest("SHA-256", bytes)).reduce(
    (hex, byte) => hex + (byte + 256).toString(16).slice(1),
    "",
  );

/**
 * Returns the contents of a JSON file. Throws BadBundle if it is missing, invalid, or has a different hash.
 * @param {string} url
 * @param {{signal?: AbortSignal, fetch?: Fetch}} [options]
 * @param {string} [sha256]
 * @returns {Promise<any>}
 */
export async function fetchJson(url, { signal, fetch } = {}, sha256) {
  // Without a hash, the browser revalidates its copy.
  const bytes = await download(url, BadBundle, sha256, sha256 ? "default" : "no-cache", signal, fetch);
  try {
    return await new Response(bytes).json();
  } catch {
    throw new BadBundle(`${url}: invalid JSON. A file of the site is missing.`);
  }
}

/**
 * Returns the result of `work`, or undefined if it fails or hangs: the cache is optional.
 * @template T
 * @param {() => Promise<T>} work
 * @returns {Promise<T | void>}
 */
const attempt = async (work) => {
  try {
    return await Promise.race([
      work(),
      /** @type {Promise<void>} */ (
        new Promise((resolve) => (AbortSignal.timeout(CACHE_TIMEOUT).onabort = () => resolve()))
      ),
    ]);
  } catch {}
};

/**
 * Delivers the bundle's data, the concatenation of its shards: calls the `take` of each reader, in order, with parts of
 * its bytes `start` to `end` and their offset from `start`. Shards come from the cache or the network, verified.
 * @param {string} base the URL that the names of shards are relative to
 * @param {Shard[]} shards
 * @param {Reader[]} readers
 * @param {{fetch?: Fetch, cache?: string | null, signal?: AbortSignal, onBytes?: (done: number, total: number) => void,
 *   pause?: () => unknown}} [options] `cache`: name prefix of the browser caches, one cache per site, or null for no
 *   cache; `pause` is awaited after each shard
 */
export async function deliver(base, shards, readers, { fetch, cache = "ptegpu", signal: outer, onBytes, pause } = {}) {
  const stop = new AbortController();
  const signal = AbortSignal.any([stop.signal, outer ?? stop.signal]);
  let done = 0;
  let total = 0;
  let end = 0;
  const count = (/** @type {number} */ bytes) => onBytes?.((done += bytes), total);
  const needed = shards
    .map(([name, length, sha256]) => ({ name, length, sha256, at: (end += length) - length }))
    .filter(({ at, length }) => readers.some(([from, to]) => from < at + length && to > at) && (total += length));
  const store = /** @type {Cache} */ (cache && (await attempt(() => caches.open(`${cache} ${base}`))));
  await attempt(async () => {
    // Shards of an earlier version of the site.
    for (const { url } of await store.keys())
      if (!shards.some(([, , sha256]) => url.endsWith(sha256))) await store.delete(url);
  });
  /** @param {any} shard @returns {Promise<Uint8Array<ArrayBuffer>>} */
  const get = async ({ name, length, sha256 }) => {
    const key = base + sha256;
    const cached = await attempt(
      async () => new Uint8Array(await /** @type {any} */ (await store.match(key)).arrayBuffer()), // throws on a miss
    );
    if (cached && (await hash(cached)) === sha256) {
      count(length);
      return cached;
    }
    const mode = store ? "no-store" : "default"; // avoids a second copy in the HTTP cache
    const bytes = await download(new URL(name, base).href, BadShard, sha256, mode, signal, fetch, count);
    await attempt(() => store.put(key, new Response(bytes)));
    return bytes;
  };
  try {
    for (const [k, shard] of /** @type {any} */ (needed).entries()) {
      const { at, length } = shard;
      for (const next of /** @type {any[]} */ (needed.slice(k, k + PARALLEL_DOWNLOADS)))
        (next.download ??= get(next)).catch(() => {}); // rethrown where it is awaited
      const bytes = await shard.download;
      shard.download = null;
      for (const [start, end, take] of readers) {
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
