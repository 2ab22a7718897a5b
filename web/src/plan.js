/** A plan on a GPU: buffers made once; for each run numbers, parameters, one compute pass, one read back. */

import { count, deviceArrayOf } from "./dtypes.js";
import { IndexOutOfRange, InvalidInput } from "./errors.js";
import { evaluate } from "./rows.js";

/** @typedef {import("./rows.js").Count} Count */
/** @typedef {import("./gpu.js").Gpu} Gpu */
/** @typedef {{data: any, shape: readonly number[]} | Resident | number} Given values in the GPU's types, or an int */
/** @typedef {(Resident | number)[]} Outputs */
/** @typedef {{values: Float64Array, family: any, launches: any[]}} Ready */

const STORAGE = 128 | 8 | 4; // usage: storage, copied to and from
const UNIFORM = 64 | 8;
const STAGING = 8 | 1; // copied to, mapped to read

/** A tensor that stays on the GPU until its plan runs again. */
export class Resident {
  /** @param {Plan} plan @param {any} port @param {number[]} shape */
  constructor(plan, { buffer, dtype }, shape) {
    this.plan = plan;
    this.run = plan.runs;
    this.buffer = plan.buffers[buffer];
    this.shape = shape;
    this.size = (count(shape) * deviceArrayOf(dtype).BYTES_PER_ELEMENT + 3) & ~3; // whole words
  }
}

/** One plan of a method. */
export class Plan {
  /**
   * @param {Gpu} gpu
   * @param {any} json
   * @param {any[]} kernels of the variant
   * @param {Map<string, GPUBuffer>} constants by name, shared by all plans
   */
  constructor(gpu, json, kernels, constants) {
    this.gpu = gpu;
    this.json = json;
    this.kernels = json.kernels.map((/** @type {number} */ k) => kernels[k]);
    this.runs = 0;
    /** @type {Map<any, GPUBindGroup>} */
    this.groups = new Map();
    /** The last run, and the sizes and ints that its dispatches depend on. @type {Ready | null} */
    this.ready = null;
    this.key = "";
    /** Whose parameters are on the GPU. @type {any[] | null} */
    this.written = null;
    this.words = "";
    /** First bytes of states, by buffer; none where these are zeros. @type {Map<GPUBuffer, Uint8Array | null>} */
    this.states = new Map();
    /** @type {GPUBuffer[]} */
    this.staging = [];
    /** @type {GPUBuffer[]} */
    this.buffers = json.buffers.map((/** @type {any} */ { name, nbytes, role }) => {
      const shared = role === "constant" && constants.get(name);
      const made = shared || gpu.buffer(nbytes, role === "params" || role === "syms" ? UNIFORM : STORAGE);
      if (role === "constant") constants.set(name, made);
      return made;
    });
  }

  /** Starts a run. What is wrong with it is thrown at once. @param {Given[]} inputs @param {number[]} read outputs to bring back */
  start(inputs, read) {
    const { gpu } = this;
    gpu.check();
    for (const given of inputs)
      if (given instanceof Resident && given.run !== given.plan.runs) throw new InvalidInput("a tensor on the GPU is gone: its method ran again");
    const ready = this.#at(inputs);
    const { values, family, launches } = ready;
    checkBounds(inputs, family, values);
    const words = Int32Array.from(family.words ?? [], (n) => {
      const value = number(n, values);
      if (value !== (value | 0)) throw new InvalidInput(`${value} does not fit int32, which is what the GPU computes with`);
      return value;
    });
    this.runs++;
    /** @type {Outputs} */
    const outputs = family.outputs.map((/** @type {any} */ o) =>
      o.dtype ? new Resident(this, o, o.shape.map((/** @type {Count} */ n) => number(n, values))) : number(o, values),
    );
    const missing = launches.filter(({ kernel }) => !gpu.compiled.has(kernel));
    const compiled = missing.length ? gpu.compile(missing.map(({ kernel }) => kernel)) : null;
    const done = gpu.inTurn(compiled, () => this.#submit(ready, inputs, words, outputs, read));
    done.catch(() => {}); // whoever wants the result hears of it
    return { outputs, done };
  }

  /** What a run at these sizes is. @param {Given[]} inputs @returns {Ready} */
  #at(inputs) {
    const { rows, families, keys } = this.json;
    const sizes = inputs.map((i) => (typeof i === "number" ? i : i.shape));
    const values = evaluate(rows, sizes, (input, place) => Number(/** @type {any} */ (inputs[input]).data?.[place] ?? NaN));
    const key = keys.map((/** @type {number} */ row) => values[row]).join();
    if (this.ready && key === this.key) return { ...this.ready, values };
    /** @type {(options: any[], guards: (option: any) => number[]) => any} */
    const first = (options, guards) => options.find((option) => guards(option).every((g) => values[g]));
    const family = first(families, (f) => f.guards);
    const chosen = family?.steps.map((/** @type {any[]} */ choices) => first(choices, ([guards]) => guards));
    const refusal = family?.refusal || chosen?.find((/** @type {any} */ c) => c?.[2])?.[2];
    if (refusal || !chosen || chosen.includes(undefined))
      throw new InvalidInput(refusal || `the model was compiled without the sizes ${JSON.stringify(sizes)}: name them with --size`);
    const launches = [];
    for (const [, dispatches] of chosen)
      for (const dispatch of dispatches) {
        const [x, y] = dispatch[2].map((/** @type {Count} */ n) => number(n, values));
        if (x && y) launches.push({ dispatch, kernel: this.kernels[dispatch[0]], x, y });
      }
    this.key = key;
    return (this.ready = { values, family, launches });
  }

