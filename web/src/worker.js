// A model in a worker, for client.js. A call is a message { id, name, args }; its answer has the same id and a `value` or an
// `error`, and there may be some with `news` before. A message with the id of a running call is a note to it: "abort",
// "cancel" or "more".
import { fetchJson, folderOf, load } from "./index.js";
import { packed, told } from "./packed.js";

/** @typedef {import("./index.js").Program} Program */
/** @typedef {{program: Program, model?: import("./llm.js").LanguageModel}} Opened */
/** @typedef {{signal: AbortSignal, tell(news: any): void, abort(): void, cancel?(): void, more?(): void}} Call */

const PAUSE = 50; // ms between two messages of progress

/**
 * Loads a site: a language model where site.json says so, else a program.
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
 * Answers what comes from a port.
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
  const does = {
    async load(call, url, options) {
      ({ program, model } = await opens(url, { ...options, signal: call.signal, onProgress: seldom(call.tell) }));
      const { methods, variant, adapter, bytes, site } = program;
      const signatures = Object.fromEntries(methods.map((name) => [name, program.signature(name)]));
      return { site, info: { methods, signatures, variant, adapter, bytes, language: model?.language } };
    },
    run: ({ signal }, inputs, options) => program.run(inputs, { ...options, signal }),
    prepare: ({ signal, tell }, options) => program.prepare({ ...options, signal, onProgress: seldom(tell) }),
    reset: (_, method) => (model && !method ? model.reset() : program.reset(method)),
    selfcheck: () => program.selfcheck(),
    lost: async () => told(await program.lost),
    async stream(call, prompt, options) {
      if (!model) throw new TypeError("this site has no language model; use run()");
      const stream = model.stream(prompt, { ...options, signal: call.signal });
      const { promptTokens, seed } = stream.generation;
      call.tell({ text: "", generation: { promptTokens, seed } });
      let text = "";
      let sent = stream.generation.tokens.length; // what it continues is known there
      let wanted = true;
      const news = () => {
        const { tokens, logprobs, finishReason, timings } = stream.generation;
        const generation = {
          tokens: tokens.slice(sent),
          logprobs: logprobs.slice(sent),
          finishReason,
          timings,
        };
        const made = { text, generation };
        text = "";
        sent = tokens.length;
        return made;
      };
      // While the page is busy, pieces become one: neither waits for the other.
      const send = () => {
        if (!wanted || !text) return;
        wanted = false;
        call.tell(news());
      };
      call.cancel = () => stream.cancel();
      call.more = () => {
        wanted = true;
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
    if (!args) return; // a note to a call that is over
    const stop = new AbortController();
    calls.set(id, {
      signal: stop.signal,
      abort: () => stop.abort(),
      tell: (news) => port.postMessage({ id, news }),
    });
    try {
      /** @type {Transferable[]} */
      const moved = [];
      const value = await does[name](/** @type {Call} */ (calls.get(id)), ...args);
      port.postMessage({ id, value: name === "run" ? packed(value, moved) : value }, moved);
    } catch (error) {
      port.postMessage({ id, error: told(error) });
    }
    calls.delete(id);
  };
}

/**
 * Progress, but not more often than anybody can see.
 * @param {(progress: any) => void} tell
 * @returns {(progress: import("./index.js").Progress) => void}
 */
function seldom(tell) {
  /** @type {Record<string, number>} */
  const last = {};
  return (progress) => {
    const now = performance.now();
    if (progress.done < progress.total && now - last[progress.stage] < PAUSE) return;
    last[progress.stage] = now;
    tell(progress);
  };
}

if ("WorkerGlobalScope" in globalThis) serve(/** @type {any} */ (globalThis));
