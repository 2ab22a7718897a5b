/** Element types and tensors. */

import { InvalidInput } from "./errors.js";

/** @type {Record<string, any>} */
const ARRAYS = {
  bool: Uint8Array,
  uint8: Uint8Array,
  int8: Int8Array,
  int16: Int16Array,
  uint16: Uint16Array,
  int32: Int32Array,
  uint32: Uint32Array,
  int64: BigInt64Array,
  uint64: BigUint64Array,
  float16: /** @type {any} */ (globalThis).Float16Array ?? Uint16Array,
  bfloat16: Float32Array,
  float32: Float32Array,
  float64: Float64Array,
};

/** The arrays of a type. @type {(dtype: string) => any} */
export const arrayOf = (dtype) => ARRAYS[dtype];

/** @type {(shape: readonly number[]) => number} */
export const count = (shape) => shape.reduce((n, d) => n * d, 1);

/** Values with a shape. `int64` is a BigInt64Array, `bfloat16` a Float32Array, `bool` a Uint8Array. */
export class Tensor {
  /**
   * @param {string} dtype
   * @param {readonly number[]} shape
   * @param {ArrayLike<number | bigint | boolean>} data a list is converted; what the type cannot hold is an error
   */
  constructor(dtype, shape, data) {
    if (!ARRAYS[dtype]) throw new InvalidInput(`there is no dtype ${dtype}; use one of ${Object.keys(ARRAYS).join(", ")}`);
    if (data.length !== count(shape)) throw new InvalidInput(`${data.length} values cannot have the shape [${shape}]`);
    this.dtype = dtype;
    /** @type {readonly number[]} */
    this.shape = shape;
    /** @type {any} */
    this.data = data instanceof ARRAYS[dtype] ? data : cast(dtype, data);
  }
}

/**
 * A copy in another type, in memory of whole words, as a GPU takes it. What the type cannot hold is an error.
 * @param {string} dtype
 * @param {ArrayLike<any>} data
 */
export function cast(dtype, data) {
  const Type = ARRAYS[dtype];
  const { length } = data;
  const made = new Type(new ArrayBuffer((length * Type.BYTES_PER_ELEMENT + 3) & ~3), 0, length);
  if (data instanceof Type) made.set(data);
  else if (dtype === "float16" && Type === Uint16Array)
    throw new InvalidInput("float16 needs Float16Array, which is missing here: give a Uint16Array of the bits");
  else
    for (let k = 0; k < length; k++) {
      const value = data[k];
      try {
        made[k] = made[k] === 0 ? Number(value) : BigInt(value);
      } catch {} // then it is 0, which differs
      const bad = /flo/.test(dtype) ? !Number.isFinite(made[k]) && !Object.is(made[k], value) : Number(made[k]) !== Number(value);
      if (bad) throw new InvalidInput(`${value} does not fit ${dtype}`);
    }
  return made;
}

/**
 * Values that the GPU gave, in the program's type.
 * @param {string} dtype
 * @param {readonly number[]} shape
 * @param {any} data in the GPU's type
 */
export function fromDevice(dtype, shape, data) {
  if (dtype === "bfloat16") {
    const bits = new Uint32Array(data.buffer);
    for (let k = 0; k < bits.length; k++) // to the nearest, ties to even
      if (data[k] === data[k]) bits[k] = (bits[k] + 0x7fff + ((bits[k] >> 16) & 1)) & ~0xffff;
  }
  return new Tensor(dtype, shape, dtype === "int64" ? BigInt64Array.from(data, BigInt) : new ARRAYS[dtype](data));
}
