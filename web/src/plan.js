/** A plan on a GPU: numbers, parameters, one compute pass, one read back. */

import { arrayOf, cast, count } from "./dtypes.js";
import { IndexOutOfRange, InvalidInput } from "./errors.js";
import { evaluate } from "./rows.js";

/** @typedef {import("./gpu.js").Resident} Resident */
/** @typedef {{data: any, shape: readonly number[]} | Resident | number} Given values in the GPU's types, or an int */
/** @typedef {number | [number]} Count a number, or the row that gives it */
/** @typedef {ReturnType<typeof openPlan>} Plan */

/**
 * @param {import("./gpu.js").Gpu} gpu
 * @param {any} json
 * @param {any[]} kernels those of the variant
 * @param {(k: number) => GPUBuffer} buffer by its number in the variant
 */
export function openPlan({ device, check, compile, finish }, json, kernels, buffer) {
  const { queue } = device;
  /** @type {GPUBuffer[]} */
  const buffers = json.at.map(buffer);
  /** @type {Map<any, GPUBindGroup>} */
  const groups = new Map();
  let runs = 0;
  /** The sizes and ints that `family` and `launches` are for. @type {string} */
  let key;
  /** @type {any} */
  let family;
  /** @type {{pipeline: GPUComputePipeline, group: GPUBindGroup, x: number, y: number}[]} */
  let launches;

  /** What is launched at these sizes, with its parameters on the GPU. @param {Float64Array} values @param {any[]} inputs */
  async function choose(values, inputs) {
    /** @type {(options: any[]) => any} */
    const first = (options) => options.find((o) => (o.guards ?? o[0]).every((/** @type {number} */ g) => values[g]));
    const found = first(json.families);
    const chosen = found?.steps.map(first) ?? [null];
    if (found?.refusal || chosen.some((/** @type {any} */ c) => !c || c[2]))
      throw new InvalidInput(
        found?.refusal || chosen.find((/** @type {any} */ c) => c?.[2])?.[2] ||
          `the model was compiled without the sizes ${JSON.stringify(inputs.map((i) => i.shape ?? i))}: name them with --size`,
      );
    const ready = [];
    for (const [, dispatches] of chosen)
      for (const dispatch of dispatches) {
        const [kernel, bindings, [x, y], , , , , patches] = dispatch;
        const launch = { x: values[x[0]] ?? x, y: values[y[0]] ?? y };
        if (launch.x && launch.y) ready.push({ dispatch, kernel: kernels[json.kernels[kernel]], bindings, patches, ...launch });
      }
    const compiled = await Promise.all(ready.map(({ kernel }) => compile(kernel)));
    launches = ready.map(({ dispatch, bindings, patches, x, y }, k) => {
      const { pipeline, layout } = compiled[k];
      const entries = bindings.map((/** @type {number[]} */ [b, offset, size], /** @type {number} */ binding) => ({
        binding,
        resource: { buffer: buffers[b], offset, size },
      }));
      const group = groups.get(dispatch) ?? device.createBindGroup({ layout, entries });
      groups.set(dispatch, group);
      const params = bindings.find((/** @type {number[]} */ [b]) => json.buffers[b].role === "params")?.[0];
      for (const [word, [row], kind] of patches)
        queue.writeBuffer(buffers[params], 4 * word, (kind === "f32" ? Float32Array : Uint32Array).of(values[row]));
      return { pipeline, group, x, y };
    });
    family = found;
  }

  return {
    json,
    kernels: json.kernels.map((/** @type {number} */ k) => kernels[k]),

    /**
     * One run: its outputs on the GPU, and, when it is done, the values of those that are read.
     * @param {any[]} inputs
     * @param {number[]} read
     * @returns {Promise<{outputs: (Resident | number)[], done: Promise<any[]>}>}
     */
    async run(inputs, read) {
      check();
      if (inputs.some((given) => given.gone?.())) throw new InvalidInput("a tensor on the GPU is gone: its method ran again");
      const values = evaluate(json.rows, inputs);
      const now = `${json.keys.map((/** @type {number} */ row) => values[row])}`;
      if (now !== key) {
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
      if (json.syms !== null) queue.writeBuffer(buffers[json.syms], 0, cast("int32", (family.words ?? []).map(number)));
      const turn = ++runs;
      const outputs = family.outputs.map((/** @type {any} */ o) => {
        if (!o.dtype) return number(o);
        const shape = o.shape.map(number);
        const size = (count(shape) * arrayOf(o.dtype).BYTES_PER_ELEMENT + 3) & ~3; // whole words
        return { gpuBuffer: buffers[o.buffer], dtype: o.dtype, shape, size, gone: () => turn !== runs };
      });
      const encoder = device.createCommandEncoder();
      inputs.forEach((given, k) => {
        const to = buffers[json.inputs[k].buffer];
        if (given.gpuBuffer) encoder.copyBufferToBuffer(given.gpuBuffer, 0, to, 0, given.size);
        else if (to) queue.writeBuffer(to, 0, given.data.buffer);
      });
      const pass = encoder.beginComputePass();
      for (const { pipeline, group, x, y } of launches) {
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
