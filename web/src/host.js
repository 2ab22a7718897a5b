/** The interpreter of a method with several plans: it runs plans, jumps, moves and scalar operators, item by item. */

import { arrayOf, cast, count } from "./convert.js";
import { ExecutionError, InvalidInput, Tensor, UnsupportedProgram, fromDevice } from "./index.js";

/** @typedef {import("./plan.js").Plan} Plan */

const MAX_INSTRUCTIONS = 1e7; // in one call; more means an endless loop

/** Rounds halves to even, as in Python. @type {(value: number) => number} */
const round = (value) => {
  const floor = Math.floor(value);
  return value - floor === 0.5 ? floor + (floor % 2 ? 1 : 0) : Math.round(value);
};

/** @type {(divide: (a: number, b: number) => number) => (a: number, b: number) => number} */
const nonZero = (divide) => (a, b) => {
  if (!Number(b)) throw new Error(`division of ${a} by zero`);
  return divide(a, b);
};

/** @type {(n: number, rank: number) => number} */
const axis = (n, rank) => {
  if (n < -rank || n >= rank) throw new Error(`dimension ${n} is out of range for rank ${rank}`);
  return n < 0 ? n + rank : n;
};

/** @type {Record<string, (...args: any[]) => any>} */
const SCALARS = {
  add: (a, b) => a + b,
  sub: (a, b) => a - b,
  mul: (a, b) => a * b,
  floordiv: nonZero((a, b) => Math.floor(a / b)),
  truediv: nonZero((a, b) => a / b),
  mod: nonZero((a, b) => ((a % b) + b) % b),
  eq: (a, b) => Number(a) === Number(b),
  ne: (a, b) => Number(a) !== Number(b),
  gt: (a, b) => a > b,
  lt: (a, b) => a < b,
  ge: (a, b) => a >= b,
  le: (a, b) => a <= b,
  neg: (a) => -a,
  sym_not: (a) => !a,
  sym_ite: (a, b, c) => (a ? b : c),
  sym_max: Math.max,
  sym_min: Math.min,
  sym_float: Number,
  sym_int: Math.trunc,
  ceil: Math.ceil,
  round,
  trunc: Math.trunc,
};

/** @type {(x: Tensor, dim: number) => number} */
const size = (x, dim) => x.shape[axis(dim, x.shape.length)];

/** @type {Record<string, (...args: any[]) => any>} */
const NAMED = {
  ...SCALARS,
  ...Object.fromEntries(Object.entries(SCALARS).map(([name, f]) => [`executorch_prim.${name}.Scalar`, f])),
  "executorch_prim.floordiv.int": SCALARS.floordiv,
  "executorch_prim.mod.int": SCALARS.mod,
  "sym_size.int": size,
  "aten.sym_size.int": size,
  "aten.sym_stride.int": (x, dim) => count(x.shape.slice(axis(dim, x.shape.length) + 1)),
  "aten.sym_numel.default": (x) => count(x.shape),
  "aten._local_scalar_dense.default": (x) => {
    if (x.data.length !== 1) throw new Error(`a tensor of shape [${x.shape}] does not have exactly one element`);
    return x.dtype === "bool" ? Boolean(x.data[0]) : Number(x.data[0]);
  },
  "et_vk.select_as_symint.default": (x, dim, index) => {
    const along = axis(dim, x.shape.length);
    const n = x.shape[along];
    if (index < -n || index >= n)
      throw new Error(`index ${index} is out of range for dimension ${dim} of shape [${x.shape}]`);
    return Number(x.data[(index < 0 ? index + n : index) * count(x.shape.slice(along + 1))]);
  },
  "executorch_prim.et_view.default": (x, sizes) => {
    const rest = x.data.length / count(sizes.filter((/** @type {number} */ n) => n >= 0)); // for -1
    return new Tensor(x.dtype, sizes.map((/** @type {number} */ n) => (n < 0 ? rest : n)), x.data);
  },
  "executorch_prim.et_copy_index.tensor": (to, from, index) => {
    const row = from.data.length;
    const data = new to.data.constructor((index + 1) * row);
    data.set(to.data.subarray(0, index * row));
    data.set(from.data, index * row);
    return new Tensor(to.dtype, [index + 1, ...from.shape], data);
  },
};

/**
 * The operators by name. Their first argument is the location of the call, for messages.
 * @type {Record<string, (where: string, ...args: any[]) => any>}
 */
const PRIMITIVES = Object.fromEntries(
  Object.entries(NAMED).map(([name, f]) => [
    name,
    (where, ...args) => {
      try {
        return f(...args);
      } catch (error) {
        throw new ExecutionError(`${where} failed: ${/** @type {Error} */ (error).message}`);
      }
    },
  ]),
);

/** Decodes the floats that JSON lacks. @type {(o: any) => any} */
const literal = (o) => (o?.float ? { inf: Infinity, "-inf": -Infinity, nan: NaN }[/** @type {"nan"} */ (o.float)] : o);

/** @type {(value: any) => boolean} */
const truth = (value) => (value?.data ? value.data.every(Boolean) : Boolean(value));

/** Returns a value that the caller may modify. @type {(value: any) => any} */
const copied = (value) => (value?.data ? new Tensor(value.dtype, value.shape, value.data.slice()) : value);

/**
 * Clips an index to int32; beyond int32 it is out of range either way.
 * @type {(n: any) => number}
 */
const clipped = (n) => Math.min(Math.max(Number(n), -(2 ** 31)), 2 ** 31 - 1);

/**
 * Returns the runner of a method. Throws UnsupportedProgram for operators that only Python can run.
 * @param {import("./gpu.js").Gpu} gpu
 * @param {any} json
 * @param {Plan[]} plans
 * @param {[start: number, length: number][]} blobs ranges of the bundle's data
 * @param {import("./weights.js").Reader[]} readers receives one for each blob used here
 */
