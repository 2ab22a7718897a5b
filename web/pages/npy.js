// Arrays of the model's dtypes, and NumPy's .npy files.

/** @typedef {{dtype: string, shape: number[], data: any}} Tensor `data` is a typed array */

const Half = /** @type {any} */ (globalThis).Float16Array;
/** The array class of each dtype, and its name in a .npy file. @type {Record<string, [array: any, descr: string]>} */
const DTYPES = {
  float32: [Float32Array, "<f4"],
  float64: [Float64Array, "<f8"],
  float16: [Half, "<f2"],
  bfloat16: [Float32Array, "<f4"],
  int64: [BigInt64Array, "<i8"],
  int32: [Int32Array, "<i4"],
  int16: [Int16Array, "<i2"],
  int8: [Int8Array, "|i1"],
  uint8: [Uint8Array, "|u1"],
  uint16: [Uint16Array, "<u2"],
  uint32: [Uint32Array, "<u4"],
  bool: [Uint8Array, "|b1"],
};

/** @param {string} message */
const invalid = (message) => Object.assign(new Error(message), { code: "InvalidInput" });

/** Returns whether a dtype holds integers or bools. @param {string} dtype */
export const isIntegral = (dtype) => !/float/.test(dtype);

/** Returns the number of elements. @param {number[]} shape */
export const count = (shape) => shape.reduce((n, size) => n * size, 1);

/**
 * Returns an array of a dtype from numbers.
 * @param {string} dtype @param {number} length @param {(k: number) => number} value
 */
export function array(dtype, length, value) {
  const Kind = DTYPES[dtype]?.[0];
  if (!Kind) throw invalid(`This browser does not support arrays of ${dtype}.`);
  return Kind.from({ length }, (/** @type {unknown} */ _, /** @type {number} */ k) => element(dtype, value(k)));
}

/** Returns a number as an element of a dtype. @param {string} dtype @param {number} x @returns {number | bigint} */
export const element = (dtype, x) =>
  dtype === "int64" ? BigInt(Math.trunc(x)) : dtype === "bool" ? Number(x !== 0) : x;

/** Returns a .npy file. @param {Tensor} tensor */
export function write({ dtype, shape, data }) {
  const sizes = shape.length === 1 ? `${shape[0]},` : shape.join(", ");
  let head = `{'descr': '${DTYPES[dtype][1]}', 'fortran_order': False, 'shape': (${sizes}), }`;
  head = head.padEnd(Math.ceil((head.length + 11) / 64) * 64 - 11) + "\n"; // with 10 bytes before it
  const start = new Uint8Array([0x93, ...new TextEncoder().encode("NUMPY"), 1, 0, head.length & 255, head.length >> 8]);
  return new Blob([start, head, data]);
}

/**
 * Reads a .npy file, or a file of the elements' bytes, and converts it to `dtype`.
 * @param {ArrayBuffer} buffer @param {string} dtype @param {number[]} shape of a file without a .npy header
 * @returns {Tensor}
 */
export function read(buffer, dtype, shape) {
  const bytes = new Uint8Array(buffer),
    Kind = DTYPES[dtype][0];
  if (String.fromCharCode(...bytes.slice(1, 6)) !== "NUMPY") {
    const length = count(shape) * Kind.BYTES_PER_ELEMENT;
    if (bytes.length !== length) throw invalid(`The file has ${bytes.length} bytes; ${dtype}[${shape}] needs ${length}.`);
    return { dtype, shape, data: new Kind(buffer) };
  }
  const view = new DataView(buffer);
  const [at, size] = bytes[6] > 1 ? [12, view.getUint32(8, true)] : [10, view.getUint16(8, true)];
  const head = new TextDecoder().decode(bytes.slice(at, at + size));
  const [, descr = "", order = "", sizes = ""] =
    head.match(/'descr': *'([^']*)'.*'fortran_order': *(\w+).*'shape': *\(([^)]*)\)/) ?? [];
  const From = Object.values(DTYPES).find(([, name]) => name === descr)?.[0];
  if (!From || order === "True")
    throw invalid(
      `The .npy file has ${order === "True" ? "Fortran order" : descr ? `dtype ${descr}` : "no header"}: ` +
        `save it as ${dtype} in C order.`,
    );
  const fileShape = sizes
    .split(",")
    .filter((part) => part.trim())
    .map(Number);
  const data = new From(buffer.slice(at + size, at + size + count(fileShape) * From.BYTES_PER_ELEMENT));
  return { dtype, shape: fileShape, data: array(dtype, data.length, (k) => Number(data[k])) };
}
