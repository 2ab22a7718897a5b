/** Element types and tensors. */

/** Where it is not called as the type is. @type {Record<string, string>} */
const CALLED = { bool: "Uint8", int64: "BigInt64", uint64: "BigUint64", bfloat16: "Float32" };

/** The arrays of a type: `Int8Array` of int8. Halves are their bits where there is no Float16Array. @type {(dtype: string) => any} */
export const arrayOf = (dtype) =>
  /** @type {any} */ (globalThis)[(CALLED[dtype] ?? dtype[0].toUpperCase() + dtype.slice(1)) + "Array"] ?? Uint16Array;

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
