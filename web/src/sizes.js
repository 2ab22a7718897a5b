/** The resolution of a plan for its input sizes: the family, the dispatches, and their numbers. */

import { IndexOutOfRange, InvalidInput } from "./index.js";
import { evaluate } from "./rows.js";

/** @typedef {import("./plan.js").ResolvedRun} ResolvedRun */

/**
 * Returns a function that resolves a plan for its inputs. Each result must run before the next one is resolved: its
 * `writes` hold only what differs from the last.
 * @param {any} json
 * @returns {(inputs: any[]) => ResolvedRun}
 */
export function openSizes({ rows, keys, families, buffers, syms }) {
  /** The last result. @type {ResolvedRun} */
  let last = /** @type {any} */ ({});

  return (inputs) => {
    const values = evaluate(rows, inputs);
    /** @type {(n: any) => number} */
    const number = (n) => values[n[0]] ?? n;

    /** Returns the first alternative whose guards hold. @type {(alternatives: any[]) => any} */
    const first = (alternatives) => {
      const match = alternatives.find((o) => (o.guards ?? o[0]).every((/** @type {number} */ g) => values[g]));
      const sizes = JSON.stringify(inputs.map((input) => input.shape ?? input));
      const unplanned = `the model was not compiled for the sizes ${sizes}: add them with --size`;
      const refusal = match ? match.refusal || match[2] : unplanned;
      if (refusal) throw new InvalidInput(refusal);
      return match;
    };

    let { family, dispatches } = last;
    /** @type {ResolvedRun["writes"]} */
    const writes = [];
    const key = keys.map((/** @type {number} */ row) => values[row]).join();
    if (key !== last.key) {
      family = first(families);
      dispatches = family.steps
        .flatMap((/** @type {any[]} */ choices) => first(choices)[1])
        .filter((/** @type {any} */ [, , grid]) => grid.every(number));
      for (const [, bindings, , , , , , patches] of dispatches) {
        const params = bindings.find((/** @type {number[]} */ [b]) => buffers[b].role === "params");
        for (const [word, [row], kind] of patches)
          writes.push([params[0], 4 * word, (kind === "f32" ? Float32Array : Uint32Array).of(values[row])]);
      }
    }
    for (const bound of family.bounds ?? []) checkBound(bound, inputs, number);
    if (syms !== null) {
      const words = (family.words ?? []).map(number);
      const tooLarge = words.find((/** @type {number} */ n) => n !== (n | 0));
      if (tooLarge !== undefined) throw new InvalidInput(`${tooLarge} does not fit int32, which the GPU computes with`);
      writes.push([syms, 0, Int32Array.from(words)]);
    }
    return (last = { key, family, dispatches, number, writes });
  };
}

/**
 * Throws IndexOutOfRange if the host knows an index and it is out of range.
 * @param {any} bound
 * @param {any[]} inputs
 * @param {ResolvedRun["number"]} number
 */
function checkBound({ kind, source, low, end, text, node, moves = [] }, inputs, number) {
  const [lowest, upper] = [low, end].map(number);
  const indices = kind === "int" ? [number(source)] : kind === "input" && inputs[source].data;
  // Unknown on the host: the kernels clamp such indices to their buffers.
  if (!indices || moves.some((/** @type {any} */ m) => m.op !== "view")) return;
  const bad = indices.findIndex((/** @type {number} */ n) => !(n >= lowest && n < upper));
  if (bad >= 0) {
    const description = text.replace("{}", indices[bad]).replace("{}", bad);
    throw new IndexOutOfRange(`${description} is out of range for ${node}, which takes ${lowest} to ${upper - 1}`);
  }
}
