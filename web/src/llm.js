// A language model: prompts in, text out. The KV cache and sampling stay on the GPU.
// The host records which tokens are in the cache, so a prompt with a cached prefix, such as the next turn of a chat,
// only runs the rest. The result is the same as with an empty cache.
import { BadBundle, ExecutionError, InvalidInput, Tensor, fetchJson, folderOf, load } from "./index.js";
import { Sampling } from "./sampling.js";
import { Detokenizer, StopStrings, Tokenizer } from "./text.js";

/** @typedef {import("./template.js").Message} Message */
/** @typedef {string | number[] | Message[]} Prompt a text, tokens, or the messages of a chat */
/** @typedef {"stop" | "length" | "context" | "cancelled"} FinishReason */

/**
 * Options of generation.
 * @typedef {import("./sampling.js").Settings & {
 *   maxTokens?: number, stop?: string | string[], stopTokens?: number[], signal?: AbortSignal, continues?: Generation,
 * }} Options `stop`: strings that end the text and are removed from it; `stopTokens` replace the model's own;
 *   `continues`: the result of the same prompt up to a loss of the GPU, to continue with its tokens and seed
 */

/**
 * @typedef {{reusedTokens: number, prefillTokens: number, prefillMs: number, decodeTokens: number, decodeMs: number}}
 *   Timings `reusedTokens` of the prompt were in the cache, `prefillTokens` were computed
 */

/**
 * The result of a prompt. Stop tokens are in neither `text` nor `tokens`; a stop string is in `tokens` only. `logprobs`
 * are natural logarithms of the tokens' probabilities in the model's own distribution. The prefill computes the first
 * token, so `decodeTokens` is smaller than the number of tokens by 1.
 * @typedef {object} Generation
 * @property {number[]} promptTokens
 * @property {number} seed
 * @property {string} text
 * @property {number[]} tokens
 * @property {number[]} logprobs
 * @property {FinishReason | null} finishReason null: still running
 * @property {Timings} timings
 */

/**
 * The entry of site.json about the language model.
 * @typedef {object} Language
 * @property {string} method
 * @property {number} vocabulary
 * @property {number} context capacity of the cache, in tokens
 * @property {number} chunk maximum number of tokens in one call
 * @property {number[]} eos
 * @property {"int64" | "int32"} tokens dtype of the tokens
 * @property {"int64" | "int32"} position
 * @property {string | null} [tokenizer] a file name, like the two below
 * @property {string | null} [config]
 * @property {string | null} [template]
 */

/** A started call. @typedef {{result(): Promise<any[]>, resident(): any[], discard(): void}} Running */

const CHUNK = 512; // tokens of a prompt in one call, which cannot be cancelled
const ROUND_TRIP = 10; // ms from the GPU to the host
const MIN_AHEAD = 2, MAX_AHEAD = 8; // steps started ahead of the awaited one

/**
 * Loads the site of a language model.
 * @param {string | URL} url of the folder
 * @param {import("./index.js").Options & {tokenizer?: Tokenizer | null}} [options] the options of `load`, and a
 *   `tokenizer` to use instead of the site's own
 */
export async function loadLanguageModel(url, { tokenizer, ...options } = {}) {
  const base = folderOf(url);
  const site = options.site ?? (await fetchJson(base + "site.json", options));
  const { language } = site;
  if (!language) throw new InvalidInput(`${base} is not a language model: its site.json has no entry "language"`);
  const [program, opened] = await Promise.allSettled([
    load(base, { methods: [language.method], ...options, site }),
    tokenizer === undefined ? openTokenizer(base, language, options) : tokenizer,
  ]);
  if (program.status === "rejected") throw program.reason;
  if (opened.status === "rejected") {
    program.value.dispose();
    throw opened.reason;
  }
  const model = new LanguageModel(program.value, language, opened.value);
  model.generate([0], { maxTokens: 1, temperature: 1 }).catch(() => {}); // compiles the kernels
  return model;
}

/** @param {string} base @param {Language} language @param {import("./index.js").Options} options */
async function openTokenizer(base, { tokenizer, config, template }, { fetch: get = fetch, signal }) {
  if (!tokenizer) return null;
  const json = (/** @type {string} */ name) => fetchJson(base + name, { fetch: get, signal });
  const text = async () => {
    if (!template) return null;
    const response = await get(base + template, { signal });
    if (!response.ok) throw new BadBundle(`${base}${template}: status ${response.status}. A file of the site is missing.`);
    return response.text();
  };
  return Tokenizer.open(...(await Promise.all([json(tokenizer), config ? json(config) : {}, text()])));
}

