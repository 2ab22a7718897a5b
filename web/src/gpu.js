/** The visitor's GPU: the choice of a bundle's variant, the device, pipelines and buffers. */

import { ARRAYS, count } from "./dtypes.js";
import { DeviceLost, ExecutionError } from "./errors.js";

/** @typedef {Awaited<ReturnType<typeof openGpu>>} Gpu */
/**
 * A tensor on the GPU. `size`: bytes, a multiple of 4; `gone`: returns whether a later run of its plan overwrote it.
 * @typedef {{gpuBuffer: GPUBuffer, dtype: string, shape: number[], size: number, gone: () => boolean}} Resident
 */

/**
 * Returns the first variant that the adapter can run; a software adapter prefers variants compiled for software.
 * @param {GPUAdapter} adapter
 * @param {any[]} variants
 * @param {{variant?: string, memory?: number}} options
 */
export async function chooseVariant(adapter, variants, options) {
  const { limits, features, info } = /** @type {any} */ (adapter);
  const { variant, memory } = options;
  const named = variants.filter(({ name }) => (variant ?? name) === name);
  const able = named.filter(
    ({ limits: minimums, features: required, info: expected, bytes }) =>
      Object.keys(minimums).every((name) => limits[name] >= minimums[name]) &&
      Object.keys(expected).every((name) => info[name] === expected[name]) &&
      required.every((/** @type {string} */ name) => features.has(name)) &&
      !(bytes.buffers > /** @type {number} */ (memory)),
  );
  if (!able[0]) throw (await import("./why.js")).noVariant(adapter, named, options);
  return able.find(({ software }) => software === info.isFallbackAdapter) ?? able[0];
}

/**
 * Opens a device with the features and limits that a variant needs.
 * @param {GPUAdapter} adapter
 * @param {any} variant
 * @param {any[]} layouts of kernels
 * @param {GPUDevice} [ownDevice] the caller's, used instead of a new one and not destroyed
 */
export async function openGpu(adapter, { limits, features }, layouts, ownDevice) {
  const device = ownDevice ?? (await adapter.requestDevice({ requiredFeatures: features, requiredLimits: limits }));
  const { queue } = device;
  /** @type {any} */
  let ended; // the error of all later calls
  /** @type {Promise<any>} */
  let turns = Promise.resolve();
  /** @type {GPUBuffer[]} */
  const buffers = [];
  /** @type {GPUBuffer[]} */
  const staging = []; // free ones
  /** @type {Promise<Error>} */
  const lost = device.lost.then(
    ({ message }) => (ended ??= new DeviceLost(`the GPU was lost (${message}): load again`)),
  );

  /** Throws if the device is lost or disposed. */
  const check = () => {
    if (ended) throw ended;
  };

  /** @type {(size: number, usage?: number) => GPUBuffer} */
  const buffer = (size, usage = 128 | 64 | 8 | 4) => { // storage, uniform, copied to and from
    const created = device.createBuffer({ size, usage });
    buffers.push(created);
    return created;
  };

  return {
    device,
    queue,
    lost,
    check,
    buffer,

    /**
     * Runs `work` after all earlier calls and returns its result.
     * @template T
     * @param {() => Promise<T>} work
     * @returns {Promise<T>}
     */
    inTurn(work) {
      const result = turns.then(work);
      turns = result.catch(() => {});
      return result;
    },

    /** Compiles a kernel, or returns its pipeline. @param {any} kernel @returns {Promise<GPUComputePipeline>} */
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
     * Submits the encoder and returns the values of outputs: arrays in the GPU's types, and ints.
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
      const validation = device.popErrorScope();
      await to.mapAsync(1, 0, total).catch(async () => (await validation) || ended || lost);
      const failure = await validation;
      check();
      if (failure) throw new ExecutionError(`the GPU failed: ${failure.message}`);
      const mapped = to.getMappedRange(0, total);
      const values = outputs.map((o, k) =>
        o.dtype ? new ARRAYS[o.dtype](mapped, places[k], count(o.shape)).slice() : o,
      );
      to.unmap();
      staging.push(to);
      return values;
    },

    /** Frees the GPU's memory. */
    dispose() {
      ended ??= new ExecutionError("the program was disposed");
      for (const created of buffers) created.destroy();
      if (!ownDevice) device.destroy();
    },
  };
}
