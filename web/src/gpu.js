/** The visitor's GPU: which variant of a bundle it can run, its device, pipelines and buffers. */

import { DeviceLost, ExecutionError, MissingFeature, NoAdapter, NoWebGPU, OutOfMemory } from "./errors.js";

/** What a target has where it does not say otherwise: the limits that every browser grants. */
const DEFAULTS = {
  name: "generic",
  max_invocations: 256,
  max_shared_bytes: 16384,
  max_storage_buffers: 8,
  max_binding_bytes: 134217728,
  max_buffer_bytes: 268435456,
};

/** The limits of a device by those of a target. @type {Record<string, (keyof GPUSupportedLimits)[]>} */
const LIMITS = {
  max_invocations: ["maxComputeInvocationsPerWorkgroup", "maxComputeWorkgroupSizeX"],
  max_shared_bytes: ["maxComputeWorkgroupStorageSize"],
  max_storage_buffers: ["maxStorageBuffersPerShaderStage"],
  max_binding_bytes: ["maxStorageBufferBindingSize"],
};

/** @type {Record<string, string>} */
const FEATURES = { f16: "shader-f16", subgroups: "subgroups", matrices: "chromium-experimental-subgroup-matrix" };

/** What kernels have to enable, where it is not called as what they need. @type {Record<string, string>} */
const ENABLE = {
  matrices: "chromium_experimental_subgroup_matrix;\ndiagnostic(off, chromium.subgroup_matrix_uniformity)",
};

/** @type {Record<string, GPUBufferBindingType>} */
const ACCESS = { read: "read-only-storage", write: "storage", uniform: "uniform" };

/** Bytes as people read them. @type {(n: number) => string} */
export const sized = (n) => (n < 1e6 ? `${Math.ceil(n / 1e3)} kB` : `${(n / 1e6).toFixed(n < 1e8 ? 1 : 0)} MB`);

/**
 * The adapter; NoWebGPU or NoAdapter, where there is none.
 * @param {{gpu?: GPU, adapter?: GPUAdapter, powerPreference?: GPUPowerPreference}} options
 * @returns {Promise<GPUAdapter>}
 */
export async function findAdapter({ gpu = globalThis.navigator?.gpu, adapter, powerPreference = "high-performance" }) {
  if (adapter) return adapter;
  if (!gpu)
    throw new NoWebGPU(
      globalThis.isSecureContext === false
        ? "WebGPU needs a secure page: open it by https:// or on localhost"
        : "this browser has no WebGPU: use a current Chrome, Edge, Safari or Firefox",
    );
  const found = await gpu.requestAdapter({ powerPreference });
  if (!found) throw new NoAdapter("no GPU is offered to this page: turn on hardware acceleration, or update the driver");
  return found;
}

/** What is known of an adapter. @type {(adapter: GPUAdapter) => {vendor: string, architecture: string, description: string, software: boolean}} */
export function describe(adapter) {
  const { vendor = "", architecture = "", description = "", isFallbackAdapter } = /** @type {any} */ (adapter.info ?? {});
  const software = isFallbackAdapter ?? /** @type {any} */ (adapter).isFallbackAdapter;
  const known = /swiftshader|llvmpipe|lavapipe|software|basic render/i.test(`${architecture} ${description}`);
  return { vendor, architecture, description, software: Boolean(software || known) };
}

/** What an adapter lacks to run a variant, in words. @type {(adapter: GPUAdapter, target: any) => string[]} */
function lacks(adapter, target) {
  const found = [];
  for (const [name, limits] of Object.entries(LIMITS))
    for (const limit of limits)
      if (target[name] > /** @type {number} */ (adapter.limits[limit])) found.push(`${limit} of ${target[name]}`);
  for (const [name, feature] of Object.entries(FEATURES))
    if (target[name] && target[name].length !== 0 && !adapter.features.has(feature)) found.push(feature);
  const { subgroupMinSize: least, subgroupMaxSize: most } = /** @type {any} */ (adapter.info ?? {});
  const size = target.subgroups && target.subgroup_size;
  if (size && !(least === size && most === size)) found.push(`subgroups of ${size}`);
  return found;
}

