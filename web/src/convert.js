/** Values from type to type: what callers give, where it is not just what a method takes, and what a GPU gives. */

import { ARRAYS, InvalidInput, Tensor } from "./index.js";

/** @typedef {import("./method.js").Spec} Spec */

/** @type {Record<string, any>} */
const OTHERS = {
  int16: Int16Array,
  uint16: Uint16Array,
  uint32: Uint32Array,
  int64: BigInt64Array,
  uint64: BigUint64Array,
  bfloat16: Float32Array,
  float64: Float64Array,
};

/** The arrays of any type. @type {(dtype: string) => any} */
export const arrayOf = (dtype) => ARRAYS[dtype] ?? OTHERS[dtype];

/** @type {(shape: readonly number[]) => number} */
export const count = (shape) => shape.reduce((n, d) => n * d, 1);

/**
 * A copy in another type, in memory of whole words, as a GPU takes it. What the type cannot hold is an error.
 * @param {string} dtype
 * @param {ArrayLike<any>} data
 * @param {string} [why] this type
 */
export function cast(dtype, data, why = "") {
  const Type = arrayOf(dtype);
  const { length } = data;
  const made = new Type(new ArrayBuffer((length * Type.BYTES_PER_ELEMENT + 3) & ~3), 0, length);
  const whole = !dtype.includes("float");
  const number = dtype.endsWith("64") && whole ? BigInt : Number;
  if (data instanceof Type) made.set(data);
  else if (dtype === "float16" && Type === Uint16Array)
    throw new InvalidInput("this platform has no Float16Array; give float16 as a Uint16Array of its bits");
  else
    for (let k = 0; k < length; k++) {
      const value = data[k];
      try {
        made[k] = number(value);
      } catch {} // it stays 0, which differs
      if (whole ? Number(made[k]) !== Number(value) : !Number.isFinite(made[k]) && !Object.is(made[k], value))
        throw new InvalidInput(`${value} does not fit ${dtype}${why}`);
    }
  return made;
}

/** Values of the GPU in the program's type. @param {string} dtype @param {any} data */
export function fromDevice(dtype, data) {
  if (dtype !== "bfloat16") return new (arrayOf(dtype))(data);
  const bits = new Uint32Array(data.buffer);
  for (let k = 0; k < bits.length; k++) // to the nearest, ties to even
    if (data[k] === data[k]) bits[k] = (bits[k] + 0x7fff + ((bits[k] >> 16) & 1)) & ~0xffff;
  return data;
}

/**
 * Inputs as they were declared, as copies; InvalidInput, if they are not that.
 * @param {string} name of the method
 * @param {any[]} inputs
 * @param {Spec[]} specs
 * @param {boolean} onGpu whether as the GPU has them
 */
export function accept(name, inputs, specs, onGpu) {
  if (inputs.length !== specs.length)
    throw new InvalidInput(`${name} takes ${specs.length} inputs, not ${inputs.length}`);
  return specs.map((spec, k) => {
    try {
      const to = onGpu ? spec.device : spec.dtype;
      return to ? tensor(inputs[k], spec, to) : int(inputs[k], spec);
    } catch (error) {
      const { dtype, shape, dynamic, value } = spec;
      const wanted = dtype
        ? `${dtype} [${shape.map((n) => (dynamic ? `≤${n}` : n)).join(", ")}]`
        : value === undefined ? "an int" : `${value}, the value it was exported with`;
      throw new InvalidInput(`input ${k} of ${name} must be ${wanted}: ${/** @type {Error} */ (error).message}`);
    }
  });
}

/** @param {any} given @param {Spec} spec */
function int(given, { value }) {
  if (value === null || value === given) return given;
  const number = typeof given === "object" ? NaN : Number(given);
  if (value !== undefined || !Number.isSafeInteger(number)) throw Error(`it is ${given?.dtype ? "a tensor" : given}`);
  return number;
}

/** @param {any} given @param {Spec} spec @param {string} to */
function tensor(given, { dtype, device, shape, dynamic }, to) {
  let found = given;
  if (!given?.dtype) {
    const nested = Array.isArray(given) ? shapeOf(given) : [];
    const data = ArrayBuffer.isView(given) ? /** @type {any} */ (given) : [given].flat(Infinity);
    const flat = data.length === count(shape) ? shape : [data.length];
    found = new Tensor(/** @type {string} */ (dtype), nested.length > 1 ? nested : flat, data);
  }
  if (found.dtype !== (found.gpuBuffer ? device : dtype)) throw Error(`it is ${found.dtype}`);
  /** @type {(n: number, k: number) => boolean} */
  const fits = (n, k) => (dynamic ? found.shape[k] <= n : found.shape[k] === n);
  if (found.shape.length !== shape.length || !shape.every(fits)) throw Error(`it is [${found.shape.join(", ")}]`);
  if (found.gpuBuffer) return found;
  if (found.data.length !== count(found.shape)) throw Error(`it has ${found.data.length} values`);
  const typed = found.data instanceof arrayOf(to) ? found.data : cast(/** @type {string} */ (dtype), found.data);
  return { dtype, shape: found.shape, data: cast(to, typed, ", which the GPU computes with") };
}

/** The shape of nested lists. @param {any} list @returns {number[]} */
function shapeOf(list) {
  if (!Array.isArray(list)) return [];
  const shapes = list.map(shapeOf);
  if (new Set(shapes.map(String)).size > 1) throw Error("its lists have different lengths");
  return [list.length, ...(shapes[0] ?? [])];
}
