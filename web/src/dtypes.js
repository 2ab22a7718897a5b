/** Element types and tensors. */

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

/** Values with a shape. */
export class Tensor {
  /**
   * @param {string} dtype
   * @param {readonly number[]} shape
   * @param {any} data a typed array: `int64` has a BigInt64Array, `bfloat16` a Float32Array, `bool` a Uint8Array, `float16`
   *   where there is no Float16Array a Uint16Array of its bits. A run takes others and lists, too, and converts them.
   */
  constructor(dtype, shape, data) {
    this.dtype = dtype;
    this.shape = shape;
    this.data = data;
  }
}