/**
 * The first variant that the adapter can run; software adapters prefer those that were made for them.
 * @param {GPUAdapter} adapter
 * @param {any[]} variants
 * @param {{variant?: string, memory?: number}} options
 */
export function chooseVariant(adapter, variants, { variant, memory = Infinity }) {
  const software = describe(adapter).software;
  const all = variants.map((v) => ({ ...v, target: { ...DEFAULTS, ...v.target } }));
  /** @type {(v: any) => number} */
  const rank = (v) => Number((v.target.device_class?.name === "software") !== software);
  const wanted = all.filter((v) => !variant || v.target.name === variant).sort((a, b) => rank(a) - rank(b));
  const chosen = wanted.find((v) => !lacks(adapter, v.target).length);
  if (!chosen) {
    const why = wanted.map((v) => `${v.target.name}: ${lacks(adapter, v.target).join(", ")}`).join("; ");
    throw new MissingFeature(`this GPU lacks what the model needs (${why || `there is no variant ${variant}`})`);
  }
  const { buffers, largest } = chosen.bytes;
  const most = adapter.limits.maxBufferSize;
  if (buffers > memory) throw new OutOfMemory(`the model takes ${sized(buffers)} of GPU memory, the budget is ${sized(memory)}`);
  if (largest > most) throw new OutOfMemory(`the model needs a buffer of ${sized(largest)}, this GPU gives ${sized(most)} at most`);
  return chosen;
}

/** A device with what a variant needs; its pipelines and its buffers. */
export class Gpu {
  /** @param {GPUDevice} device @param {boolean} own whether to destroy it at the end */
  constructor(device, own) {
    this.device = device;
    this.own = own;
    this.bytes = 0; // of all buffers
    this.disposed = false;
    /** @type {Promise<void> | null} */
    this.tail = null; // what waits to be submitted
    /** @type {Error | null} */
    this.gone = null;
    /** @type {GPUBuffer[]} */
    this.buffers = [];
    /** By kernel. @type {Map<any, GPUComputePipeline>} */
    this.compiled = new Map();
    /** @type {Map<any, Promise<GPUComputePipeline>>} */
    this.compiling = new Map();
    /** @type {Map<string, [GPUBindGroupLayout, GPUPipelineLayout]>} */
    this.layouts = new Map();
    /** @type {Promise<Error>} */
    this.lost = device.lost.then(({ message }) => {
      this.gone = this.disposed
        ? new ExecutionError("the program was disposed")
        : new DeviceLost(`the GPU is gone (${message || "no reason given"}): load the model again`);
      return this.gone;
    });
  }

  /** @param {GPUAdapter} adapter @param {any} target @param {GPUDevice} [device] */
  static async open(adapter, target, device) {
    if (device) return new Gpu(device, false);
    /** @type {Record<string, number>} */
    const requiredLimits = { maxBufferSize: adapter.limits.maxBufferSize };
    for (const [name, limits] of Object.entries(LIMITS))
      for (const limit of limits) {
        const most = /** @type {number} */ (adapter.limits[limit]);
        requiredLimits[limit] = name === "max_binding_bytes" ? most : Math.min(most, target[name]);
      }
    const names = Object.entries(FEATURES).filter(([name]) => target[name] && target[name].length !== 0);
    const requiredFeatures = /** @type {GPUFeatureName[]} */ (names.map(([, feature]) => feature));
    return new Gpu(await adapter.requestDevice({ requiredFeatures, requiredLimits }), true);
  }

