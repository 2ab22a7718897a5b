/** A plan on a GPU: buffers made once; for each run numbers, parameters, one compute pass, one read back. */

import { count, deviceArrayOf } from "./dtypes.js";
import { ExecutionError, IndexOutOfRange, InvalidInput } from "./errors.js";
import { evaluate } from "./rows.js";

/** @typedef {import("./rows.js").Count} Count */
/** @typedef {import("./gpu.js").Gpu} Gpu */

const STORAGE = 128 | 8 | 4; // usage: storage, copied to and from
const UNIFORM = 64 | 8;
const STAGING = 1 | 8; // mapped to read, copied to

/** A tensor that stays on the GPU until its plan runs again. */
export class Resident {
  /** @param {Plan} plan @param {GPUBuffer} buffer @param {string} dtype @param {number[]} shape */
  constructor(plan, buffer, dtype, shape) {
    this.plan = plan;
    this.run = plan.runs;
    this.buffer = buffer;
    this.dtype = dtype;
    this.shape = shape;
  }

  /** Bytes, in whole words. */
  get size() {
    return (count(this.shape) * deviceArrayOf(this.dtype).BYTES_PER_ELEMENT + 3) & ~3;
  }
}

/** @typedef {{data: any, shape: readonly number[]} | Resident | number} Given values in the GPU's types, or an int */
/** @typedef {{values: Float64Array, key: number[], family: any, launches: any[], images: (Uint8Array | null)[]}} Ready */

/** One plan of a method. */
export class Plan {
  /**
   * @param {Gpu} gpu
   * @param {any} json
   * @param {any[]} kernels of the variant
   * @param {Map<string, GPUBuffer>} constants by name, shared by all plans
   * @param {Map<any, Promise<GPUComputePipeline>>} pipelines by kernel
   */
  constructor(gpu, json, kernels, constants, pipelines) {
    this.gpu = gpu;
    this.json = json;
    this.kernels = json.kernels.map((/** @type {number} */ k) => kernels[k]);
    this.pipelines = pipelines;
    this.runs = 0;
    /** @type {Map<any, GPUComputePipeline>} */
    this.compiled = new Map();
    /** @type {Map<any, GPUBindGroup>} */
    this.groups = new Map();
    /** Of the parameters: their buffers and their first bytes. @type {{buffer: number, bytes: Uint8Array}[]} */
    this.params = [];
    /** @type {Ready | null} */
    this.ready = null;
    /** What the buffers of parameters hold. @type {(Uint8Array | undefined)[]} */
    this.written = [];
    this.words = "";
    /** First bytes of states, by buffer; none where these are zeros. @type {Map<number, Uint8Array | null>} */
    this.states = new Map();
    /** Constants that are indices, by buffer. @type {Map<number, any>} */
    this.indices = new Map();
    /** @type {GPUBuffer[]} */
    this.staging = [];
    /** @type {GPUBuffer[]} */
    this.buffers = json.buffers.map((/** @type {any} */ b) => {
      const kept = b.role === "constant" ? constants.get(b.name) : undefined;
      const made = kept ?? gpu.buffer(b.name, b.nbytes, b.role === "params" || b.role === "syms" ? UNIFORM : STORAGE);
      if (b.role === "constant") constants.set(b.name, made);
      return made;
    });
    /** Rows that dispatches, parameters and shapes depend on. @type {number[]} */
    this.keys = [...this.#keys()];
  }

  *#keys() {
    const found = new Set();
    /** @type {(n: any) => void} */
    const add = (n) => Array.isArray(n) && found.add(n[0]);
    for (const family of this.json.families) {
      family.guards.forEach((/** @type {number} */ g) => found.add(g));
      for (const o of family.outputs) (o.shape ?? []).forEach(add);
      for (const [guards, dispatches] of family.steps.flat()) {
        guards.forEach((/** @type {number} */ g) => found.add(g));
        for (const d of dispatches) {
          d[2].forEach(add);
          for (const patch of d[7]) add(patch[1]);
        }
      }
    }
    yield* found;
  }

  /** The kernels that every size needs. */
  common() {
    const steps = this.json.families.length === 1 ? this.json.families[0].steps : [];
    return this.#kernelsOf(steps.filter((/** @type {any[]} */ s) => s.length === 1).map((/** @type {any[]} */ s) => s[0]));
  }