/** A language model on a GPU. */
export class LanguageModel {
  /** @type {number[]} the tokens whose keys and values are in the cache */
  #cached = [];
  /** @type {Stream | null} the stream that wrote them last */
  #owner = null;
  /** @type {Running[]} the owner's steps started ahead */
  #ahead = [];
  /** @type {Promise<unknown>} the last user of the cache */
  #busy = Promise.resolve();
  #method;
  #runs = -1; // of the method, when `#cached` was last right

  /**
   * @param {import("./index.js").Program} program
   * @param {Language} language
   * @param {Tokenizer | null} tokenizer
   */
  constructor(program, language, tokenizer = null) {
    this.program = program;
    this.language = language;
    this.tokenizer = tokenizer;
    this.#method = program.method(language.method);
    /** The number of prompt tokens in one call. */
    this.chunk = Math.min(CHUNK, language.chunk);
    /** The tokens that end a text: those of the program, and the tokenizer's end of sequence. */
    this.stopTokens = [...language.eos, ...(typeof tokenizer?.eos === "number" ? [tokenizer.eos] : [])];
  }

  /** The tokens in the cache. */
  get cached() {
    return [...this.#cached];
  }

  /**
   * Returns the tokens of a prompt. Throws InvalidInput if the prompt is empty, exceeds the context, or has a token
   * outside the vocabulary.
   * @param {Prompt} prompt
   * @returns {number[]}
   */
  encode(prompt) {
    const { vocabulary, context } = this.language;
    const tokens = this.#tokens(prompt);
    if (!tokens.length) throw new InvalidInput("the prompt is empty: give at least one token");
    const invalid = tokens.find((t) => !(Number.isInteger(t) && t >= 0 && t < vocabulary));
    if (invalid !== undefined)
      throw new InvalidInput(`token ${invalid} is not in the model's vocabulary of ${vocabulary}`);
    if (tokens.length > context)
      throw new InvalidInput(`the prompt has ${tokens.length} tokens, but the model's context holds ${context}`);
    return tokens;
  }

  /** @param {Prompt} prompt @returns {number[]} */
  #tokens(prompt) {
    if (typeof prompt === "string") return this.#requireTokenizer().encode(prompt);
    if (typeof prompt[0] === "object") return this.#requireTokenizer().encodeChat(/** @type {Message[]} */ (prompt));
    return [.../** @type {number[]} */ (prompt)];
  }

