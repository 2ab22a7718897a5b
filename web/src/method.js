/** A method of a program: what it takes and gives, and its runs. */

import { Tensor, cast, count, fromDevice } from "./dtypes.js";
import { ExecutionError, InvalidInput } from "./errors.js";

/** @typedef {import("./plan.js").Plan} Plan */
/** @typedef {import("./gpu.js").Resident} Resident */
/** @typedef {{name: string, dtype: string | null, device?: string, shape: number[], dynamic: boolean, value?: any}} Spec `device`: its
 *   type on the GPU; without a dtype it is an int, or always this value */
/** @typedef {{result(): Promise<any[]>, resident(): (Resident | number)[], discard(): void}} Running what was started: what it gives;
 *   that on the GPU, as inputs of the next start; nobody wants it */
/** @typedef {ReturnType<typeof openMethod>} Method */

/**
 * @param {import("./gpu.js").Gpu} gpu
 * @param {any} json
 * @param {Plan[]} plans
 * @param {{run(inputs: any[], signal?: AbortSignal): Promise<any[]>, reset(): void} | null} host what runs it, where one plan does
 *   not do it all
 */
export function openMethod({ inTurn }, { name, signature, direct }, plans, host) {
  /** @param {any[]} inputs @returns {any[]} */
  function accept(inputs) {
    const { length } = signature.inputs;
    if (inputs.length !== length) throw new InvalidInput(`${name} takes ${length} inputs, not ${inputs.length}`);
    method.runs++;
    return signature.inputs.map((/** @type {Spec} */ spec, /** @type {number} */ k) =>
      accepted(inputs[k], spec, `input ${k} of ${name}`, direct ? spec.device : spec.dtype),
    );
  }

  const method = {
    /** @type {{inputs: Spec[], outputs: Spec[]}} */
    signature,
    plans,
    /** Whether one plan does it all, so that it can be started without waiting for the result. @type {boolean} */
    inOnePlan: !host,
    /** And resets: what states hold is as somebody left it, if this is what it was then. */
    runs: 0,

    /** Starts a run; inputs may be resident outputs of the one before. @param {any[]} inputs @returns {Promise<Running>} */
    async start(inputs) {
      if (!direct) throw new ExecutionError(`${name} needs several plans: use run`);
      const given = accept(inputs);
      const { outputs, done } = await inTurn(() =>
        plans[direct.plan].run(direct.inputs.map((/** @type {number} */ k) => given[k]), direct.outputs),
      );
      const found = direct.outputs.map((/** @type {number} */ k) => outputs[k]);
      return {
        resident: () => found,
        discard() {},
        async result() {
          const read = (await done).values();
          return found.map((/** @type {any} */ o, /** @type {number} */ k) =>
            o.dtype ? fromDevice(signature.outputs[k].dtype, o.shape, read.next().value) : o,
          );
        },
      };
    },

    /** @param {any[]} inputs @param {AbortSignal} [signal] @returns {Promise<any[]>} */
    async run(inputs, signal) {
      if (!host) return (await method.start(inputs)).result();
      const given = accept(inputs);
      return inTurn(() => host.run(given, signal));
    },

    /** States back to their first values. @returns {Promise<void>} */
    reset() {
      method.runs++;
      return inTurn(async () => {
        for (const plan of plans) plan.reset();
        host?.reset();
      });
    },
  };
  return method;
}

/**
 * An input as it was declared: a copy of its values in the type `to`, where they are not on the GPU.
 * @param {any} given
 * @param {Spec} spec
 * @param {string} what
 * @param {any} to
 * @returns {any}
 */
function accepted(given, { dtype, device, shape, dynamic, value }, what, to) {
  const wanted = dtype ? `${dtype} [${shape.map((n) => (dynamic ? "≤" : "") + n).join(", ")}]` : value === undefined ? "an int" : value;
  try {
    if (!dtype) {
      if (value === null || value === given) return given;
      if (value === undefined && typeof given !== "object" && Number.isSafeInteger(Number(given))) return Number(given);
      throw Error(`it is ${given}`);
    }
    const nested = Array.isArray(given) ? shapeOf(given) : [];
    const values = ArrayBuffer.isView(given) ? /** @type {any} */ (given) : [given].flat(Infinity);
    const guessed = nested.length > 1 ? nested : values.length === count(shape) ? shape : [values.length];
    const found = given?.gpuBuffer ? given : given?.dtype ? new Tensor(given.dtype, given.shape, given.data) : new Tensor(dtype, guessed, values);
    if (found.dtype !== (found.gpuBuffer ? device : dtype)) throw Error(`it is ${found.dtype}`);
    /** @type {(n: number, k: number) => boolean} */
    const fits = (n, k) => (dynamic ? found.shape[k] <= n : found.shape[k] === n);
    if (found.shape.length !== shape.length || !shape.every(fits)) throw Error(`it is [${found.shape.join(", ")}]`);
    return found.gpuBuffer ? found : { dtype, shape: found.shape, data: cast(to, found.data) };
  } catch (error) {
    throw new InvalidInput(`${what} must be ${wanted}: ${/** @type {Error} */ (error).message}`);
  }
}

/** The shape of nested lists. @param {any} list @returns {number[]} */
function shapeOf(list) {
  if (!Array.isArray(list)) return [];
  const shapes = list.map(shapeOf);
  if (new Set(shapes.map(String)).size > 1) throw Error("its lists have different lengths");
  return [list.length, ...(shapes[0] ?? [])];
}
