/** ptegpu in a browser: runs what `ptegpu web` makes of a PyTorch program, on the visitor's GPU. */

import { ARRAYS, Tensor } from "./dtypes.js";
import { BadBundle, InvalidInput, OutOfMemory } from "./errors.js";
import { chooseVariant, openGpu } from "./gpu.js";
import { fromDevice, openMethod } from "./method.js";
import { openPlan } from "./plan.js";
import { deliver, fetchJson } from "./weights.js";

export * from "./errors.js";
export { Tensor };
export { ARRAYS, fetchJson, fromDevice }; // for the parts that are loaded when they are needed

/** A program on the GPU. @typedef {Awaited<ReturnType<typeof load>>} Program */
/** @typedef {{stage: "plan" | "weights" | "kernels", done: number, total: number}} Progress of weights in bytes */
/**
 * @typedef {object} Options
 * @property {GPU} [gpu] where the adapter comes from; `navigator.gpu`
 * @property {GPUAdapter} [adapter]
 * @property {GPUDevice} [device] one of your own, which `dispose` leaves alone; give its adapter, too
 * @property {GPUPowerPreference} [powerPreference]
 * @property {string} [variant] the name of one, instead of the first that fits
 * @property {string[]} [methods] only these
 * @property {any} [site] what site.json holds, where it is known
 * @property {number} [memory] bytes of GPU memory that the model may take
 * @property {string | null} [cache] what the browser's caches are named after, one for each site; null: none
 * @property {typeof fetch} [fetch]
 * @property {AbortSignal} [signal]
 * @property {(progress: Progress) => void} [onProgress]
 */

/** The URL of a folder, with / at its end, by itself or by a file in it. @param {string | URL} url */
export const folderOf = (url) => new URL(url, globalThis.location?.href).href.replace(/\/?([^/]*\.json)?$/, "/");

/**
 * Loads a program: the plan first, then weights and kernels side by side.
 * @param {string | URL} url of the folder
 * @param {Options} [options]
 */
