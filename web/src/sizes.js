/** A plan at given sizes: its family, its dispatches, and the numbers in them. */

import { IndexOutOfRange, InvalidInput } from "./index.js";
import { evaluate } from "./rows.js";

/** @typedef {import("./plan.js").At} At */

/**
 * What tells of a plan what runs for given inputs. It expects that this is what runs next.
 * @param {any} json
 * @returns {(inputs: any[]) => At}
 */
export function openSizes({ rows, keys, families, buffers, syms }) {
  /** What was told last. @type {At} */
  let last = /** @type {any} */ ({});

  return (inputs) => {
    const values = evaluate(rows, inputs);
    /** @type {(n: any) => number} */
    const number = (n) => values[n[0]] ?? n;

    /** The first whose guards hold. @type {(options: any[]) => any} */
    const first = (options) => {
      const one = options.find((o) => (o.guards ?? o[0]).every((/** @type {number} */ g) => values[g]));
      const sizes = JSON.stringify(inputs.map((given) => given.shape ?? given));
      const unknown = `the model was compiled without the sizes ${sizes}: name them with --size`;
      const refusal = one ? one.refusal || one[2] : unknown;
      if (refusal) throw new InvalidInput(refusal);
      return one;
    };

    let { family, dispatches } = last;
    /** @type {At["writes"]} */
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
      const wide = words.find((/** @type {number} */ n) => n !== (n | 0));
      if (wide !== undefined) throw new InvalidInput(`${wide} does not fit int32, which the GPU computes with`);
      writes.push([syms, 0, Int32Array.from(words)]);
    }
    return (last = { key, family, dispatches, number, writes });
  };
}

/**
 * Refuses an index that is outside, where the host knows it.
 * @param {any} bound
 * @param {any[]} inputs
 * @param {At["number"]} number
 */
function checkBound({ kind, source, low, end, text, node, moves = [] }, inputs, number) {
  const [least, past] = [low, end].map(number);
  const all = kind === "int" ? [number(source)] : kind === "input" && inputs[source].data;
  if (!all || moves.some((/** @type {any} */ m) => m.op !== "view")) return; // the kernels stay in their buffers
  const bad = all.findIndex((/** @type {number} */ n) => !(n >= least && n < past));
  if (bad >= 0) {
    const what = text.replace("{}", all[bad]).replace("{}", bad);
    throw new IndexOutOfRange(`${what} is out of range for ${node}, which takes ${least} to ${past - 1}`);
  }
}
