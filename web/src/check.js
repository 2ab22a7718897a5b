/** The self-check: compares this GPU's results with the reference that came with the site. */

import { arrayOf } from "./convert.js";
import { ExecutionError, Tensor } from "./index.js";

/**
 * Runs the reference inputs and returns the error relative to the largest expected value.
 * @param {import("./index.js").Program} program
 * @param {string} base
 * @param {(url: string) => Promise<Response>} [get]
 * @returns {Promise<{ok: boolean, error: number, tolerance: number}>}
 */
export async function check(program, base, get = fetch) {
  const { check: reference } = program.site ?? {};
  if (!reference)
    throw new ExecutionError("this site has no reference results: no GPU could run the model when it was written");
  const bytes = await (await get(base + reference.file)).arrayBuffer();
  /** @type {(t: any) => any} */
  const value = (t) =>
    t?.dtype ? new Tensor(t.dtype, t.shape, new (arrayOf(t.dtype))(bytes.slice(t.at, t.at + t.length))) : t;
  const { method, tolerance } = reference;
  program.reset(method);
  const outputs = await program.run(reference.inputs.map(value), { method });
  program.reset(method);
  /** @type {(t: any, k: number) => number} */
  const errorOf = (t, k) => (t === null ? 0 : distance(value(t), outputs[k])); // null: not compared
  const error = Math.max(0, ...reference.outputs.map(errorOf));
  return { ok: error <= tolerance, error, tolerance };
}

/** Returns the largest difference, relative to the largest expected value. @param {any} expected @param {any} actual */
function distance(expected, actual) {
  const [a, b] = [expected, actual].map((x) => (x?.data ?? [x]));
  let largest = 0;
  let worst = a.length === b.length ? 0 : Infinity;
  for (let k = 0; k < a.length; k++) {
    const [x, y] = [Number(a[k]), Number(b[k])];
    if (Number.isFinite(x)) largest = Math.max(largest, Math.abs(x));
    if (!Object.is(x, y) && x !== y) worst = Math.max(worst, Number.isFinite(x - y) ? Math.abs(x - y) : Infinity);
  }
  return worst / (largest || 1);
}
