/** ptegpu in a browser: runs what `ptegpu web` makes of a PyTorch program, on the visitor's GPU. */

import { Tensor, arrayOf, count, fromDevice } from "./dtypes.js";
import { BadBundle, InvalidInput } from "./errors.js";
import { Gpu, chooseVariant, describe, findAdapter } from "./gpu.js";
import { Method, inOnePlan, literal } from "./method.js";
import { Plan, Resident } from "./plan.js";
import { fetchJson, pieces } from "./weights.js";

export * from "./errors.js";
export { Tensor };
export { Resident, arrayOf, count, fetchJson, fromDevice, literal }; // for the parts that are loaded when they are needed

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
 * @property {string | null} [cache] what the browser's caches for weights are named after, one for each site; null: none
 * @property {typeof fetch} [fetch]
 * @property {AbortSignal} [signal]
 * @property {(progress: Progress) => void} [onProgress]
 */

/** The URL of a folder, with / at its end, by itself or by a file in it. @param {string | URL} url */
export const folderOf = (url) =>
  new URL(url, globalThis.location?.href).href.replace(/[^/]*\.json$|\/?$/, (end) => (end[0] === "/" || !end ? "/" : ""));

/**
 * Loads a program: the plan first, then weights and kernels side by side.
 * @param {string | URL} url of the folder
 * @param {Options} [options]
 * @returns {Promise<Program>}
 */
export async function load(url, options = {}) {
  const { signal, fetch, onProgress = () => {} } = options;
  const base = folderOf(url);
  const adapter = await findAdapter(options);
  onProgress({ stage: "plan", done: 0, total: 2 });
  const head = await fetchJson(base + "bundle.json", { signal, fetch });
  if (head.format !== "ptegpu-bundle" || head.version !== 2)
    throw new BadBundle(`${base}bundle.json is not a bundle that this runner knows: make the site again`);
  const chosen = chooseVariant(adapter, head.variants, options);
  const [name, , sha256] = chosen.file;
  onProgress({ stage: "plan", done: 1, total: 2 });
  const [variant, site] = await Promise.all([
    fetchJson(base + name, { signal, fetch, sha256 }),
    options.site ?? fetchJson(base + "site.json", { signal, fetch }).catch(() => null),
  ]);
  signal?.throwIfAborted();
  const gpu = await Gpu.open(adapter, chosen.target, options.device);
  try {
    const program = new Program(gpu, base, chosen.target, describe(adapter), site, options);
    await program.fill(variant, head, options);
    return program;
  } catch (error) {
    gpu.dispose();
    throw error;
  }
}

/** A program on the GPU. Make it with `load`. */
export class Program {
  /** @type {Map<string, Method>} */
  #methods = new Map();
  #options;
  #base;

  /** @param {Gpu} gpu @param {string} base @param {any} variant @param {any} adapter @param {any} site @param {Options} options */
  constructor(gpu, base, variant, adapter, site, options) {
    this.gpu = gpu;
    this.#base = base;
    this.#options = options;
    this.variant = variant;
    this.adapter = adapter;
    this.site = site;
    this.bytes = { weights: 0, memory: 0 };
    /** Resolves when the GPU is lost, with why. */
    this.lost = gpu.lost;
  }