  #requireTokenizer() {
    if (!this.tokenizer) throw new InvalidInput("the model has no tokenizer: pass tokens, or load it with a tokenizer");
    return this.tokenizer;
  }

  /**
   * Returns the text of tokens.
   * @param {number[]} tokens
   */
  decode(tokens) {
    return this.#requireTokenizer().decode(tokens);
  }

  /**
   * Generates the whole continuation of a prompt.
   * @param {Prompt} prompt
   * @param {Options} [options]
   */
  async generate(prompt, options) {
    const stream = this.stream(prompt, options);
    for await (const _ of stream);
    return stream.generation;
  }

  /**
   * Generates the continuation of a prompt, in pieces.
   * @param {Prompt} prompt
   * @param {Options} [options]
   */
  stream(prompt, { maxTokens = 256, stop = [], stopTokens = this.stopTokens, signal, continues, ...settings } = {}) {
    if (!(maxTokens >= 0)) throw new InvalidInput(`maxTokens must be at least 0, not ${maxTokens}`);
    const tokens = this.encode(prompt), sampling = new Sampling({ ...settings, seed: continues?.seed ?? settings.seed });
    const detokenizer = this.tokenizer && new Detokenizer(this.tokenizer, tokens);
    const stops = new StopStrings([stop].flat());
    const stream = new Stream(tokens, sampling.seed, (stream) =>
      this.#pieces(stream, sampling, maxTokens, new Set(stopTokens), detokenizer, stops, signal), continues,
    );
    if (detokenizer) for (const t of stream.generation.tokens) stream.generation.text += stops.push(detokenizer.push(t));
    return stream;
  }

  /** Restores the state after loading, with an empty cache. */
  reset() {
    return this.#inTurn(async () => {
      this.#forget();
      await this.program.reset(this.language.method);
    });
  }

  /** Frees the GPU's memory. */
  dispose() {
    this.program.dispose();
  }

  /**
   * Yields the pieces of a stream and updates its `generation`.
   * @param {Stream} stream
   * @param {Sampling} sampling
   * @param {number} maxTokens
   * @param {Set<number>} ends
   * @param {Detokenizer | null} detokenizer
   * @param {StopStrings} stops
   * @param {AbortSignal | undefined} signal
   */
  async *#pieces(stream, sampling, maxTokens, ends, detokenizer, stops, signal) {
    const { generation } = stream, tokens = [...generation.promptTokens, ...generation.tokens];
    // A bit for each token of the vocabulary: whether it occurs in the context.
    const penalised = new Int32Array(sampling.penalises ? Math.ceil(this.language.vocabulary / 32) : 1);
    const penalise = (/** @type {number} */ t) => sampling.penalises && (penalised[t >> 5] |= 1 << (t & 31));
    tokens.forEach(penalise);
    try {
      while (!generation.finishReason) {
        signal?.throwIfAborted();
        if (generation.tokens.length >= maxTokens) generation.finishReason = "length";
        else if (tokens.length > this.language.context) generation.finishReason = "context";
        if (generation.finishReason) break;
        const next = await this.#inTurn(() => this.#next(stream, tokens, sampling, penalised, maxTokens, signal));
        signal?.throwIfAborted();
        if (!next || stream.cancelled) generation.finishReason = "cancelled";
        else if (ends.has(next[0])) generation.finishReason = "stop";
        if (generation.finishReason || !next) break;
        const [token, logprob] = next;
        tokens.push(token);
        penalise(token);
        generation.tokens.push(token);
        generation.logprobs.push(logprob);
        const text = detokenizer ? stops.push(detokenizer.push(token)) : "";
        if (stops.stopped) generation.finishReason = "stop";
        generation.text += text;
        if (text) yield text;
      }
      const rest = detokenizer ? stops.push(detokenizer.finish()) + stops.finish() : "";
      generation.text += rest;
      if (rest) yield rest;
    } finally {
      generation.finishReason ??= "cancelled"; // the loop was left, or failed
      if (this.#owner === stream) this.#forgetAhead();
    }
  }

  /**
   * Returns the token after `tokens`, whose prefix may be cached, and its log-probability; undefined if cancelled.
   * Starts later steps before it awaits this one; they read the token on the GPU.
   * @param {Stream} stream
   * @param {number[]} tokens
   * @param {Sampling} sampling
   * @param {Int32Array} penalised
   * @param {number} maxTokens
   * @param {AbortSignal | undefined} signal
   * @returns {Promise<[number, number] | undefined>}
   */
  async #next(stream, tokens, sampling, penalised, maxTokens, signal) {
    const { timings, tokens: newTokens } = stream.generation, step = newTokens.length, startTime = performance.now();
    const start = (/** @type {any} */ operand, /** @type {number} */ position, /** @type {number} */ k) =>
      this.#start(operand, position, sampling.words(k), penalised, sampling.flags);
    if (this.#runs !== this.#method.runs) this.#forget(); // the method ran outside of this class
    let reused = this.#cached.length, run = this.#owner === stream ? this.#ahead.shift() : undefined;
    if (run) this.#cached.push(tokens[tokens.length - 1]);
    else {
      this.#forgetAhead();
      if (this.#owner !== stream) this.#truncate(tokens.slice(0, -1));
      this.#owner = stream;
      reused = this.#cached.length;
      if (!(await this.#prefill(tokens, () => stream.cancelled || signal?.aborted))) return undefined;
      const at = this.#cached.length, rest = tokens.slice(at);
      run = await start(ints(this.language.tokens, [1, rest.length], rest), at, step);
      this.#cached.push(...rest);
    }
    if (this.#method.inOnePlan && !sampling.penalises) {
      const left = Math.min(this.language.context - tokens.length, maxTokens - step - 1);
      const needed = (ROUND_TRIP * timings.decodeTokens) / timings.decodeMs + 1 || MIN_AHEAD;
      // `step + 1`: the number ahead grows slowly, so that a short text wastes little. Tokens computed past the end of a
      // text are discarded: the next call overwrites the cache from its own position on.
      const ahead = Math.min(Math.max(needed, MIN_AHEAD), MAX_AHEAD, step + 1, left);
      for (let k = this.#ahead.length; k < ahead; k++) {
        const nextToken = (this.#ahead[k - 1] ?? run).resident()[0];
        this.#ahead.push(await start(nextToken, tokens.length + k, step + 1 + k));
      }
    }
    const [token, logprob] = await run.result();
    const elapsed = performance.now() - startTime;
    const decoded = step - stream.begun;
    if (decoded) Object.assign(timings, { decodeTokens: decoded, decodeMs: timings.decodeMs + elapsed });
    else Object.assign(timings, { reusedTokens: reused, prefillTokens: tokens.length - reused, prefillMs: elapsed });
    const logprobValue = Number(logprob.data[0]);
    if (!Number.isFinite(logprobValue))
      throw new ExecutionError(`the model's logits at position ${tokens.length - 1} are not finite numbers`);
    return [Number(token.data[0]), logprobValue];
  }

  /** Drops cached tokens after the common prefix with `tokens`. @param {number[]} tokens */
  #truncate(tokens) {
    const firstDifferent = this.#cached.findIndex((token, k) => token !== tokens[k]);
    if (firstDifferent >= 0) this.#cached.length = firstDifferent;
  }

  /**
   * Runs the uncached `tokens` in chunks until at most one chunk is left; returns false if cancelled. While one chunk
   * runs, the next one is started.
   * @param {number[]} tokens
   * @param {() => boolean | undefined} cancelled
   */
  async #prefill(tokens, cancelled) {
    /** @type {Running | undefined} */
    let previous;
    while (!cancelled() && tokens.length - this.#cached.length > this.chunk) {
      const at = this.#cached.length, chunk = tokens.slice(at, at + this.chunk);
      const run = await this.#start(ints(this.language.tokens, [1, chunk.length], chunk), at);
      this.#cached.push(...chunk);
      await previous?.result();
      previous = run;
    }
    previous?.discard();
    return !cancelled();
  }

  /**
   * Starts a call of the model; `tokens` may be on the GPU.
   * @param {any} tokens
   * @param {number} position
   * @param {Int32Array} [words]
   * @param {Int32Array} [penalised]
   * @param {number} [flags]
   * @returns {Promise<Running>}
   */
  #start(tokens, position, words = new Int32Array(8), penalised = new Int32Array(1), flags = 0) {
    const at = ints(this.language.position, [1], [position]);
    const inputs = [tokens, at, ints("int32", [8], words), ints("int32", [penalised.length], penalised), flags,
      ints("int32", [1, 0], [])];
    const run = this.#method.inOnePlan ? this.#method.start(inputs) : startedRun(this.#method.run(inputs));
    this.#runs = this.#method.runs;
    return run;
  }

  #forgetAhead() {
    while (this.#ahead.length) this.#ahead.pop()?.discard();
  }

  /**
   * Runs `work` after all earlier users of the cache and returns its result.
   * @template T
   * @param {() => Promise<T>} work
   * @returns {Promise<T>}
   */
  #inTurn(work) {
    const result = this.#busy.then(work);
    this.#busy = result.catch(() => this.#forget()); // after an error, the contents of the cache are unknown
    return result;
  }

  #forget() {
    this.#forgetAhead();
    this.#cached = [];
    this.#owner = null;
  }
}

