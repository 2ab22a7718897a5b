// A model in a worker: the page stays smooth while it loads and runs. worker.js is the other end.
import { BadBundle, ExecutionError } from "./errors.js";
import { packed, revive } from "./packed.js";

/** @typedef {import("./index.js").Progress} Progress */
/** @typedef {import("./index.js").Options} LoadOptions */
/** @typedef {import("./llm.js").Generation} Generation */
/** @typedef {{dtype: string, shape: number[], data: any}} Values a tensor that came from the worker */
/**
 * @typedef {object} Info
 * @property {string[]} methods
 * @property {Record<string, ReturnType<import("./index.js").Program["signature"]>>} signatures by method
 * @property {any} variant
 * @property {import("./index.js").Program["adapter"]} adapter
 * @property {import("./index.js").Program["bytes"]} bytes
 * @property {import("./llm.js").Language} [language] only where the site is a language model
 */
/**
 * @typedef {Pick<LoadOptions, "powerPreference" | "variant" | "methods" | "memory" | "cache" | "signal" | "onProgress"> & {
 *   worker?: Worker | URL | string}} Options those of `load` that can be sent; `worker` is where worker.js is
 */

/**
 * Loads a site in a worker.
 * @param {string | URL} url of the folder
 * @param {Options} [options]
 * @returns {Promise<Remote>}
 */
export async function connect(url, { worker, onProgress, signal, ...options } = {}) {
  signal?.throwIfAborted();
  const line = new Line(start(worker));
  try {
    const base = globalThis.document?.baseURI ?? globalThis.location?.href;
    const { site, info } = await line.call("load", [new URL(url, base).href, options], {
      signal,
      onNews: onProgress,
    }).answer;
    return new Remote(line, site, info);
  } catch (error) {
    line.end();
    throw error;
  }
}

/** @type {(worker: Options["worker"]) => Worker} */
function start(worker) {
  if (worker && !(worker instanceof URL) && typeof worker !== "string") return worker;
  try {
    // Bundlers know the second one by how it is written.
    if (worker) return new Worker(worker, { type: "module" });
    return new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
  } catch (error) {
    const { message } = /** @type {Error} */ (error);
    throw new BadBundle(`the worker cannot start (${message}): serve worker.js from the page's own origin`);
  }
}

/** Calls to a worker, and their answers. */
class Line {
  /** @type {Map<number, {resolve: (value: any) => void, reject: (error: any) => void, onNews?: (news: any) => void}>} */
  #open = new Map();
  #last = 0;
  #heard = false;
  /** @type {Error | null} */
  #over = null;
  #worker;

