// Values and errors on their way between threads.
import * as errors from "./errors.js";

/**
 * `value` with copies of its typed arrays, whose memory is moved instead of copied again: the caller keeps what he has.
 * @param {any} value tensors, typed arrays, numbers, lists of these
 * @param {Transferable[]} moved is given the memory of the copies
 * @returns {any}
 */
export function packed(value, moved) {
  if (ArrayBuffer.isView(value)) {
    const copy = /** @type {Uint8Array<ArrayBuffer>} */ (value).slice();
    moved.push(copy.buffer);
    return copy;
  }
  if (Array.isArray(value)) return value.map((one) => packed(one, moved));
  if (value?.dtype === undefined) return value;
  return { dtype: value.dtype, shape: [...value.shape], data: packed(value.data, moved) };
}

/** What `revive` makes an error of again. @type {(error: any) => {code: string, message: string}} */
export const told = (error) =>
  typeof error?.code === "string" ? { code: error.code, message: error.message } : { code: "", message: String(error) };

/**
 * The error that another thread told of. One that is not ours becomes a PtegpuError.
 * @param {{code: string, message: string}} told
 * @returns {InstanceType<typeof errors.PtegpuError>}
 */
export const revive = ({ code, message }) =>
  new (/** @type {Record<string, typeof errors.PtegpuError>} */ (errors)[code] ?? errors.PtegpuError)(message);
