// A language model: prompts in, text out. The KV cache and the choice of the next token stay on the GPU.
// What the cache holds is known token by token, so a prompt that begins with what is there already only runs the rest:
// the next turn of a chat, or the same prompt again. The result is the same as from an empty cache.
import { BadBundle, ExecutionError, InvalidInput, Tensor, fetchJson, folderOf, load } from "./index.js";
import { Sampling } from "./sampling.js";
import { Detokenizer, StopStrings, Tokenizer } from "./text.js";

/** @typedef {import("./template.js").Message} Message */
/** @typedef {string | number[] | Message[]} Prompt a text, tokens, or the messages of a chat */
/** @typedef {"stop" | "length" | "context" | "cancelled"} FinishReason */

/**
 * How to generate.
 * @typedef {import("./sampling.js").Settings & {
 *   maxTokens?: number, stop?: string | string[], stopTokens?: number[], signal?: AbortSignal, continues?: Generation,
 * }} Options `stop` are strings that end the text and are not part of it; `stopTokens` replace the model's own;
 *   `continues` is what the same prompt gave until the GPU was lost: its tokens are not made again, its seed is taken
 */

/**
 * @typedef {{reusedTokens: number, prefillTokens: number, prefillMs: number, decodeTokens: number, decodeMs: number}}
 *   Timings of the prompt, tokens that were found in the cache, and that were computed
 */

/**
 * What a prompt gave. Stop tokens are in neither `text` nor `tokens`; a stop string is in `tokens` only. `logprobs`
 * are the natural logarithms of the tokens' probabilities in the model's own distribution. The first token comes at the
 * end of the prefill, so decoding makes one less than all.
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
 * What a site says about its language model.
 * @typedef {object} Language
 * @property {string} method
 * @property {number} vocabulary
 * @property {number} context tokens that the cache holds
 * @property {number} chunk tokens that one call takes at most
 * @property {number[]} eos
 * @property {"int64" | "int32"} tokens dtype of the tokens
 * @property {"int64" | "int32"} position
 * @property {string | null} [tokenizer] names of files, as those below
 * @property {string | null} [config]
 * @property {string | null} [template]
 */

/** A call that was started. @typedef {{result(): Promise<any[]>, resident(): any[], discard(): void}} Running */

const CHUNK = 512; // tokens of a prompt in one call: a call is not interrupted
const ROUND_TRIP = 10; // ms that a result may take from the GPU to here
const FEWEST = 2, MOST = 8; // steps on their way behind the one that is waited for

/**
 * Loads a site that `ptegpu web` made of a language model.
 * @param {string | URL} url of the folder
 * @param {import("./index.js").Options & {tokenizer?: Tokenizer | null}} [options] those of `load`; and a `tokenizer`
 *   instead of the site's own
 */