  /**
   * One submit; gives the bytes of the outputs that are read.
   * @param {Ready} ready
   * @param {Given[]} inputs
   * @param {Int32Array} words
   * @param {Outputs} outputs
   * @param {number[]} read
   * @returns {Promise<Map<number, ArrayBuffer>>}
   */
  async #submit({ values, launches }, inputs, words, outputs, read) {
    const { gpu, json, buffers } = this;
    const { device } = gpu;
    gpu.check();
    device.pushErrorScope("validation");
    if (this.written !== launches) for (const { dispatch } of launches) this.#patch(dispatch, values);
    this.written = launches;
    const syms = buffers[json.buffers.findIndex((/** @type {any} */ b) => b.role === "syms")]; // where a kernel reads them
    if (syms && `${words}` !== this.words) gpu.write(syms, 0, words);
    this.words = `${words}`;
    const encoder = device.createCommandEncoder();
    inputs.forEach((given, k) => {
      const buffer = buffers[json.inputs[k].buffer];
      if (given instanceof Resident) encoder.copyBufferToBuffer(given.buffer, 0, buffer, 0, given.size);
      else if (typeof given !== "number" && buffer) gpu.write(buffer, 0, given.data);
    });
    const pass = encoder.beginComputePass();
    for (const { dispatch, kernel, x, y } of launches) {
      pass.setPipeline(/** @type {GPUComputePipeline} */ (gpu.compiled.get(kernel)));
      pass.setBindGroup(0, this.#group(dispatch, kernel));
      pass.dispatchWorkgroups(x, y);
    }
    pass.end();
    for (const [from, to, size] of json.copies) encoder.copyBufferToBuffer(buffers[from], 0, buffers[to], 0, size);
    const wanted = /** @type {[number, Resident][]} */ (read.map((k) => [k, outputs[k]]).filter(([, o]) => o instanceof Resident));
    const total = wanted.reduce((sum, [, o]) => sum + o.size, 0);
    const staging = this.take(total);
    let at = 0;
    for (const [, { buffer, size }] of wanted) {
      encoder.copyBufferToBuffer(buffer, 0, staging, at, size);
      at += size;
    }
    device.queue.submit([encoder.finish()]);
    const complaint = device.popErrorScope();
    const bytes = await this.give(staging, total, complaint);
    /** @type {Map<number, ArrayBuffer>} */
    const found = new Map();
    at = 0;
    for (const [k, { size }] of wanted) found.set(k, bytes.slice(at, (at += size)));
    return found;
  }

  /** A buffer to read back from. @param {number} size @returns {GPUBuffer} */
  take(size) {
    const at = this.staging.findIndex((b) => b.size >= size);
    return at < 0 ? this.gpu.buffer(Math.max(1024, size), STAGING) : this.staging.splice(at, 1)[0];
  }

  /** What was copied to it, once that is done. @param {GPUBuffer} staging @param {number} size @param {Promise<any>} [complaint] */
  async give(staging, size, complaint) {
    try {
      await staging.mapAsync(1, 0, size);
      const wrong = await complaint;
      if (wrong) throw wrong;
    } catch (error) {
      throw await this.gpu.explain(error);
    }
    const bytes = staging.getMappedRange(0, size).slice(0);
    staging.unmap();
    this.staging.push(staging);
    return bytes;
  }

  /** Words of the parameters that depend on sizes. @param {any} dispatch @param {Float64Array} values */
  #patch([, bindings, , , , , , patches], values) {
    const params = bindings.find((/** @type {number[]} */ [b]) => this.json.buffers[b].role === "params");
    for (const [word, [row], kind] of patches)
      this.gpu.write(this.buffers[params[0]], 4 * word, kind === "f32" ? Float32Array.of(values[row]) : Uint32Array.of(values[row]));
  }

  /** @param {any} dispatch @param {any} kernel @returns {GPUBindGroup} */
  #group(dispatch, kernel) {
    let found = this.groups.get(dispatch);
    if (!found) {
      const entries = dispatch[1].map((/** @type {number[]} */ [buffer, offset, size], /** @type {number} */ binding) => ({
        binding,
        resource: { buffer: this.buffers[buffer], offset, size },
      }));
      found = this.gpu.device.createBindGroup({ layout: this.gpu.layout(kernel.access)[0], entries });
      this.groups.set(dispatch, found);
    }
    return found;
  }

  /** States back to their first bytes. */
  reset() {
    const encoder = this.gpu.device.createCommandEncoder();
    for (const buffer of this.states.keys()) encoder.clearBuffer(buffer);
    this.gpu.device.queue.submit([encoder.finish()]);
    for (const [buffer, bytes] of this.states) if (bytes) this.gpu.write(buffer, 0, bytes);
    this.runs++;
  }
}

/** @type {(n: Count, values: Float64Array) => number} */
const number = (n, values) => (typeof n === "number" ? n : values[n[0]]);

/** Refuses indices that are outside, where the host knows them. @param {Given[]} inputs @param {any} family @param {Float64Array} values */
function checkBounds(inputs, family, values) {
  for (const { kind, source, low, end, text, node, moves = [] } of family.bounds ?? []) {
    const [least, past] = [number(low, values), number(end, values)];
    const all = kind === "int" ? [number(source, values)] : kind === "input" && /** @type {any} */ (inputs[source]).data;
    if (!all || moves.some((/** @type {any} */ m) => m.op !== "view")) continue; // the kernels stay in their buffers
    const bad = all.findIndex((/** @type {number} */ n) => !(n >= least && n < past));
    if (bad >= 0)
      throw new IndexOutOfRange(
        `${text.replace("{}", all[bad]).replace("{}", bad)} is out of range for ${node}, which takes ${least} to ${past - 1}`,
      );
  }
}
