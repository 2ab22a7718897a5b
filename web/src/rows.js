/** Numbers of a plan: rows of small arithmetic over the sizes of inputs and over ints. */

/** @typedef {[string, number, number]} Row */
/** @typedef {number | [number]} Count a number, or the row that gives it */

/** @type {(a: number, b: number) => number} */
const rest = (a, b) => (b ? (((a % b) + b) % b) : 0);

/** @type {Record<string, (a: number, b: number) => number>} */
const OPERATORS = {
  add: (a, b) => a + b,
  sub: (a, b) => a - b,
  mul: (a, b) => a * b,
  min: (a, b) => Math.min(a, b),
  max: (a, b) => Math.max(a, b),
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
 * The values of all rows.
 * @param {Row[]} rows
 * @param {(number | readonly number[])[]} sizes of each input its shape, or the int itself
 * @param {(input: number, place: number) => number} item an element of an input
 * @returns {Float64Array}
 */
export function evaluate(rows, sizes, item) {
  const found = new Float64Array(rows.length);
  rows.forEach(([name, a, b], k) => {
    const size = /** @type {any} */ (sizes[a]);
    found[k] =
      name === "const" ? a
      : name === "size" ? size[b]
      : name === "int" ? size
      : name === "item" ? item(b, found[a])
      : OPERATORS[name](found[a], found[b]);
  });
  return found;
}
