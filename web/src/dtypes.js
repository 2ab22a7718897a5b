/** Tensors, and the dtypes that a GPU supports. */

/** Typed arrays by dtype. Without Float16Array, float16 is stored as its bits. @type {Record<string, any>} */
export const ARRAYS = {
  bool: Uint8Array,
  uint8: Uint8Array,
  int8: Int8Array,
  int32: Int32Array,
  float16: /** @type {any} */ (globalThis).Float16Array ?? Uint16Array,
  float32: Float32Array,
};

/** @type {(shape: readonly number[]) => number} */
export const count = (shape) => shape.reduce((n, d) => n * d, 1);

/** Values with a shape. */
export class Tensor {
  /**
   * @param {string} dtype
   * @param {readonly number[]} shape
   * @param {any} data a typed array: BigInt64Array for `int64`, Float32Array for `bfloat16`, Uint8Array for `bool`;
   *   for `float16` without Float16Array, a Uint16Array of the bits. A run converts other arrays and lists.
   */
  constructor(dtype, shape, data) {
    this.dtype = dtype;
    this.shape = shape;
    this.data = data;
  }
}