  /** @param {Worker} worker */
  constructor(worker) {
    this.#worker = worker;
    worker.addEventListener("message", ({ data: { id, value, error, news } }) => {
      this.#heard = true;
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
        this.#heard
          ? new ExecutionError(`the worker failed${why}: load again`)
          : new BadBundle(`the worker did not start${why}: are worker.js and ptegpu.js there, next to each other?`),
      );
    });
  }

  /**
   * @param {string} name
   * @param {any[]} args
   * @param {{signal?: AbortSignal, onNews?: (news: any) => void, moved?: Transferable[]}} [options]
   * @returns {{answer: Promise<any>, note(name: string): void}} `note` tells the call something while it runs
   */
  call(name, args, { signal, onNews, moved = [] } = {}) {
    const id = ++this.#last;
    const note = (/** @type {string} */ name) => this.#open.has(id) && this.#worker.postMessage({ id, name });
    const answer = new Promise((resolve, reject) => {
      signal?.throwIfAborted();
      if (this.#over) throw this.#over;
      this.#worker.postMessage({ id, name, args }, moved);
      const abort = () => {
        note("abort");
        this.#open.delete(id);
        reject(signal?.reason);
      };
      signal?.addEventListener("abort", abort);
      const settle = (/** @type {(value: any) => void} */ settled) => (/** @type {any} */ value) => {
        signal?.removeEventListener("abort", abort);
        settled(value);
      };
      this.#open.set(id, { resolve: settle(resolve), reject: settle(reject), onNews });
    });
    return { answer, note };
  }

  /** Ends the worker, and what still waits for it. @param {Error} error */
  end(error = new ExecutionError("the model was disposed")) {
    if (this.#over) return;
    this.#over = error;
    this.#worker.terminate();
    for (const { reject } of this.#open.values()) reject(error);
    this.#open.clear();
  }
}

/** A model in a worker. Make it with `connect`. */
export class Remote {
  #line;
  #disposed = false;

  /** @param {Line} line @param {any} site @param {Info} info */
  constructor(line, site, info) {
    this.#line = line;
    /** What site.json says. */
    this.site = site;
    this.info = info;
    /**
     * Resolves when the GPU is lost or the worker failed, with why; not when it is disposed. What still ran, and all
     * that comes later, is rejected with the same.
     * @type {Promise<Error>}
     */
    this.lost = new Promise((resolve) =>
      line.call("lost", []).answer.then(
        (error) => {
          const why = revive(error);
          line.end(why);
          resolve(why);
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
    return this.#line.call("run", [packed(inputs, moved), { method }], { signal, moved }).answer;
  }

  /**
   * Compiles all kernels, so that no call has to.
   * @param {{method?: string, signal?: AbortSignal, onProgress?: (progress: Progress) => void}} [options]
   * @returns {Promise<void>}
   */
  prepare({ method, signal, onProgress } = {}) {
    return this.#line.call("prepare", [{ method }], { signal, onNews: onProgress }).answer;
  }

  /** States back to their first values, the cache of a language model emptied. @param {string} [method] @returns {Promise<void>} */
  reset(method) {
    return this.#line.call("reset", [method]).answer;
  }

  /** Runs what the site brought, and compares. @returns {ReturnType<import("./index.js").Program["selfcheck"]>} */
  selfcheck() {
    return this.#line.call("selfcheck", []).answer;
  }

  /**
   * The continuation of a prompt, piece by piece. It begins when it is iterated; leaving the loop cancels it.
   * @param {import("./llm.js").Prompt} prompt
   * @param {import("./llm.js").Options} [options]
   * @returns {RemoteStream}
   */
  stream(prompt, { signal, ...options } = {}) {
    const begin = (/** @type {(news: any) => void} */ onNews) =>
      this.#line.call("stream", [prompt, options], { signal, onNews });
    return new RemoteStream(begin, signal, options.continues);
  }

  /** Ends the worker, which gives the GPU's memory back. */
  dispose() {
    this.#disposed = true;
    this.#line.end();
  }
}

/** Pieces of text as they come; `generation` is what came so far. */
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
   * @param {(onNews: (news: any) => void) => ReturnType<Line["call"]>} begin
   * @param {AbortSignal} [signal]
   * @param {Generation} [continues]
   */
  constructor(begin, signal, continues) {
    if (continues) {
      const { text, tokens, logprobs } = continues;
      Object.assign(this.generation, { text, tokens: [...tokens], logprobs: [...logprobs] });
    }
    this.#pieces = this.#run(begin, signal);
  }

  [Symbol.asyncIterator]() {
    return this.#pieces;
  }

  /** Stop before the next token. The loop ends as if the text did. */
  cancel() {
    this.#cancelled = true;
    this.#note?.("cancel");
  }

  /**
   * @param {(onNews: (news: any) => void) => ReturnType<Line["call"]>} begin
   * @param {AbortSignal} [signal]
   * @returns {AsyncGenerator<string, void>}
   */
  async *#run(begin, signal) {
    const made = this.generation;
    let text = ""; // that came and was not given out
    let over = this.#cancelled;
    /** @type {any} */
    let failure;
    let wake = () => {};
    /** @param {{text: string, generation: Partial<Generation>}} news */
    const take = ({ text: more, generation: { tokens = [], logprobs = [], ...rest } }) => {
      text += more;
      made.text += more;
      made.tokens.push(...tokens);
      made.logprobs.push(...logprobs);
      Object.assign(made, rest);
      wake();
    };
    const end = (/** @type {any} */ error) => {
      failure = error;
      over = true;
      wake();
    };
    try {
      if (over) return;
      const { answer, note } = begin(take);
      const ended = answer.then(take).then(end, end);
      this.#note = note;
      try {
        while (text || !over) {
          signal?.throwIfAborted();
          const piece = text;
          text = "";
          if (piece) {
            note("more");
            yield piece;
          } else await new Promise((resolve) => (wake = () => resolve(undefined)));
        }
        if (failure) throw failure;
      } finally {
        if (!over) {
          note("cancel");
          await ended;
        }
      }
    } finally {
      made.finishReason ??= "cancelled"; // left, or failed
    }
  }
}
