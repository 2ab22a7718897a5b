/** The visitor's GPU: which variant of a bundle it can run, its device, pipelines and buffers. */

import { ARRAYS, count } from "./dtypes.js";
import { DeviceLost, ExecutionError } from "./errors.js";

/** @typedef {Awaited<ReturnType<typeof openGpu>>} Gpu */
/**
 * A tensor on the GPU. `size`: in bytes, whole words; `gone`: whether its plan ran again.
 * @typedef {{gpuBuffer: GPUBuffer, dtype: string, shape: number[], size: number, gone: () => boolean}} Resident
 */

/**
 * The first variant that the adapter can run; software adapters prefer those that were made for them.
 * @param {GPUAdapter} adapter
 * @param {any[]} variants
 * @param {{variant?: string, memory?: number}} options
 */
export async function chooseVariant(adapter, variants, options) {
  const { limits, features, info } = /** @type {any} */ (adapter);
  const { variant, memory } = options;
  const named = variants.filter(({ name }) => (variant ?? name) === name);
  const able = named.filter(
    ({ limits: least, features: wanted, info: told, bytes }) =>
      Object.keys(least).every((name) => limits[name] >= least[name]) &&
      Object.keys(told).every((name) => info[name] === told[name]) &&
      wanted.every((/** @type {string} */ name) => features.has(name)) &&
      !(bytes.buffers > /** @type {number} */ (memory)),
  );
  if (!able[0]) throw (await import("./why.js")).noVariant(adapter, named, options);
  return able.find(({ software }) => software === info.isFallbackAdapter) ?? able[0];
}

/**
 * A device with what a variant needs.
 * @param {GPUAdapter} adapter
 * @param {any} variant
 * @param {any[]} layouts of kernels
 * @param {GPUDevice} [given] the caller's own
 */
export async function openGpu(adapter, { limits, features }, layouts, given) {
  const device = given ?? (await adapter.requestDevice({ requiredFeatures: features, requiredLimits: limits }));
  const { queue } = device;
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
    ({ message }) => (ended ??= new DeviceLost(`the GPU is gone (${message}): load again`)),
  );

  /** Throws what ended it. */
  const check = () => {
    if (ended) throw ended;
  };

  /** @type {(size: number, usage?: number) => GPUBuffer} */
  const buffer = (size, usage = 128 | 64 | 8 | 4) => { // storage, uniform, copied to and from
    const made = device.createBuffer({ size, usage });
    buffers.push(made);
    return made;
  };

  return {
    device,
    queue,
    lost,
    check,
    buffer,

    /**
     * What `work` gives, after all that came before.
     * @template T
     * @param {() => Promise<T>} work
     * @returns {Promise<T>}
     */
    inTurn(work) {
      const result = turns.then(work);
      turns = result.catch(() => {});
      return result;
    },

    /** Compiles a kernel, once. @param {any} kernel @returns {Promise<GPUComputePipeline>} */
    compile: (kernel) =>
      (kernel.compiled ??= device
        .createComputePipelineAsync({
          layout: device.createPipelineLayout({
            bindGroupLayouts: [device.createBindGroupLayout(layouts[kernel.layout])],
          }),
          compute: { module: device.createShaderModule({ code: kernel.enable + kernel.wgsl }) },
        })
        .catch((error) => {
          throw ended ?? new ExecutionError(`kernel ${kernel.name} does not compile: ${error.message}`);
        })),

    /**
     * Submits, and gives what some outputs are then: arrays in the GPU's types, and ints.
     * @param {GPUCommandEncoder} encoder
     * @param {any[]} outputs
     * @returns {Promise<any[]>}
     */
    async finish(encoder, outputs) {
      let total = 0;
      const places = outputs.map(({ size = 0 }) => (total += size) - size);
      let to = staging.pop();
      if (!to || to.size < total) {
        to?.destroy();
        to = buffer(total, 8 | 1); // copied to, mapped
      }
      outputs.forEach(({ gpuBuffer, size }, k) => {
        if (size) encoder.copyBufferToBuffer(gpuBuffer, 0, to, places[k], size);
      });
      device.pushErrorScope("validation");
      queue.submit([encoder.finish()]);
      const complaint = device.popErrorScope();
      await to.mapAsync(1, 0, total).catch(async () => (await complaint) || ended || lost);
      const wrong = await complaint;
      check();
      if (wrong) throw new ExecutionError(`the GPU failed: ${wrong.message}`);
      const mapped = to.getMappedRange(0, total);
      const found = outputs.map((o, k) =>
        o.dtype ? new ARRAYS[o.dtype](mapped, places[k], count(o.shape)).slice() : o,
      );
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