export async function loadLanguageModel(url, { tokenizer, ...options } = {}) {
  const base = folderOf(url);
  const site = options.site ?? (await fetchJson(base + "site.json", options));
  const { language } = site;
  if (!language) throw new InvalidInput(`${base} is not a language model: its site.json says nothing about one`);
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
  model.generate([0], { maxTokens: 1, temperature: 1 }).catch(() => {}); // so that kernels are there when they are needed
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
  /** @type {Stream | null} whose tokens they are */
  #owner = null;
  /** @type {Running[]} the owner's next steps */
  #ahead = [];
  /** @type {Promise<unknown>} what uses the cache now */
  #busy = Promise.resolve();
  #method;
  #runs = -1; // of the method, when the cache was last known

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
    /** How many tokens of a prompt run at once. */
    this.chunk = Math.min(CHUNK, language.chunk);
    /** The tokens that end a text: those of the program and the tokenizer's end of sequence. */
    this.stopTokens = [...language.eos, ...(typeof tokenizer?.eos === "number" ? [tokenizer.eos] : [])];
  }

  /** The tokens that the cache holds. */
  get cached() {
    return [...this.#cached];
  }

  /**
   * The tokens of a prompt, checked: there are some, the model knows them, and they fit its context.
   * @param {Prompt} prompt
   * @returns {number[]}
   */
  encode(prompt) {
    const { vocabulary, context } = this.language;
    const tokens = this.#tokens(prompt);
    if (!tokens.length) throw new InvalidInput("the prompt is empty: give at least one token");
    const unknown = tokens.find((t) => !(Number.isInteger(t) && t >= 0 && t < vocabulary));
    if (unknown !== undefined)
      throw new InvalidInput(`token ${unknown} is not in the model's vocabulary of ${vocabulary}`);
    if (tokens.length > context)
      throw new InvalidInput(`the prompt has ${tokens.length} tokens, the model's context holds ${context}`);
    return tokens;
  }

  /** @param {Prompt} prompt @returns {number[]} */
  #tokens(prompt) {
    if (typeof prompt === "string") return this.#texts().encode(prompt);
    if (typeof prompt[0] === "object") return this.#texts().encodeChat(/** @type {Message[]} */ (prompt));
    return [.../** @type {number[]} */ (prompt)];
  }

  #texts() {
    if (!this.tokenizer) throw new InvalidInput("the model has no tokenizer: give tokens, or load it with one");
    return this.tokenizer;
  }

  /**
   * The text of tokens.
   * @param {number[]} tokens
   */
  decode(tokens) {
    return this.#texts().decode(tokens);
  }

  /**
   * The continuation of a prompt, all at once.
   * @param {Prompt} prompt
   * @param {Options} [options]
   */
  async generate(prompt, options) {
    const stream = this.stream(prompt, options);
    for await (const _ of stream);
    return stream.generation;
  }

  /**
   * The continuation of a prompt, piece by piece.
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

  /** Empty the cache: everything as when the model was loaded. */
  reset() {
    return this.#alone(async () => {
      this.#forget();
      await this.program.reset(this.language.method);
    });
  }

  /** Give the GPU memory back. */
  dispose() {
    this.program.dispose();
  }

  /**
   * The pieces of a stream, whose generation is filled on the way.
   * @param {Stream} stream
   * @param {Sampling} sampling
   * @param {number} maxTokens
   * @param {Set<number>} ends
   * @param {Detokenizer | null} detokenizer
   * @param {StopStrings} stops
   * @param {AbortSignal | undefined} signal
   */
  async *#pieces(stream, sampling, maxTokens, ends, detokenizer, stops, signal) {
    const made = stream.generation, tokens = [...made.promptTokens, ...made.tokens];
    const seen = new Int32Array(sampling.penalises ? Math.ceil(this.language.vocabulary / 32) : 1);
    const add = (/** @type {number} */ t) => sampling.penalises && (seen[t >> 5] |= 1 << (t & 31));
    tokens.forEach(add);
    try {
      while (!made.finishReason) {
        signal?.throwIfAborted();
        if (made.tokens.length >= maxTokens) made.finishReason = "length";
        else if (tokens.length > this.language.context) made.finishReason = "context";
        if (made.finishReason) break;
        const next = await this.#alone(() => this.#next(stream, tokens, sampling, seen, maxTokens, signal));
        signal?.throwIfAborted();
        if (!next || stream.cancelled) made.finishReason = "cancelled";
        else if (ends.has(next[0])) made.finishReason = "stop";
        if (made.finishReason || !next) break;
        const [token, logprob] = next;
        tokens.push(token);
        add(token);
        made.tokens.push(token);
        made.logprobs.push(logprob);
        const text = detokenizer ? stops.push(detokenizer.push(token)) : "";
        if (stops.stopped) made.finishReason = "stop";
        made.text += text;
        if (text) yield text;
      }
      const rest = detokenizer ? stops.push(detokenizer.finish()) + stops.finish() : "";
      made.text += rest;
      if (rest) yield rest;
    } finally {
      made.finishReason ??= "cancelled"; // left, or failed
      if (this.#owner === stream) this.#forgetAhead();
    }
  }

  /**
   * The token after `tokens`, of which the cache may hold some, with its log-probability; undefined if cancelled on the
   * way. The steps after it are started before this one is waited for, with the token as it is on the GPU.
   * @param {Stream} stream
   * @param {number[]} tokens
   * @param {Sampling} sampling
   * @param {Int32Array} seen
   * @param {number} maxTokens
   * @param {AbortSignal | undefined} signal
   * @returns {Promise<[number, number] | undefined>}
   */
  async #next(stream, tokens, sampling, seen, maxTokens, signal) {
    const { timings, tokens: made } = stream.generation, step = made.length, started = performance.now();
    const start = (/** @type {any} */ given, /** @type {number} */ position, /** @type {number} */ k) =>
      this.#start(given, position, sampling.words(k), seen, sampling.how);
    if (this.#runs !== this.#method.runs) this.#forget(); // somebody else ran it
    let reused = this.#cached.length, run = this.#owner === stream ? this.#ahead.shift() : undefined;
    if (run) this.#cached.push(tokens[tokens.length - 1]);
    else {
      this.#forgetAhead();
      if (this.#owner !== stream) this.#keep(tokens.slice(0, -1));
      this.#owner = stream;
      reused = this.#cached.length;
      if (!(await this.#prefill(tokens, () => stream.cancelled || signal?.aborted))) return undefined;
      const at = this.#cached.length, rest = tokens.slice(at);
      run = await start(ints(this.language.tokens, [1, rest.length], rest), at, step);
      this.#cached.push(...rest);
    }
    if (this.#method.inOnePlan && !sampling.penalises) {
      const left = Math.min(this.language.context - tokens.length, maxTokens - step - 1);
      const needed = (ROUND_TRIP * timings.decodeTokens) / timings.decodeMs + 1 || FEWEST;
      const wanted = Math.min(Math.max(needed, FEWEST), MOST, step + 1, left);
      // The first ones go one by one, so that a short text wastes little. What is computed behind the end of a text is
      // thrown away: the cache is written again from the position on that the next call has.
      for (let k = this.#ahead.length; k < wanted; k++) {
        const following = (this.#ahead[k - 1] ?? run).resident()[0];
        this.#ahead.push(await start(following, tokens.length + k, step + 1 + k));
      }
    }
    const [token, logprob] = await run.result();
    const elapsed = performance.now() - started;
    const decoded = step - stream.begun;
    if (decoded) Object.assign(timings, { decodeTokens: decoded, decodeMs: timings.decodeMs + elapsed });
    else Object.assign(timings, { reusedTokens: reused, prefillTokens: tokens.length - reused, prefillMs: elapsed });
    const chance = Number(logprob.data[0]);
    if (!Number.isFinite(chance))
      throw new ExecutionError(`the model's logits at position ${tokens.length - 1} are not finite numbers`);
    return [Number(token.data[0]), chance];
  }

  /** Forget what the cache holds from the first token on that is not in `tokens`. @param {number[]} tokens */
  #keep(tokens) {
    const other = this.#cached.findIndex((token, k) => token !== tokens[k]);
    if (other >= 0) this.#cached.length = other;
  }

  /**
   * Runs those of `tokens` that the cache lacks, in chunks, until no more than a chunk is left; false if cancelled.
   * One chunk is on its way while the next one is started.
   * @param {number[]} tokens
   * @param {() => boolean | undefined} cancelled
   */
  async #prefill(tokens, cancelled) {
    /** @type {Running | undefined} */
    let before;
    while (!cancelled() && tokens.length - this.#cached.length > this.chunk) {
      const at = this.#cached.length, some = tokens.slice(at, at + this.chunk);
      const run = await this.#start(ints(this.language.tokens, [1, some.length], some), at);
      this.#cached.push(...some);
      await before?.result();
      before = run;
    }
    before?.discard();
    return !cancelled();
  }

  /**
   * One call of the model that is not waited for, where it runs at once; `tokens` may be on the GPU.
   * @param {any} tokens
   * @param {number} position
   * @param {Int32Array} [words]
   * @param {Int32Array} [seen]
   * @param {number} [how]
   * @returns {Promise<Running>}
   */
  #start(tokens, position, words = new Int32Array(8), seen = new Int32Array(1), how = 0) {
    const at = ints(this.language.position, [1], [position]);
    const given = [tokens, at, ints("int32", [8], words), ints("int32", [seen.length], seen), how,
      ints("int32", [1, 0], [])];
    const started = this.#method.inOnePlan ? this.#method.start(given) : waited(this.#method.run(given));
    this.#runs = this.#method.runs;
    return started;
  }

  #forgetAhead() {
    while (this.#ahead.length) this.#ahead.pop()?.discard();
  }

  /**
   * What `work` gives, after all that uses the cache before it.
   * @template T
   * @param {() => Promise<T>} work
   * @returns {Promise<T>}
   */
  #alone(work) {
    const result = this.#busy.then(work);
    this.#busy = result.catch(() => this.#forget()); // what the GPU did is not known
    return result;
  }

  #forget() {
    this.#forgetAhead();
    this.#cached = [];
    this.#owner = null;
  }
}

/** A call that takes several plans. @type {(results: Promise<any[]>) => Promise<Running>} */
async function waited(results) {
  results.catch(() => {}); // whoever wants the result hears of it
  return { result: () => results, resident: () => [], discard() {} };
}

/** @type {(dtype: "int32" | "int64", shape: number[], values: number[] | Int32Array) => Tensor} */
const ints = (dtype, shape, values) =>
  new Tensor(dtype, shape, Int32Array.from(values)); // as the GPU has them

/** Pieces of text as they come, whole characters each; `generation` is what came so far. */
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
    /** How many of the tokens were there before. */
    this.begun = tokens.length;
    this.#pieces = pieces(this);
  }

  [Symbol.asyncIterator]() {
    return this.#pieces;
  }

  /** Stop before the next token. */
  cancel() {
    this.cancelled = true;
  }
}
