/** Conversions between dtypes, of a caller's inputs and of the GPU's results. */

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

/** Returns the typed array class of a dtype. @type {(dtype: string) => any} */
export const arrayOf = (dtype) => ARRAYS[dtype] ?? OTHERS[dtype];

/** @type {(shape: readonly number[]) => number} */
export const count = (shape) => shape.reduce((n, d) => n * d, 1);

/**
 * Returns a copy in another dtype, in a buffer of whole words for the GPU. Throws for a value out of its range.
 * @param {string} dtype
 * @param {ArrayLike<any>} data
 * @param {string} [reason] why this dtype: the end of the error's message
 */
export function cast(dtype, data, reason = "") {
  const Type = arrayOf(dtype);
  const { length } = data;
  const copy = new Type(new ArrayBuffer((length * Type.BYTES_PER_ELEMENT + 3) & ~3), 0, length);
  const integral = !dtype.includes("float");
  const toNumber = dtype.endsWith("64") && integral ? BigInt : Number;
  if (data instanceof Type) copy.set(data);
  else if (dtype === "float16" && Type === Uint16Array)
    throw new InvalidInput("this platform has no Float16Array: pass the bits of float16 values as a Uint16Array");
  else
    for (let k = 0; k < length; k++) {
      const value = data[k];
      try {
        copy[k] = toNumber(value);
      } catch {} // the element stays 0, which differs from `value`
      if (integral ? Number(copy[k]) !== Number(value) : !Number.isFinite(copy[k]) && !Object.is(copy[k], value))
        throw new InvalidInput(`${value} does not fit ${dtype}${reason}`);
    }
  return copy;
}

/** Returns values of the GPU in the program's dtype. @param {string} dtype @param {any} data */
export function fromDevice(dtype, data) {
  if (dtype !== "bfloat16") return new (arrayOf(dtype))(data);
  const bits = new Uint32Array(data.buffer);
  for (let k = 0; k < bits.length; k++) // rounds to nearest, ties to even
    if (data[k] === data[k]) bits[k] = (bits[k] + 0x7fff + ((bits[k] >> 16) & 1)) & ~0xffff;
  return data;
}

/**
 * Returns copies of the inputs that match their declaration. Throws InvalidInput if an input cannot match.
 * @param {string} name of the method
 * @param {any[]} inputs
 * @param {Spec[]} specs
 * @param {boolean} onGpu whether to convert to the GPU's dtypes
 */
export function accept(name, inputs, specs, onGpu) {
  if (inputs.length !== specs.length)
    throw new InvalidInput(`${name} takes ${specs.length} inputs, not ${inputs.length}`);
  return specs.map((spec, k) => {
    try {
      const target = onGpu ? spec.device : spec.dtype;
      return target ? toTensor(inputs[k], spec, target) : toInt(inputs[k], spec);
    } catch (error) {
      const { dtype, shape, dynamic, value } = spec;
      const expected = dtype
        ? `${dtype} [${shape.map((n) => (dynamic ? `≤${n}` : n)).join(", ")}]`
        : value === undefined ? "an int" : `${value}, the value it was exported with`;
      throw new InvalidInput(`input ${k} of ${name} must be ${expected}: ${/** @type {Error} */ (error).message}`);
    }
  });
}

/** @param {any} input @param {Spec} spec */
function toInt(input, { value }) {
  if (value === null || value === input) return input;
  const number = typeof input === "object" ? NaN : Number(input);
  if (value !== undefined || !Number.isSafeInteger(number)) throw Error(`got ${input?.dtype ? "a tensor" : input}`);
  return number;
}

/** @param {any} input @param {Spec} spec @param {string} target dtype */
function toTensor(input, { dtype, device, shape, dynamic }, target) {
  let tensor = input;
  if (!input?.dtype) {
    const nested = Array.isArray(input) ? shapeOf(input) : [];
    const data = ArrayBuffer.isView(input) ? /** @type {any} */ (input) : [input].flat(Infinity);
    const flat = data.length === count(shape) ? shape : [data.length];
    tensor = new Tensor(/** @type {string} */ (dtype), nested.length > 1 ? nested : flat, data);
  }
  if (tensor.dtype !== (tensor.gpuBuffer ? device : dtype)) throw Error(`got ${tensor.dtype}`);
  /** @type {(n: number, k: number) => boolean} */
  const fits = (n, k) => (dynamic ? tensor.shape[k] <= n : tensor.shape[k] === n);
  if (tensor.shape.length !== shape.length || !shape.every(fits))
    throw Error(`got shape [${tensor.shape.join(", ")}]`);
  if (tensor.gpuBuffer) return tensor;
  if (tensor.data.length !== count(tensor.shape)) throw Error(`got ${tensor.data.length} values`);
  const typed = tensor.data instanceof arrayOf(target) ? tensor.data : cast(/** @type {string} */ (dtype), tensor.data);
  return { dtype, shape: tensor.shape, data: cast(target, typed, ", which the GPU computes with") };
}

/** Returns the shape of nested lists. @param {any} list @returns {number[]} */
function shapeOf(list) {
  if (!Array.isArray(list)) return [];
  const shapes = list.map(shapeOf);
  if (new Set(shapes.map(String)).size > 1) throw Error("its lists have different lengths");
  return [list.length, ...(shapes[0] ?? [])];
}
