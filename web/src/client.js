// A model in a worker, so that the page stays responsive while the model loads and runs. worker.js is the other end.
import { BadBundle, ExecutionError } from "./errors.js";
import { packed, revive } from "./packed.js";

/** @typedef {import("./index.js").Progress} Progress */
/** @typedef {import("./index.js").Options} LoadOptions */
/** @typedef {import("./llm.js").Generation} Generation */
/** @typedef {{dtype: string, shape: number[], data: any}} Values a tensor from the worker */
/**
 * @typedef {object} Info
 * @property {string[]} methods
 * @property {Record<string, ReturnType<import("./index.js").Program["signature"]>>} signatures by method
 * @property {any} variant
 * @property {import("./index.js").Program["adapter"]} adapter
 * @property {import("./index.js").Program["bytes"]} bytes
 * @property {import("./llm.js").Language} [language] only for the site of a language model
 */
/**
 * @typedef {Pick<LoadOptions, "powerPreference" | "variant" | "methods" | "memory" | "cache" | "signal" | "onProgress"> & {
 *   worker?: Worker | URL | string}} Options the options of `load` that can be sent; `worker`: the worker, or its URL
 */

/**
 * Loads a site in a worker.
 * @param {string | URL} url of the folder
 * @param {Options} [options]
 * @returns {Promise<Remote>}
 */
export async function connect(url, { worker, onProgress, signal, ...options } = {}) {
  signal?.throwIfAborted();
  const connection = new Connection(start(worker));
  try {
    const base = globalThis.document?.baseURI ?? globalThis.location?.href;
    const { site, info } = await connection.call("load", [new URL(url, base).href, options], {
      signal,
      onNews: onProgress,
    }).answer;
    return new Remote(connection, site, info);
  } catch (error) {
    connection.end();
    throw error;
  }
}

/** @type {(worker: Options["worker"]) => Worker} */
function start(worker) {
  if (worker && !(worker instanceof URL) && typeof worker !== "string") return worker;
  try {
    // Bundlers recognize a worker by exactly this `new Worker(new URL(…))`.
    if (worker) return new Worker(worker, { type: "module" });
    return new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
  } catch (error) {
    const { message } = /** @type {Error} */ (error);
    throw new BadBundle(`cannot start the worker (${message}): serve worker.js from the page's own origin`);
  }
}

/** The connection to a worker: calls and their answers. */
class Connection {
  /** @type {Map<number, {resolve: (value: any) => void, reject: (error: any) => void, onNews?: (news: any) => void}>} */
  #open = new Map();
  #lastId = 0;
  #responded = false;
  /** @type {Error | null} */
  #ended = null;
  #worker;

  /** @param {Worker} worker */
  constructor(worker) {
    this.#worker = worker;
    worker.addEventListener("message", ({ data: { id, value, error, news } }) => {
      this.#responded = true;
      const call = this.#open.get(id);
      if (news) return call?.onNews?.(news);
      this.#open.delete(id);
      if (error) call?.reject(revive(error));
      else call?.resolve(value);
    });
    worker.addEventListener("error", (event) => {
      event.preventDefault?.();
      const why = event.message ? ` (${event.message})` : "";
      this.end(
        this.#responded
          ? new ExecutionError(`the worker failed${why}: load again`)
          : new BadBundle(`the worker did not start${why}: check that worker.js and ptegpu.js are in the same folder`),
      );
    });
  }

