// Values and errors as messages between threads.
import * as errors from "./errors.js";

/**
 * Returns `value` with copies of its typed arrays, whose buffers a message can transfer; the caller keeps the originals.
 * @param {any} value tensors, typed arrays, numbers, lists of these
 * @param {Transferable[]} moved receives the buffers of the copies
 * @returns {any}
 */
export function packed(value, moved) {
  if (ArrayBuffer.isView(value)) {
    const copy = /** @type {Uint8Array<ArrayBuffer>} */ (value).slice();
    moved.push(copy.buffer);
    return copy;
  }
  if (Array.isArray(value)) return value.map((item) => packed(item, moved));
  if (value?.dtype === undefined) return value;
  return { dtype: value.dtype, shape: [...value.shape], data: packed(value.data, moved) };
}

/** Returns an error as a message, for `revive`. @type {(error: any) => {code: string, message: string}} */
export const serialized = (error) =>
  typeof error?.code === "string" ? { code: error.code, message: error.message } : { code: "", message: String(error) };

/**
 * Returns the error of another thread; an error of any other class becomes a PtegpuError.
 * @param {{code: string, message: string}} error
 * @returns {InstanceType<typeof errors.PtegpuError>}
 */
export const revive = ({ code, message }) =>
  new (/** @type {Record<string, typeof errors.PtegpuError>} */ (errors)[code] ?? errors.PtegpuError)(message);
