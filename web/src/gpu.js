/** The visitor's GPU: which variant of a bundle it can run, its device, pipelines and buffers. */

import { count, arrayOf } from "./dtypes.js";
import { DeviceLost, ExecutionError, MissingFeature, NoAdapter, NoWebGPU, OutOfMemory } from "./errors.js";

/** @typedef {Awaited<ReturnType<typeof openGpu>>} Gpu */
/** @typedef {{pipeline: GPUComputePipeline, layout: GPUBindGroupLayout}} Compiled */
/** A tensor on the GPU. @typedef {{gpuBuffer: GPUBuffer, dtype: string, shape: number[], size: number, gone: () => boolean}} Resident */

/** @type {(bytes: number) => string} */
const megabytes = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;

/**
 * The adapter; NoWebGPU or NoAdapter, where there is none.
 * @param {{gpu?: GPU, adapter?: GPUAdapter, powerPreference?: GPUPowerPreference}} options
 * @returns {Promise<GPUAdapter>}
 */
export async function findAdapter({ gpu = globalThis.navigator?.gpu, adapter, powerPreference = "high-performance" }) {
  if (!gpu && !adapter)
    throw new NoWebGPU(
      globalThis.isSecureContext === false
        ? "WebGPU needs a secure page: open it by https:// or on localhost"
        : "this browser has no WebGPU: use a current Chrome, Edge, Safari or Firefox",
    );
  const found = adapter ?? (await gpu.requestAdapter({ powerPreference }));
  if (!found) throw new NoAdapter("this page gets no GPU: turn on hardware acceleration, or update the driver");
  return found;
}

/** What is known of an adapter. @type {(adapter: GPUAdapter) => {vendor: string, architecture: string, description: string, software: boolean}} */
export function describe(adapter) {
  const { vendor, architecture, description, isFallbackAdapter } = adapter.info;
  const software = isFallbackAdapter || /swiftshader|llvmpipe|lavapipe|software|basic render/i.test(architecture + description);
  return { vendor, architecture, description, software };
}

/**
 * The first variant that the adapter can run; software adapters prefer those that were made for them.
 * @param {GPUAdapter} adapter
 * @param {any[]} variants
 * @param {{variant?: string, memory?: number}} options
 */
export function chooseVariant(adapter, variants, { variant, memory = Infinity }) {
  const { limits, features, info } = /** @type {any} */ (adapter);
  /** What it lacks, in words. @type {(variant: any) => string[]} */
  const lacks = ({ limits: least, features: wanted, subgroups }) => [
    ...Object.keys(least).filter((name) => limits[name] < least[name]).map((name) => `${name} ${least[name]}`),
    ...wanted.filter((/** @type {string} */ name) => !features.has(name)),
    ...[info.subgroupMinSize, info.subgroupMaxSize].filter((size) => subgroups && size !== subgroups).map(() => `subgroups of ${subgroups}`),
  ];
  const named = variants.filter(({ name }) => (variant ?? name) === name);
  const able = named.filter((v) => !lacks(v).length);
  const chosen = able.find((v) => v.software === describe(adapter).software) ?? able[0];
  if (!chosen)
    throw new MissingFeature(
      `this GPU lacks what the model needs: ${named.map((v) => `${v.name}: ${lacks(v).join(", ")}`).join("; ") || `no variant ${variant}`}`,
    );
  const { buffers } = chosen.bytes;
  if (buffers > memory) throw new OutOfMemory(`the model takes ${megabytes(buffers)} of GPU memory, the budget is ${megabytes(memory)}`);
  return chosen;
}

/**
 * A device with what a variant needs.
 * @param {GPUAdapter} adapter
 * @param {any} variant
 * @param {GPUDevice} [given] the caller's own
 */
