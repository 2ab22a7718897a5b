/** ptegpu in a browser: runs a PyTorch program from a site written by `ptegpu web` on the visitor's GPU. */

import { ARRAYS, Tensor } from "./dtypes.js";
import { BadBundle, InvalidInput, OutOfMemory } from "./errors.js";
import { chooseVariant, openGpu } from "./gpu.js";
import { fromDevice, openMethod } from "./method.js";
import { openPlan } from "./plan.js";
import { deliver, fetchJson } from "./weights.js";

export * from "./errors.js";
export { Tensor };
export { ARRAYS, fetchJson, fromDevice }; // for the modules that are loaded on demand

/** A program on the GPU. @typedef {Awaited<ReturnType<typeof load>>} Program */
/** @typedef {{stage: "plan" | "weights" | "kernels", done: number, total: number}} Progress of weights in bytes */
/**
 * @typedef {object} Options
 * @property {GPU} [gpu] where to request the adapter; by default `navigator.gpu`
 * @property {GPUAdapter} [adapter]
 * @property {GPUDevice} [device] your own device, which `dispose` does not destroy; also pass its adapter
 * @property {GPUPowerPreference} [powerPreference]
 * @property {string} [variant] the name of a variant; by default the first that fits
 * @property {string[]} [methods] loads only these
 * @property {any} [site] the contents of site.json, if already loaded
 * @property {number} [memory] limit of the model's GPU memory, in bytes
 * @property {string | null} [cache] name prefix of the browser caches, one cache per site; null: no cache
 * @property {typeof fetch} [fetch]
 * @property {AbortSignal} [signal]
 * @property {(progress: Progress) => void} [onProgress]
 */

/** Returns the URL of a folder, with / at the end, given it or a JSON file in it. @param {string | URL} url */
export const folderOf = (url) => new URL(url, globalThis.location?.href).href.replace(/\/?([^/]*\.json)?$/, "/");

/**
 * Loads a program: first the plan, then weights and kernels in parallel.
 * @param {string | URL} url of the folder
 * @param {Options} [options]
 */
export async function load(url, options = {}) {
  const { gpu: api = globalThis.navigator?.gpu, powerPreference = "high-performance", signal, onProgress } = options;
  const base = folderOf(url);
  /** @type {(stage: Progress["stage"], report?: Options["onProgress"]) => (done: number, total: number) => void} */
  const reporter = (stage, report = onProgress) => (done, total) => report?.({ stage, done, total });
  /** @type {(name: string, sha256?: string) => Promise<any>} */
  const get = (name, sha256) => fetchJson(base + name, options, sha256);

  const adapter = options.adapter ?? (await api?.requestAdapter({ powerPreference }));
  if (!adapter) throw (await import("./why.js")).noAdapter(api);
  reporter("plan")(0, 2);
  const head = await get("bundle.json");
  if (head.version !== 2) throw new BadBundle(`${base}bundle.json has version ${head.version}, but this runner needs 2`);
  const chosen = await chooseVariant(adapter, head.variants, options);
  reporter("plan")(1, 2);
  const [variant, site] = await Promise.all([
    get(chosen.file[0], chosen.file[2]),
    options.site ?? get("site.json").catch(() => null),
  ]);
  const gpu = await openGpu(adapter, chosen, variant.layouts, options.device);
  try {
    const host = variant.host && (await import("./host.js"));
    const sizes = variant.sizes && (await import("./sizes.js"));
    /** Readers of the bundle's data. @type {import("./weights.js").Reader[]} */
    const readers = [];
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
        readers.push([start, start + length, (at, part) => gpu.queue.writeBuffer(buffers[k], at, part)]);
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
      const hosted = json.direct ? null : host.open(gpu, json, plans, head.blobs, readers);
      methods[json.name] = openMethod(gpu, json, plans, hosted);
    }
    if (await gpu.device.popErrorScope())
      throw new OutOfMemory("not enough GPU memory for this model: close other pages that use the GPU");

    /** @param {any[]} plans @param {AbortSignal} [stop] @param {Options["onProgress"]} [onProgress] */
    const compile = async (plans, stop, onProgress) => {
      const kernels = plans.flatMap((p) => p.kernels);
      const report = reporter("kernels", onProgress);
      let done = 0;
      await Promise.all(
        kernels.map(async (kernel) => {
          await gpu.compile(kernel);
          stop?.throwIfAborted();
          report(++done, kernels.length);
        }),
      );
    };
    const names = Object.keys(methods);
    const allMethods = Object.values(methods);
    const plans = allMethods.flatMap((m) => m.plans);
    const { vendor, architecture, description, isFallbackAdapter: software } = adapter.info;
    /** @param {string} [name] */
    const method = (name = methods.forward ? "forward" : names[0]) => {
      gpu.check();
      if (!methods[name]) throw new InvalidInput(`unknown method ${name}; the methods are ${names.join(", ")}`);
      return methods[name];
    };
    const program = {
      /** The names of the loaded methods. */
      methods: names,
      /** The target that the variant was compiled for. */
      variant: chosen.target,
      adapter: { vendor, architecture, description, software },
      site,
      bytes,
      /** Resolves with the error when the GPU is lost. */
      lost: gpu.lost,
      method,

      /** Returns the inputs and outputs of a method. @param {string} [name] */
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
       * Compiles all kernels now, instead of in the first calls. By default, reports to the `onProgress` of `load`.
       * @param {{method?: string, signal?: AbortSignal, onProgress?: (progress: Progress) => void}} [options]
       */
      prepare: ({ method: name, signal: stop, onProgress } = {}) =>
        compile(name ? method(name).plans : plans, stop, onProgress),

      /** Restores the initial states of one method or of all. @param {string} [name] of a method */
      reset: (name) => Promise.all((name ? [method(name)] : allMethods).map((m) => m.reset())),

      /**
       * Runs the site's reference inputs and compares the results.
       * @returns {Promise<{ok: boolean, error: number, tolerance: number}>} the error relative to the largest value
       */
      selfcheck: async () => (await import("./check.js")).check(/** @type {any} */ (program), base, options.fetch),

      /** Frees the GPU's memory. */
      dispose: gpu.dispose,
    };

    const compiling = compile(plans.filter((p) => p.fixed), signal); // needed by every run
    compiling.catch(() => {});
    await deliver(base, head.shards, readers, {
      ...options,
      onBytes: reporter("weights"),
      pause() {
        gpu.check();
        return gpu.queue.onSubmittedWorkDone(); // at most one shard is in flight to the GPU
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