  /** @param {any[]} choices @returns {any[]} */
  #kernelsOf(choices) {
    return [...new Set(choices.flatMap(([, dispatches]) => dispatches.map((/** @type {any[]} */ d) => this.kernels[d[0]])))];
  }

  /** Compile these, side by side. @param {any[]} kernels */
  async compile(kernels) {
    await Promise.all(
      kernels.map(async (kernel) => {
        let made = this.pipelines.get(kernel);
        if (!made) {
          made = this.gpu.compile(kernel);
          this.pipelines.set(kernel, made);
        }
        this.compiled.set(kernel, await made);
      }),
    );
  }

  /** Compile what inputs of these sizes need; ints are given as they are. @param {(number | number[])[]} sizes */
  async warm(sizes) {
    const { launches } = this.at(sizes.map((s) => (typeof s === "number" ? s : { shape: s, data: [] })));
    this.ready = null;
    await this.compile(this.#kernelsOf([[0, launches.map((l) => l.dispatch)]]));
  }

  /** What a run at these sizes is. @param {Given[]} inputs @returns {Ready} */
  at(inputs) {
    const sizes = inputs.map((i) => (typeof i === "number" ? i : [...i.shape]));
    const values = evaluate(this.json.rows, sizes, (input, place) => {
      const given = /** @type {any} */ (inputs[input]);
      return Number(given.data?.[place] ?? NaN);
    });
    const key = this.keys.map((row) => values[row]);
    if (this.ready && key.every((v, k) => v === this.ready?.key[k])) return { ...this.ready, values };
    /** @type {(guards: number[]) => boolean} */
    const holds = (guards) => guards.every((g) => values[g]);
    const family = this.json.families.find((/** @type {any} */ f) => holds(f.guards));
    const chosen = family?.steps.map((/** @type {any[]} */ choices) => choices.find(([guards]) => holds(guards)));
    const refusal = family?.refusal || chosen?.find((/** @type {any} */ c) => c?.[2])?.[2];
    if (refusal) throw new InvalidInput(refusal);
    if (!family || chosen.includes(undefined)) {
      const shapes = sizes.map((s, k) => `${this.json.inputs[k].name}: ${typeof s === "number" ? s : `[${s}]`}`);
      throw new InvalidInput(`the model was compiled without these sizes (${shapes.join(", ")}): name them with --size`);
    }
    return (this.ready = { values, key, family, ...this.#launches(chosen, values) });
  }

  /** @param {any[]} chosen @param {Float64Array} values */
  #launches(chosen, values) {
    const images = this.params.map(({ bytes }) => bytes.slice());
    const views = images.map((image) => new DataView(image.buffer));
    const changed = new Set();
    const launches = [];
    for (const [, dispatches] of chosen)
      for (const dispatch of dispatches) {
        const [kernel, bindings, grid, , , , , patches] = dispatch;
        const [x, y] = grid.map((/** @type {Count} */ n) => number(n, values));
        if (!x || !y) continue;
        launches.push({ dispatch, kernel: this.kernels[kernel], x, y });
        const block = this.params.findIndex((p) => bindings.some((/** @type {number[]} */ b) => b[0] === p.buffer));
        for (const [word, [row], kind] of patches) {
          changed.add(block);
          if (kind === "f32") views[block].setFloat32(4 * word, values[row], true);
          else views[block].setUint32(4 * word, values[row] % 2 ** 32, true);
        }
      }
    return { launches, images: images.map((image, k) => (changed.has(k) ? image : null)) };
  }

  /**
   * Starts a run. What is wrong with it is thrown at once.
   * @param {Given[]} inputs
   * @param {number[]} read which outputs to bring back
   */
  start(inputs, read) {
    this.gpu.check();
    const ready = this.at(inputs);
    const { values, family } = ready;
    this.#checkBounds(inputs, family, values);
    for (const given of inputs)
      if (given instanceof Resident && given.run !== given.plan.runs)
        throw new InvalidInput("a tensor on the GPU is no longer there: its method ran again");
    const words = Int32Array.from(family.words ?? [], (n) => {
      const value = number(n, values);
      if (value !== (value | 0)) throw new InvalidInput(`${value} does not fit int32, which is what the GPU computes with`);
      return value;
    });
    this.runs++;
    const outputs = family.outputs.map((/** @type {any} */ o) =>
      o.shape === undefined
        ? number(o, values)
        : new Resident(this, this.buffers[o.buffer], o.dtype, o.shape.map((/** @type {Count} */ n) => number(n, values))),
    );
    for (const o of outputs)
      if (o instanceof Resident && o.size > o.buffer.size) throw new ExecutionError("an output does not fit its buffer");
    const missing = this.#kernelsOf([[0, ready.launches.map((l) => l.dispatch)]]).filter((k) => !this.compiled.has(k));
    const done = this.gpu.inTurn(missing.length ? this.compile(missing) : null, () =>
      this.#submit(ready, inputs, words, outputs, read),
    );
    done.catch(() => {}); // whoever wants the result hears of it
    return { outputs, done };
  }

  /**
   * One submit; gives the bytes of the outputs that are read.
   * @param {Ready} ready
   * @param {Given[]} inputs
   * @param {Int32Array} words
   * @param {(Resident | number)[]} outputs
   * @param {number[]} read
   * @returns {Promise<Map<number, ArrayBuffer>>}
   */
  async #submit(ready, inputs, words, outputs, read) {
    const { gpu, json } = this;
    const { device } = gpu;
    gpu.check();
    device.pushErrorScope("validation");
    ready.images.forEach((image, k) => {
      if (image && this.written[k] !== image) this.#write(this.params[k].buffer, (this.written[k] = image));
    });
    const text = words.join();
    if (words.length && text !== this.words) {
      this.#write(json.buffers.findIndex((/** @type {any} */ b) => b.role === "syms"), words);
      this.words = text;
    }
    const encoder = device.createCommandEncoder();
    inputs.forEach((given, k) => {
      const at = json.inputs[k].buffer;
      if (typeof given === "number" || at == null) return;
      if (!(given instanceof Resident)) this.#write(at, given.data);
      else if (given.size) encoder.copyBufferToBuffer(given.buffer, 0, this.buffers[at], 0, given.size);
    });
    const pass = encoder.beginComputePass();
    for (const { dispatch, kernel, x, y } of ready.launches) {
      pass.setPipeline(/** @type {GPUComputePipeline} */ (this.compiled.get(kernel)));
      pass.setBindGroup(0, this.#group(dispatch, kernel));
      pass.dispatchWorkgroups(x, y);
    }
    pass.end();
    for (const [from, to, size] of json.copies)
      encoder.copyBufferToBuffer(this.buffers[from], 0, this.buffers[to], 0, size);
    /** @type {[number, number, number][]} */
    const places = [];
    let size = 0;
    for (const k of read) {
      const o = outputs[k];
      if (!(o instanceof Resident)) continue;
      places.push([k, size, o.size]);
      size += (o.size + 15) & ~15;
    }
    const staging = size ? this.#staging(size) : null;
    for (const [k, at, n] of places)
      if (n) encoder.copyBufferToBuffer(/** @type {Resident} */ (outputs[k]).buffer, 0, /** @type {any} */ (staging), at, n);
    device.queue.submit([encoder.finish()]);
    const complaint = device.popErrorScope();
    /** @type {Map<number, ArrayBuffer>} */
    const found = new Map();
    try {
      if (staging) await staging.mapAsync(1, 0, size);
      const wrong = await complaint;
      if (wrong) throw wrong;
    } catch (error) {
      throw await gpu.explain(error);
    }
    const bytes = staging?.getMappedRange(0, size) ?? new ArrayBuffer(0);
    for (const [k, at, n] of places) found.set(k, bytes.slice(at, at + n));
    if (staging) {
      staging.unmap();
      this.staging.push(staging);
    }
    return found;
  }

  /** The bytes of a resident tensor. @param {Resident} tensor @returns {Promise<ArrayBuffer>} */
  read(tensor) {
    return this.gpu.inTurn(null, () => this.#read(tensor));
  }

  /** @param {Resident} tensor */
  async #read(tensor) {
    const { device } = this.gpu;
    this.gpu.check();
    if (!tensor.size) return new ArrayBuffer(0);
    const staging = this.#staging(tensor.size);
    const encoder = device.createCommandEncoder();
    encoder.copyBufferToBuffer(tensor.buffer, 0, staging, 0, tensor.size);
    device.queue.submit([encoder.finish()]);
    try {
      await staging.mapAsync(1, 0, tensor.size);
    } catch (error) {
      throw await this.gpu.explain(error);
    }
    const bytes = staging.getMappedRange(0, tensor.size).slice(0);
    staging.unmap();
    this.staging.push(staging);
    return bytes;
  }

  /** @param {number} size @returns {GPUBuffer} */
  #staging(size) {
    const at = this.staging.findIndex((b) => b.size >= size);
    return at < 0 ? this.gpu.buffer("read back", Math.max(1024, size), STAGING) : this.staging.splice(at, 1)[0];
  }

  /** @param {number} buffer @param {any} data */
  #write(buffer, data) {
    let bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
    if (bytes.length % 4) {
      const padded = new Uint8Array((bytes.length + 3) & ~3);
      padded.set(bytes);
      bytes = padded;
    }
    if (bytes.length) this.gpu.device.queue.writeBuffer(this.buffers[buffer], 0, bytes);
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

  /** @param {Given[]} inputs @param {any} family @param {Float64Array} values */
  #checkBounds(inputs, family, values) {
    for (const bound of family.bounds ?? []) {
      const [low, end] = [number(bound.low, values), number(bound.end, values)];
      const given = bound.kind === "input" ? /** @type {any} */ (inputs[bound.source]).data : this.indices.get(bound.source);
      const all = bound.kind === "int" ? [number(bound.source, values)] : given;
      if (!all || bound.moves?.some((/** @type {any} */ m) => m.op !== "view")) continue; // kernels stay in their buffers
      for (let k = 0; k < all.length; k++)
        if (!(all[k] >= low && all[k] < end)) {
          const told = bound.text.replace("{}", all[k]).replace("{}", `element ${k}`);
          throw new IndexOutOfRange(`${told} is out of range for ${bound.node}, which takes ${low} to ${end - 1}`);
        }
    }
  }

  /** States back to their first bytes. */
  reset() {
    const encoder = this.gpu.device.createCommandEncoder();
    for (const k of this.states.keys()) encoder.clearBuffer(this.buffers[k]);
    this.gpu.device.queue.submit([encoder.finish()]);
    for (const [k, bytes] of this.states) if (bytes) this.#write(k, bytes);
    this.runs++;
  }
}

/** @type {(n: Count, values: Float64Array) => number} */
const number = (n, values) => (typeof n === "number" ? n : values[n[0]]);
