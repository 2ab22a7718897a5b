// Values on their way between threads.

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