  /**
   * Sends a call to the worker.
   * @param {string} name
   * @param {any[]} args
   * @param {{signal?: AbortSignal, onNews?: (news: any) => void, moved?: Transferable[]}} [options]
   * @returns {{answer: Promise<any>, note(name: string): void}} `note` sends a message to the running call
   */
  call(name, args, { signal, onNews, moved = [] } = {}) {
    const id = ++this.#lastId;
    const note = (/** @type {string} */ name) => this.#open.has(id) && this.#worker.postMessage({ id, name });
    const answer = new Promise((resolve, reject) => {
      signal?.throwIfAborted();
      if (this.#ended) throw this.#ended;
      this.#worker.postMessage({ id, name, args }, moved);
      const abort = () => {
        note("abort");
        this.#open.delete(id);
        reject(signal?.reason);
      };
      signal?.addEventListener("abort", abort);
      const settle = (/** @type {(value: any) => void} */ callback) => (/** @type {any} */ value) => {
        signal?.removeEventListener("abort", abort);
        callback(value);
      };
      this.#open.set(id, { resolve: settle(resolve), reject: settle(reject), onNews });
    });
    return { answer, note };
  }

  /** Terminates the worker and rejects all open calls. @param {Error} error */
  end(error = new ExecutionError("the model was disposed")) {
    if (this.#ended) return;
    this.#ended = error;
    this.#worker.terminate();
    for (const { reject } of this.#open.values()) reject(error);
    this.#open.clear();
  }
}

/** A model in a worker; create it with `connect`. */
export class Remote {
  #connection;
  #disposed = false;

  /** @param {Connection} connection @param {any} site @param {Info} info */
  constructor(connection, site, info) {
    this.#connection = connection;
    /** The contents of site.json. */
    this.site = site;
    this.info = info;
    /**
     * Resolves with the error when the GPU is lost or the worker fails; never on `dispose`. Running and later calls are
     * rejected with the same error.
     * @type {Promise<Error>}
     */
    this.lost = new Promise((resolve) =>
      connection.call("lost", []).answer.then(
        (error) => {
          const reason = revive(error);
          connection.end(reason);
          resolve(reason);
        },
        (error) => this.#disposed || resolve(error),
      ),
    );
  }

  /**
   * Runs a method. Inputs are tensors, typed arrays, (nested) lists or numbers.
   * @param {any[]} inputs
   * @param {{method?: string, signal?: AbortSignal}} [options]
   * @returns {Promise<(Values | number | any)[]>}
   */
  run(inputs, { method, signal } = {}) {
    /** @type {Transferable[]} */
    const moved = [];
    return this.#connection.call("run", [packed(inputs, moved), { method }], { signal, moved }).answer;
  }

  /**
   * Compiles all kernels now, instead of in the first calls.
   * @param {{method?: string, signal?: AbortSignal, onProgress?: (progress: Progress) => void}} [options]
   * @returns {Promise<void>}
   */
  prepare({ method, signal, onProgress } = {}) {
    return this.#connection.call("prepare", [{ method }], { signal, onNews: onProgress }).answer;
  }

  /** Restores the initial states, and empties a language model's cache. @param {string} [method] @returns {Promise<void>} */
  reset(method) {
    return this.#connection.call("reset", [method]).answer;
  }

  /** Compares with the site's reference results. @returns {ReturnType<import("./index.js").Program["selfcheck"]>} */
  selfcheck() {
    return this.#connection.call("selfcheck", []).answer;
  }

  /**
   * Generates the continuation of a prompt, in pieces. Starts with the first iteration; leaving the loop cancels it.
   * @param {import("./llm.js").Prompt} prompt
   * @param {import("./llm.js").Options} [options]
   * @returns {RemoteStream}
   */
  stream(prompt, { signal, ...options } = {}) {
    const start = (/** @type {(news: any) => void} */ onNews) =>
      this.#connection.call("stream", [prompt, options], { signal, onNews });
    return new RemoteStream(start, signal, options.continues);
  }

  /** Terminates the worker, which frees its GPU memory. */
  dispose() {
    this.#disposed = true;
    this.#connection.end();
  }
}

/** A stream of text from a worker; `generation` holds the result so far. */
export class RemoteStream {
  /** @type {Generation} */
  generation = {
    promptTokens: [],
    seed: 0,
    text: "",
    tokens: [],
    logprobs: [],
    finishReason: null,
    timings: { reusedTokens: 0, prefillTokens: 0, prefillMs: 0, decodeTokens: 0, decodeMs: 0 },
  };
  #pieces;
  #cancelled = false;
  /** @type {((name: string) => void) | undefined} */
  #note;

  /**
   * @param {(onNews: (news: any) => void) => ReturnType<Connection["call"]>} start
   * @param {AbortSignal} [signal]
   * @param {Generation} [continues]
   */
  constructor(start, signal, continues) {
    if (continues) {
      const { text, tokens, logprobs } = continues;
      Object.assign(this.generation, { text, tokens: [...tokens], logprobs: [...logprobs] });
    }
    this.#pieces = this.#run(start, signal);
  }

  [Symbol.asyncIterator]() {
    return this.#pieces;
  }

  /** Stops before the next token. The loop over the stream then ends normally. */
  cancel() {
    this.#cancelled = true;
    this.#note?.("cancel");
  }

  /**
   * @param {(onNews: (news: any) => void) => ReturnType<Connection["call"]>} start
   * @param {AbortSignal} [signal]
   * @returns {AsyncGenerator<string, void>}
   */
  async *#run(start, signal) {
    const { generation } = this;
    let pending = ""; // text received but not yielded yet
    let ended = this.#cancelled;
    /** @type {any} */
    let failure;
    let wake = () => {};
    /** @param {{text: string, generation: Partial<Generation>}} news */
    const receive = ({ text, generation: { tokens = [], logprobs = [], ...rest } }) => {
      pending += text;
      generation.text += text;
      generation.tokens.push(...tokens);
      generation.logprobs.push(...logprobs);
      Object.assign(generation, rest);
      wake();
    };
    const end = (/** @type {any} */ error) => {
      failure = error;
      ended = true;
      wake();
    };
    try {
      if (ended) return;
      const { answer, note } = start(receive);
      const ending = answer.then(receive).then(end, end);
      this.#note = note;
      try {
        while (pending || !ended) {
          signal?.throwIfAborted();
          const piece = pending;
          pending = "";
          if (piece) {
            note("more");
            yield piece;
          } else await new Promise((resolve) => (wake = () => resolve(undefined)));
        }
        if (failure) throw failure;
      } finally {
        if (!ended) {
          note("cancel");
          await ending;
        }
      }
    } finally {
      generation.finishReason ??= "cancelled"; // the loop was left, or failed
    }
  }
}
