/** Tensors, and the types that a GPU has. */

/** The arrays of each; of halves their bits, where there is nothing better. @type {Record<string, any>} */
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
   * @param {any} data a typed array: `int64` has a BigInt64Array, `bfloat16` a Float32Array, `bool` a Uint8Array,
   *   `float16` where there is no Float16Array a Uint16Array of its bits. A run converts others, and lists.
   */
  constructor(dtype, shape, data) {
    this.dtype = dtype;
    this.shape = shape;
    this.data = data;
  }
}
