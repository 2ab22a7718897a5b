/** What the host does where one plan does not do it all: it runs plans, jumps, moves and arithmetic, item by item. */

import { ExecutionError, Resident, Tensor, UnsupportedProgram, count, fromDevice, literal } from "./index.js";

/** @typedef {import("./method.js").Method} Method */
/** @typedef {Map<number, import("./method.js").Value>} Slots */

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
    if (index < -n || index >= n) throw new Error(`index ${index} is out of range for dimension ${dim} of sizes [${x.shape}]`);
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

/** By name; each takes the place of its call first, for messages. @type {Record<string, (where: string, ...args: any[]) => any>} */
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

/** Refuses what only Python can run. @param {any} json of a method */
export function check(json) {
  const calls = json.items.map((/** @type {any} */ i) => i.call);
  const names = new Set(calls.filter((/** @type {string} */ name) => name && !PRIMITIVES[name]));
  if (names.size) throw new UnsupportedProgram(`${json.name} needs operators that a browser cannot run: ${[...names].join(", ")}`);
}

/**
 * One call.
 * @param {Method} method
 * @param {any[]} inputs
 * @param {AbortSignal} [signal]
 * @returns {Promise<any[]>}
 */
export async function run(method, inputs, signal) {
  const { items, outputs } = method.json;
  const env = method.accept(inputs);
  try {
    for (let at = 0, done = 0; at < items.length; done++) {
      signal?.throwIfAborted();
      if (done > MAX_INSTRUCTIONS) throw new ExecutionError(`${method.name} ran ${done} instructions without ending`);
      const item = items[at++];
      if (item.run !== undefined) await runPlan(method, env, item);
      else if (item.jump !== undefined) at = truth(await seen(method, env, item.jump)) ? at : item.target;
      else if (item.call) {
        /** @type {any[]} */
        const args = [];
        for (const a of item.args)
          args.push(item.by_shape && a?.slot !== undefined ? method.held(env, a) : await seen(method, env, a));
        env.set(item.outs[0].slot, PRIMITIVES[item.call](item.where, ...args));
      } else env.set(item.target.slot, await seen(method, env, item.move));
    }
    const found = [];
    for (const o of outputs) found.push(copied(await seen(method, env, o)));
    return found;
  } finally {
    for (const slot of method.states.keys()) method.states.set(slot, await seen(method, env, { slot }));
  }
}

/** @param {Method} method @param {Slots} env @param {any} item */
async function runPlan(method, env, item) {
  const plan = method.plans[item.run];
  for (const [slot, value] of env) // what it gave before is about to be overwritten
    if (value instanceof Resident && value.plan === plan) await seen(method, env, { slot });
  const { outputs, done } = plan.start(method.given(env, item, plan), item.read);
  const read = await done;
  item.outputs.forEach((/** @type {any} */ { slot }, /** @type {number} */ k) => {
    const bytes = read.get(k);
    env.set(slot, bytes ? fromDevice(method.json.slots[slot].dtype, /** @type {Resident} */ (outputs[k]).shape, bytes) : outputs[k]);
  });
}

/** An operand as the host sees it. @param {Method} method @param {Slots} env @param {any} o @returns {Promise<any>} */
async function seen(method, env, o) {
  if (Array.isArray(o)) return Promise.all(o.map((x) => seen(method, env, x)));
  if (o?.slot === undefined) return literal(o);
  const held = method.held(env, o);
  if (!(held instanceof Resident)) return held;
  const read = fromDevice(method.json.slots[o.slot].dtype, held.shape, await readBack(held));
  env.set(o.slot, read);
  return read;
}

/** The bytes of a tensor on the GPU. @param {Resident} tensor @returns {Promise<ArrayBuffer>} */
function readBack({ plan, buffer, size }) {
  const { device } = plan.gpu;
  plan.gpu.check();
  const staging = plan.take(size);
  const encoder = device.createCommandEncoder();
  encoder.copyBufferToBuffer(buffer, 0, staging, 0, size);
  device.queue.submit([encoder.finish()]);
  return plan.give(staging, size);
}

/** @type {(value: any) => boolean} */
const truth = (value) => (value instanceof Tensor ? value.data.every(Boolean) : Boolean(value));

/** Nothing that the caller could write to. @type {(value: any) => any} */
const copied = (value) => (value instanceof Tensor ? new Tensor(value.dtype, value.shape, value.data.slice()) : value);
