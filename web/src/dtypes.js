/** Element types: as callers have them, and as the GPU has them. */

import { InvalidInput } from "./errors.js";

/** @typedef {Uint8Array | Int8Array | Int16Array | Uint16Array | Int32Array | Uint32Array | BigInt64Array |
 *   BigUint64Array | Float32Array | Float64Array} Data */

const Half = /** @type {any} */ (globalThis).Float16Array ?? Uint16Array;

/** By name: the array of a tensor, and what it is on the GPU where that differs. @type {Record<string, [any, string?]>} */
const TYPES = {
  bool: [Uint8Array],
  uint8: [Uint8Array],
  int8: [Int8Array],
  int16: [Int16Array, "int32"],
  uint16: [Uint16Array, "int32"],
  int32: [Int32Array],
  uint32: [Uint32Array],
  int64: [BigInt64Array, "int32"],
  uint64: [BigUint64Array],
  float16: [Half],
  bfloat16: [Float32Array, "float32"],
  float32: [Float32Array],
  float64: [Float64Array, "float32"],
};

/** The arrays of a type. @type {(dtype: string) => any} */
export const arrayOf = (dtype) => TYPES[dtype][0];

/** The arrays of a type on the GPU. @type {(dtype: string) => any} */
export const deviceArrayOf = (dtype) => arrayOf(TYPES[dtype][1] ?? dtype);

/** @type {(shape: readonly number[]) => number} */
export const count = (shape) => shape.reduce((n, d) => n * d, 1);

/** Values with a shape. `bfloat16` is a Float32Array, `int64` a BigInt64Array (an Int32Array is taken, too). */
export class Tensor {
  /**
   * @param {string} dtype
   * @param {readonly number[]} shape
   * @param {ArrayLike<number | bigint | boolean> | Data} data
   */
  constructor(dtype, shape, data) {
    if (!TYPES[dtype]) throw new InvalidInput(`there is no dtype ${dtype}; use one of ${Object.keys(TYPES).join(", ")}`);
    if (data.length !== count(shape)) throw new InvalidInput(`${data.length} values cannot have the shape [${shape}]`);
    this.dtype = dtype;
    /** @type {readonly number[]} */
    this.shape = shape;
    /** @type {any} */
    this.data = ArrayBuffer.isView(data) && (data instanceof arrayOf(dtype) || (dtype === "int64" && data instanceof Int32Array))
      ? data
      : convert(dtype, data);
  }
}

/** @type {(dtype: string, data: ArrayLike<any>) => Data} */
function convert(dtype, data) {
  const made = new (arrayOf(dtype))(data.length);
  const whole = !/float|bool/.test(dtype);
  if (dtype === "float16" && made instanceof Uint16Array)
    throw new InvalidInput("this platform has no Float16Array: give float16 as a Uint16Array of its bits");
  for (let k = 0; k < data.length; k++) {
    const value = data[k];
    const number = Number(value);
    if (Number.isNaN(number) && !Number.isNaN(value)) throw new InvalidInput(`${String(value)} is not a number`);
    made[k] = !whole ? number : dtype.endsWith("64") ? asBigInt(value) : number;
    if (whole && Number(made[k]) !== number) throw new InvalidInput(`${value} is not a value of ${dtype}`);
  }
  return made;
}

/** @type {(value: any) => bigint} */
function asBigInt(value) {
  if (typeof value === "number" && !Number.isInteger(value)) throw new InvalidInput(`${value} is not a whole number`);
  return BigInt(value);
}

/**
 * Values as the GPU takes them; what does not fit is an error, or clipped where it is an index that the program made.
 * @param {Tensor} tensor
 * @param {string} what
 * @param {boolean} [clip]
 * @returns {Data}
 */
export function toDevice({ dtype, data }, what, clip = false) {
  const Array = deviceArrayOf(dtype);
  if (data instanceof Array) return data;
  const made = new Array(data.length);
  for (let k = 0; k < made.length; k++) {
    const value = Number(data[k]);
    made[k] = value;
    if (dtype === "int64" && made[k] !== value) {
      if (!clip) throw new InvalidInput(`${what}: ${data[k]} does not fit int32, which is what the GPU computes with`);
      made[k] = value < 0 ? -(2 ** 31) : 2 ** 31 - 1;
    } else if (Number.isFinite(value) && !Number.isFinite(made[k])) {
      throw new InvalidInput(`${what}: ${value} does not fit float32, which is what the GPU computes with`);
    }
  }
  return made;
}

/**
 * Values that the GPU gave, in the program's type.
 * @param {string} dtype
 * @param {readonly number[]} shape
 * @param {ArrayBuffer} bytes
 */
export function fromDevice(dtype, shape, bytes) {
  const Array = arrayOf(dtype);
  let data = new (deviceArrayOf(dtype))(bytes, 0, count(shape));
  if (dtype === "int64") data = Array.from(data, BigInt);
  else if (!(data instanceof Array)) data = new Array(data);
  if (dtype === "bfloat16") {
    const bits = new Uint32Array(bytes, 0, data.length);
    for (let k = 0; k < bits.length; k++) // to the nearest, ties to even
      if (data[k] === data[k]) bits[k] = (bits[k] + 0x7fff + ((bits[k] >>> 16) & 1)) & 0xffff0000;
  }
  return new Tensor(dtype, shape, data);
}