  /** The names of what it can run. */
  get methods() {
    return [...this.#methods.keys()];
  }

  /** @param {string} [name] @returns {Method} */
  method(name = this.methods.includes("forward") ? "forward" : this.methods[0]) {
    this.gpu.check();
    const found = this.#methods.get(name);
    if (!found) throw new InvalidInput(`there is no method ${name}; there are ${this.methods.join(", ")}`);
    return found;
  }

  /** What a method takes and gives. @param {string} [method] */
  signature(method) {
    return this.method(method).signature();
  }

  /**
   * Runs a method. Inputs are tensors, typed arrays, (nested) lists or numbers.
   * @param {any[]} inputs
   * @param {{method?: string, signal?: AbortSignal}} [options]
   * @returns {Promise<any[]>}
   */
  async run(inputs, { method, signal } = {}) {
    signal?.throwIfAborted();
    return this.method(method).run(inputs, signal);
  }

  /**
   * Compiles all kernels, so that no call has to.
   * @param {{method?: string, signal?: AbortSignal, onProgress?: (progress: Progress) => void}} [options]
   */
  async prepare({ method, signal, onProgress } = {}) {
    await this.#compile(method ? [this.method(method)] : [...this.#methods.values()], false, onProgress, signal);
  }

  /** States back to their first values. @param {string} [method] */
  reset(method) {
    for (const m of method ? [this.method(method)] : this.#methods.values()) m.reset();
  }

  /**
   * Runs what the site brought, and compares with what it should give.
   * @returns {Promise<{ok: boolean, error: number, tolerance: number}>} the error relative to the largest value
   */
  async selfcheck() {
    return (await import("./check.js")).check(this, this.#base, this.#options.fetch ?? fetch);
  }

  /** Gives the GPU's memory back. */
  dispose() {
    this.gpu.dispose();
    this.#methods.clear();
  }

  /**
   * Makes buffers, compiles what every size needs, and brings the weights.
   * @param {any} variant
   * @param {any} head
   * @param {Options} options
   */
  async fill(variant, head, { methods, signal, fetch, cache, onProgress = () => {} }) {
    const { gpu } = this;
    const constants = new Map();
    /** Who takes the bytes of a blob. @type {Map<number, ((bytes: Uint8Array, at: number) => void)[]>} */
    const takers = new Map();
    /** The blobs that buffers begin with. @type {Map<GPUBuffer, number>} */
    const filling = new Map();
    /** @type {(blob: number, take: (bytes: Uint8Array, at: number) => void) => void} */
    const takes = (blob, take) => takers.set(blob, [...(takers.get(blob) ?? []), take]);
    /** Bytes that the host needs. @type {(blob: number) => Uint8Array} */
    const kept = (blob) => {
      const bytes = new Uint8Array(head.blobs[blob][1]);
      takes(blob, (part, at) => bytes.set(part, at));
      return bytes;
    };
    const all = variant.methods.filter((/** @type {any} */ m) => !methods || methods.includes(m.name));
    const host = all.every(inOnePlan) ? null : await import("./host.js");
    await gpu.guarded(() => {
      for (const json of all) {
        const plans = json.plans.map((/** @type {any} */ p) => new Plan(gpu, p, variant.kernels, constants));
        const method = new Method(json, plans);
        if (!method.inOnePlan) (method.host = host)?.check(json);
        this.#methods.set(json.name, method);
        json.slots.forEach((/** @type {any} */ s, /** @type {number} */ k) => s.data != null && method.data.set(k, kept(s.data)));
        for (const { json: { buffers, params }, buffers: made, states } of plans) {
          const images = params.values();
          buffers.forEach((/** @type {any} */ { role, blob }, /** @type {number} */ k) => {
            const first = role === "params" ? images.next().value : blob;
            if (role === "state") states.set(made[k], blob == null ? null : kept(blob));
            else if (first != null) filling.set(made[k], first);
          });
        }
      }
    });
    for (const [buffer, blob] of filling) takes(blob, (part, at) => gpu.write(buffer, at, part));
    this.bytes.memory = gpu.bytes;
    const compiling = this.#compile([...this.#methods.values()], true, onProgress, signal);
    compiling.catch(() => {});
    const blobs = [...takers.keys()].sort((a, b) => head.blobs[a][0] - head.blobs[b][0]);
    /** @type {[number, number][]} */
    const ranges = blobs.map((k) => [head.blobs[k][0], head.blobs[k][0] + head.blobs[k][1]]);
    /** @type {(done: number, total: number) => void} */
    const onBytes = (done, total) => onProgress({ stage: "weights", done, total });
    let waiting = 0;
    for await (const { of, at, bytes } of pieces(this.#base, head.shards, ranges, { fetch, cache, signal, onBytes })) {
      gpu.check();
      takers.get(blobs[of])?.forEach((take) => take(bytes, at));
      this.bytes.weights += bytes.length;
      if ((waiting += bytes.length) > 2 ** 24) {
        await gpu.device.queue.onSubmittedWorkDone(); // no more than that is on its way
        waiting = 0;
      }
    }
    await compiling;
    signal?.throwIfAborted();
    gpu.check();
    this.reset();
  }

  /** @param {Method[]} methods @param {boolean} surely only what every size needs @param {(progress: Progress) => void} [told] @param {AbortSignal} [signal] */
  async #compile(methods, surely, told, signal) {
    const kernels = methods.flatMap((m) => m.plans.flatMap((p) => (surely && p.json.rows.length ? [] : p.kernels)));
    let done = 0;
    await this.gpu.compile(kernels, () => {
      signal?.throwIfAborted();
      told?.({ stage: "kernels", done: ++done, total: kernels.length });
    });
  }
}
