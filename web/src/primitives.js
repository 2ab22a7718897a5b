/** What the host does between plans: arithmetic on numbers, and questions about tensors. */

import { Tensor, count } from "./dtypes.js";
import { ExecutionError } from "./errors.js";

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
export const PRIMITIVES = Object.fromEntries(
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
