/** A plan on a GPU: numbers, parameters, one compute pass, one read back. */

import { arrayOf, count } from "./dtypes.js";
import { IndexOutOfRange, InvalidInput } from "./errors.js";
import { evaluate } from "./rows.js";

/** @typedef {import("./gpu.js").Resident} Resident */
/** @typedef {ReturnType<typeof openPlan>} Plan */

/**
 * @param {import("./gpu.js").Gpu} gpu
 * @param {any} json
 * @param {any[]} kernels those of the variant
 * @param {(k: number) => GPUBuffer} buffer by its number in the variant
 */
export function openPlan({ device, queue, check, compile, finish }, json, kernels, buffer) {
  /** @type {GPUBuffer[]} */
  const buffers = json.at.map(buffer);
  let runs = 0;
  /** The sizes and ints that `family` and `launches` are for. @type {string} */
  let key;
  /** @type {any} */
  let family;
  /** @type {[pipeline: GPUComputePipeline, group: GPUBindGroup, x: number, y: number][]} */
  let launches;

  /** What is launched at these sizes, with its parameters on the GPU. @param {Float64Array} values @param {any[]} inputs */
  async function choose(values, inputs) {
    /** @type {(options: any[]) => any} */
    const first = (options) => options.find((o) => (o.guards ?? o[0]).every((/** @type {number} */ g) => values[g])) ?? [];
    const found = first(json.families);
    const steps = found.steps?.map(first);
    const refusal = found.refusal || steps?.find((/** @type {any} */ step) => step[2])?.[2];
    if (refusal || !steps?.every((/** @type {any} */ step) => step[0]))
      throw new InvalidInput(refusal || `the model was compiled without sizes ${JSON.stringify(inputs.map((i) => i.shape ?? i))}: name them with --size`);
    const ready = steps.flatMap((/** @type {any} */ [, dispatches]) => dispatches).map(async (/** @type {any} */ dispatch) => {
      const [kernel, bindings, grid, , , , , patches] = dispatch;
      const [x, y] = grid.map((/** @type {any} */ n) => values[n[0]] ?? n);
      if (!x || !y) return [];
      const { pipeline, layout } = await compile(kernels[json.kernels[kernel]]);
      dispatch.group ??= device.createBindGroup({
        layout,
        entries: bindings.map((/** @type {number[]} */ [b, offset, size], /** @type {number} */ binding) => ({
          binding,
          resource: { buffer: buffers[b], offset, size },
        })),
      });
      const params = bindings.find((/** @type {number[]} */ [b]) => json.buffers[b].role === "params");
      for (const [word, [row], kind] of patches)
        queue.writeBuffer(buffers[params[0]], 4 * word, (kind === "f32" ? Float32Array : Uint32Array).of(values[row]));
      return [[pipeline, dispatch.group, x, y]];
    });
    launches = (await Promise.all(ready)).flat();
    family = found;
  }

  return {
    json,
    kernels: json.kernels.map((/** @type {number} */ k) => kernels[k]),

    /**
     * One run: its outputs on the GPU, and, when it is done, the values of those that are read.
     * @param {any[]} inputs ints, tensors on the GPU, or `{shape, data}` with data in the GPU's types and whole words
     * @param {number[]} read
     * @returns {Promise<{outputs: any[], done: Promise<any[]>}>}
     */
    async run(inputs, read) {
      check();
      if (inputs.some((given) => given.gone?.())) throw new InvalidInput("a tensor on the GPU is gone: its method ran again");
      const values = evaluate(json.rows, inputs);
      const now = json.keys.map((/** @type {number} */ row) => values[row]).join();
      if (now !== key) {
        key = ""; // parameters are about to change
        await choose(values, inputs);
        key = now;
      }
      /** @type {(n: any) => number} */
      const number = (n) => values[n[0]] ?? n;
      for (const { kind, source, low, end, text, node, moves = [] } of family.bounds ?? []) {
        const [least, past] = [low, end].map(number);
        const all = kind === "int" ? [number(source)] : kind === "input" && inputs[source].data;
        if (!all || moves.some((/** @type {any} */ m) => m.op !== "view")) continue; // the kernels stay in their buffers
        const bad = all.findIndex((/** @type {number} */ n) => !(n >= least && n < past));
        if (bad >= 0)
          throw new IndexOutOfRange(
            `${text.replace("{}", all[bad]).replace("{}", bad)} is out of range for ${node}, which takes ${least} to ${past - 1}`,
          );
      }
      if (json.syms !== null) {
        const words = (family.words ?? []).map(number);
        const wide = words.find((/** @type {number} */ n) => n !== (n | 0));
        if (wide !== undefined) throw new InvalidInput(`${wide} does not fit int32, which the GPU computes with`);
        queue.writeBuffer(buffers[json.syms], 0, Int32Array.from(words));
      }
      const turn = ++runs;
      const outputs = family.outputs.map((/** @type {any} */ o) => {
        const { dtype } = o;
        if (!dtype) return number(o);
        const shape = o.shape.map(number);
        const size = (count(shape) * arrayOf(dtype).BYTES_PER_ELEMENT + 3) & ~3; // whole words
        return { gpuBuffer: buffers[o.buffer], dtype, shape, size, gone: () => turn !== runs };
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
      const done = finish(encoder, read.map((k) => outputs[k]).filter((o) => o.gpuBuffer));
      done.catch(() => {}); // whoever wants the result hears of it
      return { outputs, done };
    },

    /** States back to their first bytes. */
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
