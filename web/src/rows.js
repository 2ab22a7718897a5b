/** The numbers of a plan: rows of arithmetic on input sizes and ints. */

/** @typedef {[string, number, number]} Row */

/** @type {(a: number, b: number) => number} */
const modulo = (a, b) => (b ? (((a % b) + b) % b) : 0);

/** @type {Record<string, (a: number, b: number) => number>} */
const OPERATORS = {
  add: (a, b) => a + b,
  sub: (a, b) => a - b,
  mul: (a, b) => a * b,
  min: Math.min,
  max: Math.max,
  floordiv: (a, b) => (b ? (a - modulo(a, b)) / b : 0), // exact, unlike the floor of a quotient
  mod: modulo,
  div: (a, b) => (b ? a / b : 0),
  ceil: Math.ceil,
  floor: Math.floor,
  lt: (a, b) => +(a < b),
  ge: (a, b) => +(a >= b),
  eq: (a, b) => +(a === b),
  ne: (a, b) => +(a !== b),
};

/**
 * Returns the values of all rows; NaN for an element of a tensor on the GPU.
 * @param {Row[]} rows
 * @param {any[]} inputs ints, or objects with a `shape` and, on the host, `data`
 * @returns {Float64Array}
 */
export function evaluate(rows, inputs) {
  const values = new Float64Array(rows.length);
  rows.forEach(([name, a, b], k) => {
    values[k] =
      name === "const" ? a
      : name === "size" ? inputs[a].shape[b]
      : name === "int" ? inputs[a]
      : name === "item" ? inputs[b].data?.[values[a]]
      : OPERATORS[name](values[a], values[b]);
  });
  return values;
}
