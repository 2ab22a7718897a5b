/** Whether this GPU computes what it should: the reference that came with the site. */

import { arrayOf } from "./convert.js";
import { ExecutionError, Tensor } from "./index.js";

/**
 * @param {import("./index.js").Program} program
 * @param {string} base
 * @param {(url: string) => Promise<Response>} [get]
 * @returns {Promise<{ok: boolean, error: number, tolerance: number}>}
 */
export async function check(program, base, get = fetch) {
  const { check: told } = program.site ?? {};
  if (!told)
    throw new ExecutionError("this site has no reference to check with: it was made where no GPU could run it");
  const bytes = await (await get(base + told.file)).arrayBuffer();
  /** @type {(t: any) => any} */
  const value = (t) =>
    t?.dtype ? new Tensor(t.dtype, t.shape, new (arrayOf(t.dtype))(bytes.slice(t.at, t.at + t.length))) : t;
  program.reset(told.method);
  const found = await program.run(told.inputs.map(value), { method: told.method });
  program.reset(told.method);
  /** @type {(t: any, k: number) => number} */
  const off = (t, k) => (t === null ? 0 : distance(value(t), found[k])); // null: whatever it is
  const error = Math.max(0, ...told.outputs.map(off));
  return { ok: error <= told.tolerance, error, tolerance: told.tolerance };
}

/** The largest difference, relative to the largest value. @param {any} wanted @param {any} found */
function distance(wanted, found) {
  const [a, b] = [wanted, found].map((x) => (x?.data ?? [x]));
  let largest = 0;
  let worst = a.length === b.length ? 0 : Infinity;
  for (let k = 0; k < a.length; k++) {
    const [x, y] = [Number(a[k]), Number(b[k])];
    if (Number.isFinite(x)) largest = Math.max(largest, Math.abs(x));
    if (!Object.is(x, y) && x !== y) worst = Math.max(worst, Number.isFinite(x - y) ? Math.abs(x - y) : Infinity);
  }
  return worst / (largest || 1);
}
