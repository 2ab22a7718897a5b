// Models behind a server with OpenAI's API, such as `ptegpu serve`, with the interface of a model in a worker.

/**
 * @typedef {{id: string, kind?: "chat" | "text" | "embeddings", context?: number, max_tokens?: number}} Model
 *   an entry of /v1/models; other servers than ptegpu's only send the id
 * @typedef {{role: string, content: string}} Message
 * @typedef {Record<string, number | undefined>} Options the options of a model in the page
 * @typedef {{length: number}} Count
 * @typedef {{promptTokens: Count, tokens: Count, seed: number, finishReason: string | null,
 *   timings: {decodeTokens: number, decodeMs: number}}} Generation the counts are estimates until the end
 */

/** Error codes of the page by the server's error code or HTTP status. @type {Record<string, string>} */
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
const DEFAULT_TOKENS = 256; // of an answer
const DEFAULT_CONTEXT = 4096; // of a model whose server does not send it

/** @param {string} code @param {string} message @param {number} [wait] seconds */
const failure = (code, message, wait) =>
  Object.assign(new Error(wait ? `${message} (in ${wait} s)` : message), { code });

/**
 * Sends a request; returns the response, or throws its error.
 * @param {URL} url @param {string} key @param {unknown} body null for a GET @param {AbortSignal} [signal]
 */
async function ask(url, key, body, signal) {
  const headers = /** @type {Record<string, string>} */ (key ? { Authorization: `Bearer ${key}` } : {});
  if (body) headers["Content-Type"] = "application/json";
  const init = { method: body ? "POST" : "GET", headers, body: body ? JSON.stringify(body) : null, signal };
  const answer = await fetch(url, init).catch((error) => {
    throw error.name === "AbortError" ? error : failure("NoServer", `${url.host} does not answer`);
  });
  if (answer.ok) return answer;
  const { error } = await answer.json().catch(() => ({}));
  const code = CODES[error?.code] ?? CODES[answer.status] ?? "ExecutionError";
  throw failure(code, error?.message ?? `the server returned status ${answer.status}`, Number(answer.headers.get("Retry-After")));
}

/**
 * Yields the data of server-sent events.
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
      const complete = text.split(/\r?\n\r?\n/);
      text = complete.pop() ?? "";
      for (const event of complete)
        for (const line of event.split(/\r?\n/)) if (line.startsWith("data:")) yield line.slice(5).trim();
      if (done) return;
    }
  } finally {
    reader.cancel().catch(() => {}); // for loops that end early
  }
}

/**
 * Connects to a server and lists its models.
 * @param {string | URL} base the address above /v1/
 * @param {{key?: string, signal?: AbortSignal}} [options]
 */
export async function connect(base, { key = "", signal } = {}) {
  const answer = await ask(new URL("v1/models", base), key, null, signal);
  const { data } = /** @type {{data: Model[]}} */ (await answer.json());
  const models = data.filter(({ kind }) => kind !== "embeddings");
  if (!models.length) throw failure("NoModel", "this server only has encoders: use its /v1/embeddings");
  return new Server(new URL(base), key, models);
}

/** The models of a server; create it with `connect`. `model` is the selected one and may be changed. */
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

  /** The selected model's description for the page. */
  get language() {
    const { kind = "chat", context = DEFAULT_CONTEXT, max_tokens = context } = this.model;
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

/** A stream of text from a server: iterate over its pieces. */
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

  /** Ends the stream; the text so far stays valid. */
  cancel() {
    this.generation.finishReason ??= "cancelled";
    this.#abort.abort();
  }

  async *[Symbol.asyncIterator]() {
    const { base, key, model, language } = this.#server;
    const { generation } = this;
    const chat = typeof this.#input !== "string";
    const body = /** @type {Record<string, unknown>} */ ({
      model: model.id,
      [chat ? "messages" : "prompt"]: this.#input,
      stream: true,
      stream_options: { include_usage: true },
      max_tokens: Math.min(this.#options.maxTokens ?? DEFAULT_TOKENS, language.maxTokens),
      seed: generation.seed,
    });
    for (const [theirs, ours] of NAMES) body[theirs] = this.#options[ours];
    const path = chat ? "v1/chat/completions" : "v1/completions";
    let first = 0;
    let complete = false;
    try {
      const answer = await ask(new URL(path, base), key, body, this.#abort.signal);
      for await (const data of events(/** @type {ReadableStream<Uint8Array>} */ (answer.body))) {
        if ((complete = data === "[DONE]")) break;
        const { choices, usage, error } = JSON.parse(data);
        if (error) throw failure(CODES[error.code] ?? "ExecutionError", error.message);
        if (usage) {
          generation.promptTokens = { length: usage.prompt_tokens };
          generation.tokens = { length: usage.completion_tokens };
        }
        const [choice] = choices;
        const piece = choice?.delta?.content ?? choice?.text ?? "";
        if (piece) {
          const now = performance.now();
          first ||= now;
          generation.tokens.length++;
          generation.timings = { decodeTokens: generation.tokens.length - 1, decodeMs: now - first };
          yield /** @type {string} */ (piece);
        }
        generation.finishReason ??= choice?.finish_reason ?? null;
      }
    } catch (error) {
      if (generation.finishReason === "cancelled") return;
      const { code } = /** @type {{code?: unknown}} */ (error);
      throw typeof code === "string" ? error : failure("NoServer", "the answer was interrupted");
    }
    if (!complete) throw failure("NoServer", "the answer was interrupted");
    if (generation.promptTokens.length + generation.tokens.length > language.context) generation.finishReason = "context";
  }
}