export function open({ device, finish }, json, plans, blobs, readers) {
  const { name, items, outputs, slots } = json;
  const calls = items.map((/** @type {any} */ i) => i.call);
  const missing = new Set(calls.filter((/** @type {string} */ call) => call && !PRIMITIVES[call]));
  if (missing.size)
    throw new UnsupportedProgram(`${name} needs operators that a browser cannot run: ${[...missing].join(", ")}`);
  /** @type {(ArrayBuffer | null)[]} */
  const data = slots.map((/** @type {any} */ s) => {
    if (s.data == null) return null;
    const [start, length] = blobs[s.data];
    const bytes = new Uint8Array(length);
    readers.push([start, start + length, (at, part) => bytes.set(part, at)]);
    return bytes.buffer;
  });
  /** Values of states by slot. @type {Map<number, any>} */
  let states = new Map();

  /** Returns the initial value of a slot. @param {number} k @returns {any} */
  function initialValue(k) {
    const { dtype, sizes, kind, initial } = slots[k];
    if (!dtype) return literal(initial);
    const length = count(sizes);
    const bytes = data[k];
    if (!bytes) return kind === "state" ? new Tensor(dtype, sizes, new (arrayOf(dtype))(length)) : undefined;
    if (dtype === "bfloat16") {
      const bits = Uint32Array.from(new Uint16Array(bytes, 0, length), (b) => b << 16);
      return new Tensor(dtype, sizes, new Float32Array(bits.buffer));
    }
    return new Tensor(dtype, sizes, new (arrayOf(dtype))(bytes, 0, length).slice());
  }

  /**
   * Runs the method.
   * @param {any[]} inputs
   * @param {AbortSignal} [signal]
   * @returns {Promise<any[]>}
   */
  async function run(inputs, signal) {
    const env = new Map(states);
    /** The plan that wrote each slot. @type {Map<number, Plan>} */
    const writers = new Map();
    for (const [k, o] of json.inputs.entries()) if (o?.slot !== undefined) env.set(o.slot, inputs[k]);

    /** Returns the value of a slot, which may be on the GPU. @param {number} slot @returns {any} */
    const slotValue = (slot) => {
      const value = env.has(slot) ? env.get(slot) : initialValue(slot);
      if (value === undefined) throw new ExecutionError(`${name}: ${slots[slot].name} is read before it has a value`);
      return value;
    };

    /** Returns the value of an operand, read back from the GPU if needed. @param {any} o @returns {Promise<any>} */
    const hostValue = async (o) => {
      if (Array.isArray(o)) return Promise.all(o.map(hostValue));
      if (o?.slot === undefined) return literal(o);
      const value = slotValue(o.slot);
      if (!value?.gpuBuffer) return value;
      const [values] = await finish(device.createCommandEncoder(), [value]);
      const tensor = await fromDevice(slots[o.slot].dtype, value, values);
      env.set(o.slot, tensor);
      return tensor;
    };

    /** Returns the inputs of a plan, in the GPU's types. @param {any} item */
    const planInputs = (item) =>
      item.inputs.map((/** @type {any} */ { slot }, /** @type {number} */ k) => {
        const value = slotValue(slot);
        const { dtype, kind, name: slotName } = slots[slot];
        if (!dtype) return Number(value);
        if (value.gpuBuffer) return value;
        const { dtype: device, index } = json.plans[item.run].inputs[k];
        const clip = index && kind === "temp" && dtype === "int64";
        try {
          return { shape: value.shape, data: cast(device, clip ? Array.from(value.data, clipped) : value.data) };
        } catch (error) {
          throw new InvalidInput(`${slotName} of ${name}: ${/** @type {Error} */ (error).message}`);
        }
      });

    /** @param {any} item */
    const runPlan = async (item) => {
      const plan = plans[item.run];
      for (const [slot, writer] of [...writers]) // the run overwrites the plan's earlier outputs
        if (writer === plan && env.get(slot)?.gpuBuffer) await hostValue({ slot });
      const run = await plan.run(planInputs(item), item.read);
      const values = await run.done;
      item.outputs.forEach((/** @type {any} */ { slot }, /** @type {number} */ k) => {
        writers.set(slot, plan);
        env.set(slot, run.outputs[k]);
      });
      for (const [at, k] of item.read.entries()) {
        const { slot } = item.outputs[k];
        env.set(slot, await fromDevice(slots[slot].dtype, run.outputs[k], values[at]));
      }
    };

    try {
      for (let at = 0, done = 0; at < items.length; done++) {
        signal?.throwIfAborted();
        if (done > MAX_INSTRUCTIONS) throw new ExecutionError(`${name} did not end after ${done} instructions`);
        const item = items[at++];
        if (item.run !== undefined) await runPlan(item);
        else if (item.jump !== undefined) at = truth(await hostValue(item.jump)) ? at : item.target;
        else if (item.call) {
          /** @type {any[]} */
          const args = [];
          for (const a of item.args)
            args.push(item.by_shape && a?.slot !== undefined ? slotValue(a.slot) : await hostValue(a));
          env.set(item.outs[0].slot, PRIMITIVES[item.call](item.where, ...args));
        } else env.set(item.target.slot, await hostValue(item.move));
      }
      const results = [];
      for (const o of outputs) results.push(copied(await hostValue(o)));
      return results;
    } finally {
      for (const slot of states.keys()) states.set(slot, await hostValue({ slot }));
    }
  }

  return {
    run,
    /** Restores the initial states. */
    reset() {
      states = new Map(json.states.map((/** @type {any} */ { slot }) => [slot, initialValue(slot)]));
    },
  };
}
