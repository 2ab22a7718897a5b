/** A plan on the GPU: one compute pass and one readback per run. */

import { ARRAYS, count } from "./dtypes.js";
import { InvalidInput } from "./errors.js";

/** @typedef {import("./gpu.js").Resident} Resident */
/** @typedef {ReturnType<typeof openPlan>} Plan */
/**
 * A plan resolved for its inputs. `key`: determines the dispatches; `number`: returns the value of a number of the plan;
 * `writes`: words to upload before the run.
 * @typedef {{key: string, family: any, dispatches: any[], number: (n: any) => number,
 *   writes: [buffer: number, at: number, words: any][]}} ResolvedRun
 */

/**
 * Returns a plan that can run.
 * @param {import("./gpu.js").Gpu} gpu
 * @param {any} json
 * @param {any[]} kernels of the variant
 * @param {(k: number) => GPUBuffer} buffer returns a buffer by its number in the variant
 * @param {((inputs: any[]) => ResolvedRun) | false} [resolve] unless all sizes are fixed
 */
export function openPlan({ device, queue, check, compile, finish }, json, kernels, buffer, resolve) {
  /** @type {GPUBuffer[]} */
  const buffers = json.at.map(buffer);
  const own = json.kernels.map((/** @type {number} */ k) => kernels[k]);
  const [only] = json.families;
  let runs = 0;
  /** The key of `launches`. @type {string} */
  let key;
  /** @type {[pipeline: GPUComputePipeline, group: GPUBindGroup, x: number, y: number][]} */
  let launches;

  return {
    fixed: json.fixed,
    kernels: own,

    /**
     * Starts a run. Returns all outputs on the GPU; `done` resolves with the values of the outputs `read`.
     * @param {any[]} inputs ints, tensors on the GPU, or `{shape, data}` with data in the GPU's types, padded to words
     * @param {number[]} read
     * @returns {Promise<{outputs: any[], done: Promise<any[]>}>}
     */
    async run(inputs, read) {
      check();
      if (inputs.some((input) => input.gone?.()))
        throw new InvalidInput("a tensor on the GPU is gone: its method ran again");
      const {
        family = only,
        dispatches = only.steps.flatMap((/** @type {any} */ [choice]) => choice[1]),
        number = (n) => n,
        writes = [],
        key: newKey = "",
      } = resolve ? resolve(inputs) : /** @type {Partial<ResolvedRun>} */ ({});
      for (const [to, at, words] of writes) queue.writeBuffer(buffers[to], at, words);
      if (newKey !== key) {
        launches = await Promise.all(
          dispatches.map(async (/** @type {any} */ dispatch) => {
            const [kernel, bindings, [x, y]] = dispatch;
            const pipeline = await compile(own[kernel]);
            dispatch.group ??= device.createBindGroup({
              layout: pipeline.getBindGroupLayout(0),
              entries: bindings.map((/** @type {number[]} */ [b, offset, size], /** @type {number} */ binding) => ({
                binding,
                resource: { buffer: buffers[b], offset, size },
              })),
            });
            return [pipeline, dispatch.group, number(x), number(y)];
          }),
        );
        key = newKey;
      }
      const run = ++runs;
      const outputs = family.outputs.map((/** @type {any} */ o) => {
        const { dtype } = o;
        if (!dtype) return number(o);
        const shape = o.shape.map(number);
        const size = (count(shape) * ARRAYS[dtype].BYTES_PER_ELEMENT + 3) & ~3; // whole words
        return { gpuBuffer: buffers[o.buffer], dtype, shape, size, gone: () => run !== runs };
      });
      const encoder = device.createCommandEncoder();
      inputs.forEach(({ gpuBuffer, size, data }, k) => {
        const to = buffers[json.inputs[k].buffer];
        if (gpuBuffer) encoder.copyBufferToBuffer(gpuBuffer, 0, to, 0, size);
        else if (data) queue.writeBuffer(to, 0, data.buffer);
      });
      const pass = encoder.beginComputePass();
      for (const [pipeline, group, x, y] of launches) {
        pass.setPipeline(pipeline);
        pass.setBindGroup(0, group);
        pass.dispatchWorkgroups(x, y);
      }
      pass.end();
      for (const [from, to, size] of json.copies) encoder.copyBufferToBuffer(buffers[from], 0, buffers[to], 0, size);
      const done = finish(encoder, read.map((k) => outputs[k]));
      done.catch(() => {}); // the error reaches callers that await `done`
      return { outputs, done };
    },

    /** Restores the initial states. */
    reset() {
      const encoder = device.createCommandEncoder();
      for (const [from, to] of json.resets)
        if (from === null) encoder.clearBuffer(buffer(to));
        else encoder.copyBufferToBuffer(buffer(from), 0, buffer(to), 0, buffer(to).size);
      queue.submit([encoder.finish()]);
      runs++;
    },
  };
}
