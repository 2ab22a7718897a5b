/** Numbers of a plan: rows of small arithmetic over the sizes of inputs and over ints. */

/** @typedef {[string, number, number]} Row */

/** @type {(a: number, b: number) => number} */
const rest = (a, b) => (b ? (((a % b) + b) % b) : 0);

/** @type {Record<string, (a: number, b: number) => number>} */
const OPERATORS = {
  add: (a, b) => a + b,
  sub: (a, b) => a - b,
  mul: (a, b) => a * b,
  min: Math.min,
  max: Math.max,
  floordiv: (a, b) => (b ? (a - rest(a, b)) / b : 0), // exact, unlike the floor of a quotient
  mod: rest,
  div: (a, b) => (b ? a / b : 0),
  ceil: Math.ceil,
  floor: Math.floor,
  lt: (a, b) => +(a < b),
  ge: (a, b) => +(a >= b),
  eq: (a, b) => +(a === b),
  ne: (a, b) => +(a !== b),
};

/**
 * The values of all rows; NaN for an element that is not known here.
 * @param {Row[]} rows
 * @param {any[]} inputs ints, or what has a `shape` and maybe `data`
 * @returns {Float64Array}
 */
export function evaluate(rows, inputs) {
  const found = new Float64Array(rows.length);
  rows.forEach(([name, a, b], k) => {
    found[k] =
      name === "const" ? a
      : name === "size" ? inputs[a].shape[b]
      : name === "int" ? inputs[a]
      : name === "item" ? inputs[b].data?.[found[a]]
      : OPERATORS[name](found[a], found[b]);
  });
  return found;
}
