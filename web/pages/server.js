// Models behind a server with OpenAI's API, as `ptegpu serve` is: to a page the same as one in a worker.

/**
 * @typedef {{id: string, kind?: "chat" | "text" | "embeddings", context?: number, max_tokens?: number}} Model
 *   one of /v1/models; what other servers do not tell is guessed
 * @typedef {{role: string, content: string}} Message
 * @typedef {Record<string, number | undefined>} Options as for a model in the page
 * @typedef {{length: number}} Count
 * @typedef {{promptTokens: Count, tokens: Count, seed: number, finishReason: string | null,
 *   timings: {decodeTokens: number, decodeMs: number}}} Generation counts are exact at the end
 */

/** What an error is called, by what the server calls it, or by its status. @type {Record<string, string>} */
const CODES = {
  stopping: "Unavailable",
  worker_lost: "Unavailable",
  time_limit: "TooLong",
  engine_failed: "ExecutionError",
  400: "InvalidInput",
  401: "BadKey",
  404: "InvalidInput",
  413: "InvalidInput",
  429: "Busy",
  502: "Unavailable",
  503: "Unavailable",
  504: "TooLong",
};
const NAMES = /** @type {const} */ ([
  ["temperature", "temperature"],
  ["top_k", "topK"],
  ["top_p", "topP"],
  ["min_p", "minP"],
  ["repeat_penalty", "repeatPenalty"],
]);
const TOKENS = 256; // of an answer, unless told otherwise
const CONTEXT = 4096; // of a model that does not tell

/** @param {string} code @param {string} message @param {number} [wait] seconds */
const failure = (code, message, wait) =>
  Object.assign(new Error(wait ? `${message} (in ${wait} s)` : message), { code });

/**
 * Asks, and reads nothing but errors.
 * @param {URL} url @param {string} key @param {unknown} body null: nothing is sent @param {AbortSignal} [signal]
 */
async function ask(url, key, body, signal) {
  const headers = /** @type {Record<string, string>} */ (key ? { Authorization: `Bearer ${key}` } : {});
  if (body) headers["Content-Type"] = "application/json";
  const sent = { method: body ? "POST" : "GET", headers, body: body ? JSON.stringify(body) : null, signal };
  const answer = await fetch(url, sent).catch((error) => {
    throw error.name === "AbortError" ? error : failure("NoServer", `${url.host} does not answer`);
  });
  if (answer.ok) return answer;
  const { error } = await answer.json().catch(() => ({}));
  const code = CODES[error?.code] ?? CODES[answer.status] ?? "ExecutionError";
  throw failure(code, error?.message ?? `the server says ${answer.status}`, Number(answer.headers.get("Retry-After")));
}

/**
 * The data of server-sent events.
 * @param {ReadableStream<Uint8Array>} body
 */
export async function* events(body) {
  const decoder = new TextDecoder();
  let text = "";
  const reader = body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      text += done ? decoder.decode() : decoder.decode(value, { stream: true });
      const whole = text.split(/\r?\n\r?\n/);
      text = whole.pop() ?? "";
      for (const event of whole)
        for (const line of event.split(/\r?\n/)) if (line.startsWith("data:")) yield line.slice(5).trim();
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => {}); // whoever leaves early wants no more
  }
}

/**
 * Asks a server for its models.
 * @param {string | URL} base the address above /v1/
 * @param {{key?: string, signal?: AbortSignal}} [options]
 */
export async function connect(base, { key = "", signal } = {}) {
  const answer = await ask(new URL("v1/models", base), key, null, signal);
  const { data } = /** @type {{data: Model[]}} */ (await answer.json());
  const models = data.filter(({ kind }) => kind !== "embeddings");
  if (!models.length) throw failure("NoModel", "this server has encoders only: ask its /v1/embeddings");
  return new Server(new URL(base), key, models);
}

/** Models on a server. Make it with `connect`; `model` is the one that answers, and may be changed. */
export class Server {
  lost = new Promise(() => {});
  info = { adapter: null };

  /** @param {URL} base @param {string} key @param {Model[]} models */
  constructor(base, key, models) {
    this.base = base;
    this.key = key;
    this.models = models;
    this.model = models[0];
  }

  /** What the page has to know of the model. */
  get language() {
    const { kind = "chat", context = CONTEXT, max_tokens = context } = this.model;
    return { chat: kind === "chat", context, maxTokens: Math.min(context, max_tokens) };
  }

  /** @param {string | Message[]} input @param {Options} [options] */
  stream(input, options = {}) {
    return new Answer(this, input, options);
  }

  async prepare() {}
  async reset() {}
  async dispose() {}
}

/** A text as it is written: iterate over its pieces. */
class Answer {
  #server;
  #input;
  #options;
  #abort = new AbortController();

  /** @param {Server} server @param {string | Message[]} input @param {Options} options */
  constructor(server, input, options) {
    this.#server = server;
    this.#input = input;
    this.#options = options;
    const seed = options.seed ?? crypto.getRandomValues(new Uint32Array(1))[0];
    /** @type {Generation} */
    this.generation = {
      promptTokens: { length: 0 },
      tokens: { length: 0 },
      seed,
      finishReason: null,
      timings: { decodeTokens: 0, decodeMs: 0 },
    };
  }

  /** Stops it; what came so far stays. */
  cancel() {
    this.generation.finishReason ??= "cancelled";
    this.#abort.abort();
  }

  async *[Symbol.asyncIterator]() {
    const { base, key, model, language } = this.#server;
    const made = this.generation;
    const chat = typeof this.#input !== "string";
    const body = /** @type {Record<string, unknown>} */ ({
      model: model.id,
      [chat ? "messages" : "prompt"]: this.#input,
      stream: true,
      stream_options: { include_usage: true },
      max_tokens: Math.min(this.#options.maxTokens ?? TOKENS, language.maxTokens),
      seed: made.seed,
    });
    for (const [theirs, ours] of NAMES) body[theirs] = this.#options[ours];
    const path = chat ? "v1/chat/completions" : "v1/completions";
    let first = 0;
    let whole = false;
    try {
      const answer = await ask(new URL(path, base), key, body, this.#abort.signal);
      for await (const data of events(/** @type {ReadableStream<Uint8Array>} */ (answer.body))) {
        if ((whole = data === "[DONE]")) break;
        const { choices, usage, error } = JSON.parse(data);
        if (error) throw failure(CODES[error.code] ?? "ExecutionError", error.message);
        if (usage) {
          made.promptTokens = { length: usage.prompt_tokens };
          made.tokens = { length: usage.completion_tokens };
        }
        const [choice] = choices;
        const piece = choice?.delta?.content ?? choice?.text ?? "";
        if (piece) {
          const now = performance.now();
          first ||= now;
          made.tokens.length++;
          made.timings = { decodeTokens: made.tokens.length - 1, decodeMs: now - first };
          yield /** @type {string} */ (piece);
        }
        made.finishReason ??= choice?.finish_reason ?? null;
      }
    } catch (error) {
      if (made.finishReason === "cancelled") return;
      const known = /** @type {{code?: unknown}} */ (error).code;
      throw typeof known === "string" ? error : failure("NoServer", "the answer broke off");
    }
    if (!whole) throw failure("NoServer", "the answer broke off");
    if (made.promptTokens.length + made.tokens.length > language.context) made.finishReason = "context";
  }
}