export async function openGpu(adapter, { limits, features }, given) {
  const device = given ?? (await adapter.requestDevice({ requiredFeatures: features, requiredLimits: limits }));
  /** @type {any} */
  let ended; // why it cannot be used any more
  /** @type {Promise<any>} */
  let turns = Promise.resolve();
  /** @type {GPUBuffer[]} */
  const buffers = [];
  /** @type {GPUBuffer[]} */
  const staging = []; // free ones
  /** @type {Promise<Error>} */
  const lost = device.lost.then(
    ({ message }) => (ended ??= new DeviceLost(`the GPU is gone (${message}): load the model again`)),
  );

  /** Throws what ended it. */
  const check = () => {
    if (ended) throw ended;
  };

  /** Throws what a complaint of the device means. @param {any} error @returns {Promise<never>} */
  const fail = async (error) => {
    await Promise.race([lost, new Promise((done) => setTimeout(done, 50))]);
    throw ended ?? new ExecutionError(`the GPU failed: ${error.message}`);
  };

  /** @type {(size: number, usage?: number) => GPUBuffer} */
  const buffer = (size, usage = 128 | 64 | 8 | 4) => { // storage, uniform, copied to and from
    const made = device.createBuffer({ size, usage });
    buffers.push(made);
    return made;
  };

  return {
    device,
    lost,
    check,
    buffer,

    /** What `work` gives, after all that came before. @template T @param {() => Promise<T>} work @returns {Promise<T>} */
    inTurn(work) {
      const result = turns.then(work);
      turns = result.catch(() => {});
      return result;
    },

    /** What `make` makes, if there is room for it. @param {() => void} make */
    async guarded(make) {
      device.pushErrorScope("validation");
      device.pushErrorScope("out-of-memory");
      make();
      const full = await device.popErrorScope();
      const wrong = await device.popErrorScope();
      check();
      if (full) throw new OutOfMemory("the GPU has too little memory for this model: close other pages that use it");
      if (wrong) await fail(wrong);
    },

    /** Compiles a kernel, once. @param {any} kernel @returns {Promise<Compiled>} */
    compile: (kernel) =>
      (kernel.compiled ??= (async ({ name, wgsl, access, needs = [], entry = "main" }) => {
        const enable = needs.map((/** @type {string} */ what) => `enable ${what};`).join("");
        const entries = access.map((/** @type {string} */ a, /** @type {number} */ binding) => ({
          binding,
          visibility: 4,
          buffer: { type: a === "uniform" ? a : a === "read" ? "read-only-storage" : "storage" },
        }));
        const layout = device.createBindGroupLayout({ entries });
        const pipeline = await device
          .createComputePipelineAsync({
            layout: device.createPipelineLayout({ bindGroupLayouts: [layout] }),
            compute: { module: device.createShaderModule({ code: enable + wgsl }), entryPoint: entry },
          })
          .catch((error) => {
            check();
            throw new ExecutionError(`kernel ${name} does not compile: ${error.message}`);
          });
        return { pipeline, layout };
      })(kernel)),

    /** Submits, and gives the values of some tensors then. @param {GPUCommandEncoder} encoder @param {Resident[]} tensors @returns {Promise<any[]>} */
    async finish(encoder, tensors) {
      let total = 0;
      const places = tensors.map(({ size }) => (total += size) - size);
      let to = staging.pop();
      if (!to || to.size < total) {
        to?.destroy();
        to = buffer(total, 8 | 1); // copied to, mapped
      }
      for (const [k, { gpuBuffer, size }] of tensors.entries()) encoder.copyBufferToBuffer(gpuBuffer, 0, to, places[k], size);
      device.pushErrorScope("validation");
      device.queue.submit([encoder.finish()]);
      const complaint = device.popErrorScope();
      try {
        await to.mapAsync(1, 0, total);
        const wrong = await complaint;
        if (wrong) throw wrong;
      } catch (error) {
        await fail(error);
      }
      const mapped = to.getMappedRange(0, total);
      const found = tensors.map(({ dtype, shape }, k) => new (arrayOf(dtype))(mapped, places[k], count(shape)).slice());
      to.unmap();
      staging.push(to);
      return found;
    },

    /** Gives the memory back. */
    dispose() {
      ended ??= new ExecutionError("the program was disposed");
      for (const made of buffers) made.destroy();
      if (!given) device.destroy();
    },
  };
}
