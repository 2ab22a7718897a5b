/** What the host does where one plan does not do it all: it runs plans, jumps, moves and arithmetic, item by item. */

import { arrayOf, cast, count } from "./convert.js";
import { ExecutionError, InvalidInput, Tensor, UnsupportedProgram, fromDevice } from "./index.js";

/** @typedef {import("./plan.js").Plan} Plan */

const MAX_INSTRUCTIONS = 1e7; // in one call: a loop that never ends

/** @type {(value: number) => number} */
const even = (value) => {
  const below = Math.floor(value);
  return value - below === 0.5 ? below + (below % 2 ? 1 : 0) : Math.round(value); // halves to even, as in Python
};

/** @type {(divide: (a: number, b: number) => number) => (a: number, b: number) => number} */
const dividing = (divide) => (a, b) => {
  if (!Number(b)) throw new Error(`division of ${a} by zero`);
  return divide(a, b);
};

/** @type {(n: number, rank: number) => number} */
const axis = (n, rank) => {
  if (n < -rank || n >= rank) throw new Error(`there is no dimension ${n}`);
  return n < 0 ? n + rank : n;
};

/** @type {Record<string, (...args: any[]) => any>} */
const SCALARS = {
  add: (a, b) => a + b,
  sub: (a, b) => a - b,
  mul: (a, b) => a * b,
  floordiv: dividing((a, b) => Math.floor(a / b)),
  truediv: dividing((a, b) => a / b),
  mod: dividing((a, b) => ((a % b) + b) % b),
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
  round: even,
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
    if (x.data.length !== 1) throw new Error(`a tensor of sizes [${x.shape}] is not one item`);
    return x.dtype === "bool" ? Boolean(x.data[0]) : Number(x.data[0]);
  },
  "et_vk.select_as_symint.default": (x, dim, index) => {
    const along = axis(dim, x.shape.length);
    const n = x.shape[along];
    if (index < -n || index >= n)
      throw new Error(`index ${index} is out of range for dimension ${dim} of sizes [${x.shape}]`);
    return Number(x.data[(index < 0 ? index + n : index) * count(x.shape.slice(along + 1))]);
  },
  "executorch_prim.et_view.default": (x, sizes) => {
    const known = count(sizes.filter((/** @type {number} */ n) => n >= 0));
    return new Tensor(x.dtype, sizes.map((/** @type {number} */ n) => (n < 0 ? x.data.length / known : n)), x.data);
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
 * By name; each takes the place of its call first, for messages.
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

/** A value that JSON cannot write. @type {(o: any) => any} */
const literal = (o) => (o?.float ? { inf: Infinity, "-inf": -Infinity, nan: NaN }[/** @type {"nan"} */ (o.float)] : o);

/** @type {(value: any) => boolean} */
const truth = (value) => (value?.data ? value.data.every(Boolean) : Boolean(value));

/** Nothing that the caller could write to. @type {(value: any) => any} */
const copied = (value) => (value?.data ? new Tensor(value.dtype, value.shape, value.data.slice()) : value);

/**
 * An index that the program made, and that no int32 can hold, is just as much out of range where it is clipped.
 * @type {(n: any) => number}
 */
const clipped = (n) => Math.min(Math.max(Number(n), -(2 ** 31)), 2 ** 31 - 1);

/**
 * What runs a method. UnsupportedProgram, if only Python can.
 * @param {import("./gpu.js").Gpu} gpu
 * @param {any} json
 * @param {Plan[]} plans
 * @param {[start: number, length: number][]} blobs where they are in the data
 * @param {import("./weights.js").Wanted[]} filling who takes which of it
 */
export function open({ device, finish }, json, plans, blobs, filling) {
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
    filling.push([start, start + length, (at, part) => bytes.set(part, at)]);
    return bytes.buffer;
  });
  /** Values of states. @type {Map<number, any>} */
  let states = new Map();

  /** What a slot begins with. @param {number} k @returns {any} */
  function first(k) {
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
   * One call.
   * @param {any[]} inputs
   * @param {AbortSignal} [signal]
   * @returns {Promise<any[]>}
   */
  async function run(inputs, signal) {
    const env = new Map(states);
    /** Which plan made what a slot holds. @type {Map<number, Plan>} */
    const made = new Map();
    for (const [k, o] of json.inputs.entries()) if (o?.slot !== undefined) env.set(o.slot, inputs[k]);

    /** What a slot holds. @param {number} slot @returns {any} */
    const held = (slot) => {
      const found = env.has(slot) ? env.get(slot) : first(slot);
      if (found === undefined) throw new ExecutionError(`${name}: ${slots[slot].name} is read before it has a value`);
      return found;
    };

    /** An operand as the host sees it. @param {any} o @returns {Promise<any>} */
    const seen = async (o) => {
      if (Array.isArray(o)) return Promise.all(o.map(seen));
      if (o?.slot === undefined) return literal(o);
      const found = held(o.slot);
      if (!found?.gpuBuffer) return found;
      const [values] = await finish(device.createCommandEncoder(), [found]);
      const read = await fromDevice(slots[o.slot].dtype, found, values);
      env.set(o.slot, read);
      return read;
    };

    /** What a plan takes, in the GPU's types. @param {any} item */
    const given = (item) =>
      item.inputs.map((/** @type {any} */ { slot }, /** @type {number} */ k) => {
        const value = held(slot);
        const { dtype, kind, name: what } = slots[slot];
        if (!dtype) return Number(value);
        if (value.gpuBuffer) return value;
        const { dtype: device, index } = json.plans[item.run].inputs[k];
        const clip = index && kind === "temp" && dtype === "int64";
        try {
          return { shape: value.shape, data: cast(device, clip ? Array.from(value.data, clipped) : value.data) };
        } catch (error) {
          throw new InvalidInput(`${what} of ${name}: ${/** @type {Error} */ (error).message}`);
        }
      });

    /** @param {any} item */
    const runPlan = async (item) => {
      const plan = plans[item.run];
      for (const [slot, by] of [...made]) // what it gave before is about to be overwritten
        if (by === plan && env.get(slot)?.gpuBuffer) await seen({ slot });
      const { outputs: found, done } = await plan.run(given(item), item.read);
      const read = await done;
      item.outputs.forEach((/** @type {any} */ { slot }, /** @type {number} */ k) => {
        made.set(slot, plan);
        env.set(slot, found[k]);
      });
      for (const [at, k] of item.read.entries()) {
        const { slot } = item.outputs[k];
        env.set(slot, await fromDevice(slots[slot].dtype, found[k], read[at]));
      }
    };

    try {
      for (let at = 0, done = 0; at < items.length; done++) {
        signal?.throwIfAborted();
        if (done > MAX_INSTRUCTIONS) throw new ExecutionError(`${name} ran ${done} instructions without ending`);
        const item = items[at++];
        if (item.run !== undefined) await runPlan(item);
        else if (item.jump !== undefined) at = truth(await seen(item.jump)) ? at : item.target;
        else if (item.call) {
          /** @type {any[]} */
          const args = [];
          for (const a of item.args) args.push(item.by_shape && a?.slot !== undefined ? held(a.slot) : await seen(a));
          env.set(item.outs[0].slot, PRIMITIVES[item.call](item.where, ...args));
        } else env.set(item.target.slot, await seen(item.move));
      }
      const found = [];
      for (const o of outputs) found.push(copied(await seen(o)));
      return found;
    } finally {
      for (const slot of states.keys()) states.set(slot, await seen({ slot }));
    }
  }

  return {
    run,
    /** States back to their first values. */
    reset() {
      states = new Map(json.states.map((/** @type {any} */ { slot }) => [slot, first(slot)]));
    },
  };
}