/** Wraps the results of a call with several plans. @type {(results: Promise<any[]>) => Promise<Running>} */
async function startedRun(results) {
  results.catch(() => {}); // the error reaches callers that await the result
  return { result: () => results, resident: () => [], discard() {} };
}

/** @type {(dtype: "int32" | "int64", shape: number[], values: number[] | Int32Array) => Tensor} */
const ints = (dtype, shape, values) =>
  new Tensor(dtype, shape, Int32Array.from(values)); // int32 is the GPU's type of both

/** A stream of text, in pieces of complete characters; `generation` holds the result so far. */
export class Stream {
  #pieces;
  cancelled = false;

  /**
   * @param {number[]} promptTokens
   * @param {number} seed
   * @param {(stream: Stream) => AsyncGenerator<string, void>} pieces
   * @param {Generation} [continues]
   */
  constructor(promptTokens, seed, pieces, { tokens, logprobs } = /** @type {any} */ ({ tokens: [], logprobs: [] })) {
    /** @type {Generation} */
    this.generation = {
      promptTokens, seed, text: "", tokens: [...tokens], logprobs: [...logprobs], finishReason: null,
      timings: { reusedTokens: 0, prefillTokens: 0, prefillMs: 0, decodeTokens: 0, decodeMs: 0 },
    };
    /** The number of tokens of `continues`. */
    this.begun = tokens.length;
    this.#pieces = pieces(this);
  }

  [Symbol.asyncIterator]() {
    return this.#pieces;
  }

  /** Stops before the next token. */
  cancel() {
    this.cancelled = true;
  }
}
