// Files of a site over the network, proved before use: JSON, and the shards that hold the weights. No GPU in here.
import {BadBundle, BadShard} from "./errors.js";

/** @typedef {[name: string, length: number, sha256: string]} Shard */
/** @typedef {(url: string, init?: RequestInit) => Promise<Response>} Fetch */

const KEYS = "https://ptegpu.invalid/"; // a cached shard has this URL with its hash
const AT_ONCE = 3;
const FIRST_WAIT = 250; // ms, doubled from try to try: five tries
const LAST_WAIT = 2000;
const CACHE_WAIT = 10000; // ms that the cache may take for one thing

/**
 * The bytes of a file. A broken connection is resumed; what has not the length and hash that are expected is fetched
 * again, past the browser's cache; then it is an error of the class `Bad`.
 * @param {string} url
 * @param {new (message: string) => Error} Bad
 * @param {[length?: number, sha256?: string]} expected
 * @param {Fetch} [fetch]
 * @param {AbortSignal} [signal]
 * @param {(bytes: number) => void} [count] is told of bytes as they arrive, and, below 0, of those that were no good
 */
async function download(url, Bad, [length, sha256], fetch = globalThis.fetch, signal, count = () => {}) {
  // Without a hash, the browser asks whether its copy is current.
  for (const cache of /** @type {RequestCache[]} */ (sha256 ? ["default", "reload"] : ["no-cache"])) {
    let at = 0;
    /** @type {Uint8Array[]} */
    let parts = [];
    for (let wait = FIRST_WAIT; ; wait *= 2) {
      try {
        const {status, ok, body} = await fetch(url, {signal, cache, headers: at ? {Range: `bytes=${at}-`} : {}});
        if (status !== 206) {
          count(-at);
          at = 0;
          parts = [];
        }
        if (status === 416) break; // the file is shorter
        if (status > 499 || status === 429) throw `status ${status}`; // it may pass
        if (!ok) throw new Bad(`${url}: status ${status}. Is the folder there, with all its files?`);
        const reader = /** @type {ReadableStream<Uint8Array>} */ (body).getReader();
        for (let part; (part = (await reader.read()).value); ) {
          parts.push(part);
          at += part.length;
          count(part.length);
          if (at > (length ?? at)) await reader.cancel();
        }
        if (at < (length ?? 0)) throw `${at} of ${length} bytes came`;
        const bytes = new Uint8Array(at);
        let end = 0;
        for (const part of parts) bytes.set(part, (end += part.length) - part.length);
        if (!sha256 || (await equal(bytes, length, sha256))) return bytes;
        break;
      } catch (error) {
        if (error instanceof Bad) throw error;
        if (wait > LAST_WAIT) throw new Bad(`${url}: ${error}. Check the network and load again.`);
      }
      signal?.throwIfAborted();
      await new Promise((resolve) => {
        setTimeout(resolve, wait);
        signal?.addEventListener("abort", resolve);
      });
      signal?.throwIfAborted();
    }
    count(-at);
  }
  throw new Bad(`${url}: not the bytes that bundle.json names, twice. Upload the whole folder again.`);
}

/** @type {(bytes: Uint8Array<ArrayBuffer>, length?: number, sha256?: string) => Promise<boolean>} */
async function equal(bytes, length, sha256) {
  if (bytes.length !== length) return false;
  const digest = await crypto.subtle?.digest("SHA-256", bytes); // where there is none, `verified` says so
  const hex = digest && new Uint8Array(digest).reduce((hex, byte) => hex + (byte + 256).toString(16).slice(1), "");
  return !hex || hex === sha256;
}

/**
 * A JSON file. BadBundle, if it is not there, is no JSON, or has not the length and hash that are expected.
 * @param {string} url
 * @param {{signal?: AbortSignal, fetch?: Fetch, expected?: [length: number, sha256: string]}} [options]
 * @returns {Promise<any>}
 */