export async function load(url, options = {}) {
  const { gpu: api = globalThis.navigator?.gpu, powerPreference = "high-performance", signal, onProgress } = options;
  const base = folderOf(url);
  /** @type {(stage: Progress["stage"], to?: Options["onProgress"]) => (done: number, total: number) => void} */
  const telling = (stage, to = onProgress) => (done, total) => to?.({ stage, done, total });
  /** @type {(name: string, sha256?: string) => Promise<any>} */
  const get = (name, sha256) => fetchJson(base + name, options, sha256);

  const adapter = options.adapter ?? (await api?.requestAdapter({ powerPreference }));
  if (!adapter) throw (await import("./why.js")).noAdapter(api);
  telling("plan")(0, 2);
  const head = await get("bundle.json");
  if (head.version !== 2) throw new BadBundle(`${base}bundle.json is not for this runner: they are of different versions`);
  const chosen = await chooseVariant(adapter, head.variants, options);
  telling("plan")(1, 2);
  const [variant, site] = await Promise.all([
    get(chosen.file[0], chosen.file[2]),
    options.site ?? get("site.json").catch(() => null),
  ]);
  const gpu = await openGpu(adapter, chosen, variant.layouts, options.device);
  try {
    const host = variant.host && (await import("./host.js"));
    const sizes = variant.sizes && (await import("./sizes.js"));
    /** Who takes which part of the data. @type {import("./weights.js").Wanted[]} */
    const filling = [];
    /** @type {GPUBuffer[]} */
    const buffers = [];
    const bytes = { weights: 0, memory: 0 };
    /** @type {(k: number) => GPUBuffer} */
    const buffer = (k) => {
      if (!buffers[k]) {
        const [size, start, length] = variant.buffers[k];
        buffers[k] = gpu.buffer(size);
        bytes.memory += size;
        bytes.weights += length;
        filling.push([start, start + length, (at, part) => gpu.queue.writeBuffer(buffers[k], at, part)]);
      }
      return buffers[k];
    };
    /** @type {Record<string, import("./method.js").Method>} */
    const methods = /** @type {any} */ ({ __proto__: null });
    gpu.device.pushErrorScope("out-of-memory");
    for (const json of variant.methods) {
      if (options.methods?.includes(json.name) === false) continue;
      const plans = json.plans.map((/** @type {any} */ plan) =>
        openPlan(gpu, plan, variant.kernels, buffer, !plan.fixed && sizes.openSizes(plan)),
      );
      const hosted = json.direct ? null : host.open(gpu, json, plans, head.blobs, filling);
      methods[json.name] = openMethod(gpu, json, plans, hosted);
    }
    if (await gpu.device.popErrorScope())
      throw new OutOfMemory("too little GPU memory for this model: close other pages that use it");

    /** @param {any[]} plans @param {AbortSignal} [stop] @param {Options["onProgress"]} [to] */
    const compile = async (plans, stop, to) => {
      const kernels = plans.flatMap((p) => p.kernels);
      const compiled = telling("kernels", to);
      let done = 0;
      await Promise.all(
        kernels.map(async (kernel) => {
          await gpu.compile(kernel);
          stop?.throwIfAborted();
          compiled(++done, kernels.length);
        }),
      );
    };
    const names = Object.keys(methods);
    const all = Object.values(methods);
    const plans = all.flatMap((m) => m.plans);
    const { vendor, architecture, description, isFallbackAdapter: software } = adapter.info;
    /** @param {string} [name] */
    const method = (name = methods.forward ? "forward" : names[0]) => {
      gpu.check();
      const found = methods[name];
      if (!found) throw new InvalidInput(`there is no method ${name}, only ${names.join(", ")}`);
      return found;
    };
    const program = {
      /** The names of what it can run. */
      methods: names,
      /** What it was compiled for. */
      variant: chosen.target,
      adapter: { vendor, architecture, description, software },
      site,
      bytes,
      /** Resolves when the GPU is lost, with why. */
      lost: gpu.lost,
      method,

      /** What a method takes and gives. @param {string} [name] */
      signature: (name) => method(name).signature,

      /**
       * Runs a method. Inputs are tensors, typed arrays, (nested) lists or numbers.
       * @param {any[]} inputs
       * @param {{method?: string, signal?: AbortSignal}} [options]
       * @returns {Promise<any[]>}
       */
      async run(inputs, { method: name, signal: stop } = {}) {
        stop?.throwIfAborted();
        return method(name).run(inputs, stop);
      },

      /**
       * Compiles all kernels, so that no call has to. Without an `onProgress`, that of `load` is told.
       * @param {{method?: string, signal?: AbortSignal, onProgress?: (progress: Progress) => void}} [options]
       */
      prepare: ({ method: name, signal: stop, onProgress: told } = {}) =>
        compile(name ? method(name).plans : plans, stop, told),

      /** States back to their first values, before the next run. @param {string} [name] of a method */
      reset: (name) => Promise.all((name ? [method(name)] : all).map((m) => m.reset())),

      /**
       * Runs what the site brought, and compares with what it should give.
       * @returns {Promise<{ok: boolean, error: number, tolerance: number}>} the error relative to the largest value
       */
      selfcheck: async () => (await import("./check.js")).check(/** @type {any} */ (program), base, options.fetch),

      /** Gives the GPU's memory back. */
      dispose: gpu.dispose,
    };

    const compiling = compile(plans.filter((p) => p.fixed), signal); // what every size needs
    compiling.catch(() => {});
    await deliver(base, head.shards, filling, {
      ...options,
      onBytes: telling("weights"),
      pause() {
        gpu.check();
        return gpu.queue.onSubmittedWorkDone(); // no more than a shard is on its way to the GPU
      },
    });
    await compiling;
    await program.reset();
    signal?.throwIfAborted();
    gpu.check();
    return program;
  } catch (error) {
    gpu.dispose();
    throw error;
  }
}