  /**
   * Does `work` after what waits before it, at once if nothing does and there is nothing to wait for.
   * @template T
   * @param {Promise<any> | null} ready
   * @param {() => Promise<T>} work
   * @returns {Promise<T>}
   */
  inTurn(ready, work) {
    if (!ready && !this.tail) return work();
    const begun = Promise.all([this.tail, ready]).then(() => [work()]);
    const tail = (this.tail = begun.then(
      () => {},
      () => {},
    ));
    tail.then(() => (this.tail = this.tail === tail ? null : this.tail));
    return begun.then(([result]) => result);
  }

  /** Raises what ended it. */
  check() {
    if (this.disposed) throw new ExecutionError("the program was disposed");
    if (this.gone) throw this.gone;
  }

  /** The error that a failure of the device means. @param {any} error */
  async explain(error) {
    await Promise.race([this.lost, new Promise((done) => setTimeout(done, this.disposed ? 0 : 50))]);
    return this.gone ?? new ExecutionError(`the GPU failed: ${error?.message ?? error}`);
  }

  /**
   * What `make` does, with the GPU's complaints as errors.
   * @template T
   * @param {() => T} make
   * @returns {Promise<T>}
   */
  async guarded(make) {
    const { device } = this;
    device.pushErrorScope("validation");
    device.pushErrorScope("out-of-memory");
    try {
      return make();
    } finally {
      const full = await device.popErrorScope();
      const wrong = await device.popErrorScope();
      this.check();
      if (full) throw new OutOfMemory("the GPU has too little memory for this model: close other pages that use it");
      if (wrong) throw await this.explain(wrong);
    }
  }

  /** @param {number} size @param {number} usage @returns {GPUBuffer} */
  buffer(size, usage) {
    const made = this.device.createBuffer({ size, usage });
    this.buffers.push(made);
    this.bytes += size;
    return made;
  }

  /** Bytes into a buffer; a tail of 1 to 3 is padded. @param {GPUBuffer} buffer @param {number} at @param {any} data */
  write(buffer, at, { buffer: from, byteOffset, byteLength }) {
    const whole = byteLength & ~3;
    this.device.queue.writeBuffer(buffer, at, from, byteOffset, whole);
    if (whole < byteLength) {
      const tail = new Uint8Array(4);
      tail.set(new Uint8Array(from, byteOffset + whole, byteLength - whole));
      this.device.queue.writeBuffer(buffer, at + whole, tail);
    }
  }

  /** @param {string[]} access */
  layout(access) {
    const key = access.join();
    let found = this.layouts.get(key);
    if (!found) {
      const entries = access.map((a, binding) => ({ binding, visibility: 4, buffer: { type: ACCESS[a] } }));
      const group = this.device.createBindGroupLayout({ entries });
      found = [group, this.device.createPipelineLayout({ bindGroupLayouts: [group] })];
      this.layouts.set(key, found);
    }
    return found;
  }

  /** Compiles what was not compiled yet, side by side. @param {any[]} kernels @param {() => void} [told] of each */
  async compile(kernels, told) {
    await Promise.all(
      kernels.map(async (kernel) => {
        if (!this.compiling.has(kernel)) this.compiling.set(kernel, this.#compile(kernel));
        this.compiled.set(kernel, await /** @type {any} */ (this.compiling.get(kernel)));
        told?.();
      }),
    );
  }

  /** @param {any} kernel @returns {Promise<GPUComputePipeline>} */
  async #compile({ name, wgsl, access, needs = [], entry = "main" }) {
    const { device } = this;
    const enable = needs.map((/** @type {string} */ n) => `enable ${ENABLE[n] ?? n};\n`).join("");
    try {
      const module = device.createShaderModule({ code: enable + wgsl });
      const layout = this.layout(access)[1];
      return await device.createComputePipelineAsync({ layout, compute: { module, entryPoint: entry } });
    } catch (error) {
      this.check();
      throw new ExecutionError(`kernel ${name} does not compile: ${/** @type {Error} */ (error).message}`);
    }
  }

  dispose() {
    this.disposed = true;
    for (const buffer of this.buffers) buffer.destroy();
    this.buffers = [];
    if (this.own) this.device.destroy();
  }
}