export async function fetchJson(url, {signal, fetch, expected} = {}) {
  const bytes = await download(url, BadBundle, expected ?? [], fetch, signal);
  try {
    return JSON.parse(new TextDecoder().decode(bytes));
  } catch {
    throw new BadBundle(`${url}: no JSON. Is this the folder of a site?`);
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

/** The data of a bundle: its shards one behind the other, from the cache or the network. */
export class Shards {
  /** Bytes to load; once `pieces` has begun, of the shards that it needs. */
  total = 0;
  /** Whether hashes can be checked here. If not, only lengths are. */
  verified = !!crypto.subtle;
  #base;
  #shards;
  #options;

  /**
   * @param {string} base the URL that the names of shards are relative to
   * @param {Shard[]} shards
   * @param {{fetch?: Fetch, cache?: string | null, signal?: AbortSignal, onBytes?: (done: number, total: number) => void}}
   *   [options] `cache` is the name of a cache of the browser; null: none
   */
  constructor(base, shards, options = {}) {
    this.#base = base;
    this.#shards = shards;
    this.#options = options;
    for (const [, length] of shards) this.total += length;
  }

  /**
   * The bytes of the data within `wanted`, which is sorted, in order. What is given out is proved.
   * @param {[start: number, end: number][]} wanted
   * @returns {AsyncGenerator<{at: number, bytes: Uint8Array<ArrayBuffer>}>}
   */
  async *pieces(wanted = [[0, Infinity]]) {
    const {fetch, signal: outer, onBytes} = this.#options;
    const stop = new AbortController();
    const signal = outer ? AbortSignal.any([outer, stop.signal]) : stop.signal;
    signal.throwIfAborted();
    let end = 0;
    const needed = this.#shards
      .map(([name, length, sha256]) => ({name, length, sha256, at: (end += length) - length}))
      .filter(({at, length}) => wanted.some(([from, to]) => from < at + length && to > at));
    this.total = needed.reduce((sum, {length}) => sum + length, 0);
    let done = 0;
    const count = (/** @type {number} */ bytes) => onBytes?.((done += bytes), this.total);
    try {
      const store = await this.#open();
      const get = async ({name, length, sha256} = needed[0]) => {
        const key = KEYS + sha256;
        const hit = store && (await tried(async () => (await store.match(key))?.arrayBuffer()));
        if (hit) {
          const bytes = new Uint8Array(hit);
          if (await equal(bytes, length, sha256)) {
            count(length);
            return bytes;
          }
          await tried(() => store.delete(key));
        }
        const url = new URL(name, this.#base).href;
        const bytes = await download(url, BadShard, [length, sha256], fetch, signal, count);
        if (store) await tried(() => store.put(key, new Response(bytes)));
        return bytes;
      };
      const coming = [];
      let next = 0;
      for (const {at, length} of needed) {
        for (; next < needed.length && coming.length < AT_ONCE; next++) {
          const shard = get(needed[next]);
          shard.catch(() => {}); // thrown below, if the loop comes that far
          coming.push(shard);
        }
        const bytes = await /** @type {ReturnType<typeof get>} */ (coming.shift());
        for (const [start, end] of wanted) {
          const from = Math.max(start, at);
          const to = Math.min(end, at + length);
          signal.throwIfAborted();
          if (from < to) yield {at: from, bytes: bytes.subarray(from - at, to - at)};
        }
      }
    } finally {
      stop.abort();
    }
  }

  /** The cache, without the shards that no site needs any more. Each site has an entry with the hashes of its own. */
  async #open() {
    const {cache = "ptegpu"} = this.#options;
    const store = cache && (await tried(async () => caches.open(cache)));
    if (!store) return;
    await tried(async () => {
      const site = `${KEYS}?${encodeURIComponent(this.#base)}`;
      const used = this.#shards.map(([, , sha256]) => KEYS + sha256);
      const index = new Response(JSON.stringify(used));
      const keys = (await store.keys()).map(({url}) => url);
      for (const url of keys) {
        if (url[KEYS.length] === "?" && url !== site) used.push(url, ...(await (await store.match(url))?.json()));
      }
      for (const url of keys) if (!used.includes(url)) await store.delete(url);
      await store.put(site, index);
    });
    return store;
  }
}
