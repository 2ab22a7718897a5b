// The worker's end of client.js. A call is a message { id, name, args }. Its answer has the same id and a `value` or an
// `error`; messages with `news` may come before it. A message { id, name } is a note to a running call: "abort",
// "cancel" or "more".
import { fetchJson, folderOf, load } from "./index.js";
import { packed, serialized } from "./packed.js";

/** @typedef {import("./index.js").Program} Program */
/** @typedef {{program: Program, model?: import("./llm.js").LanguageModel}} Opened */
/** @typedef {{signal: AbortSignal, tell(news: any): void, abort(): void, cancel?(): void, more?(): void}} Call */

const PROGRESS_INTERVAL = 50; // ms between two messages of progress

/**
 * Loads a site: a language model if site.json describes one, otherwise a program.
 * @param {string} url
 * @param {import("./index.js").Options} options
 * @returns {Promise<Opened>}
 */
async function open(url, options) {
  const base = folderOf(url);
  const site = await fetchJson(base + "site.json", options).catch(() => null);
  if (!site?.language) return { program: await load(base, { ...options, site }) };
  const { loadLanguageModel } = await import("./llm.js");
  const model = await loadLanguageModel(base, { ...options, site });
  return { model, program: model.program };
}

/**
 * Answers the calls that arrive at a port.
 * @param {{postMessage(message: any, moved?: any): void, onmessage: ((event: MessageEvent) => void) | null}} port
 * @param {(url: string, options: import("./index.js").Options) => Promise<Opened>} [opens]
 */
export function serve(port, opens = open) {
  /** @type {Program} */
  let program;
  /** @type {Opened["model"]} */
  let model;
  /** @type {Map<number, Call>} */
  const calls = new Map();

  /** @type {Record<string, (call: Call, ...args: any[]) => any>} */
  const handlers = {
    async load(call, url, options) {
      ({ program, model } = await opens(url, { ...options, signal: call.signal, onProgress: throttled(call.tell) }));
      const { methods, variant, adapter, bytes, site } = program;
      const signatures = Object.fromEntries(methods.map((name) => [name, program.signature(name)]));
      return { site, info: { methods, signatures, variant, adapter, bytes, language: model?.language } };
    },
    run: ({ signal }, inputs, options) => program.run(inputs, { ...options, signal }),
    prepare: ({ signal, tell }, options) => program.prepare({ ...options, signal, onProgress: throttled(tell) }),
    reset: (_, method) => (model && !method ? model.reset() : program.reset(method)),
    selfcheck: () => program.selfcheck(),
    lost: async () => serialized(await program.lost),
    async stream(call, prompt, options) {
      if (!model) throw new TypeError("this site has no language model: use run()");
      const stream = model.stream(prompt, { ...options, signal: call.signal });
      const { promptTokens, seed } = stream.generation;
      call.tell({ text: "", generation: { promptTokens, seed } });
      let text = "";
      let sent = stream.generation.tokens.length; // the client has the tokens that the stream continues
      let ready = true; // the client asked for more
      const news = () => {
        const { tokens, logprobs, finishReason, timings } = stream.generation;
        const generation = {
          tokens: tokens.slice(sent),
          logprobs: logprobs.slice(sent),
          finishReason,
          timings,
        };
        const message = { text, generation };
        text = "";
        sent = tokens.length;
        return message;
      };
      // While the page is busy, pieces are joined, so that generating never waits for it.
      const send = () => {
        if (!ready || !text) return;
        ready = false;
        call.tell(news());
      };
      call.cancel = () => stream.cancel();
      call.more = () => {
        ready = true;
        send();
      };
      try {
        for await (const piece of stream) {
          text += piece;
          send();
        }
      } catch (error) {
        call.tell(news());
        throw error;
      }
      return news();
    },
  };

  port.onmessage = async ({ data: { id, name, args } }) => {
    const call = calls.get(id);
    if (call) return call[/** @type {"abort" | "cancel" | "more"} */ (name)]?.();
    if (!args) return; // a note to a call that has ended
    const stop = new AbortController();
    calls.set(id, {
      signal: stop.signal,
      abort: () => stop.abort(),
      tell: (news) => port.postMessage({ id, news }),
    });
    try {
      /** @type {Transferable[]} */
      const moved = [];
      const value = await handlers[name](/** @type {Call} */ (calls.get(id)), ...args);
      port.postMessage({ id, value: name === "run" ? packed(value, moved) : value }, moved);
    } catch (error) {
      port.postMessage({ id, error: serialized(error) });
    }
    calls.delete(id);
  };
}

/**
 * Returns an `onProgress` that calls `tell` no more often than a person can see.
 * @param {(progress: any) => void} tell
 * @returns {(progress: import("./index.js").Progress) => void}
 */
function throttled(tell) {
  /** @type {Record<string, number>} */
  const last = {};
  return (progress) => {
    const now = performance.now();
    if (progress.done < progress.total && now - last[progress.stage] < PROGRESS_INTERVAL) return;
    last[progress.stage] = now;
    tell(progress);
  };
}

if ("WorkerGlobalScope" in globalThis) serve(/** @type {any} */ (globalThis));
