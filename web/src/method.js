/** A method of a program: what it takes and gives, and its runs. */

import { ARRAYS, Tensor, count } from "./dtypes.js";
import { ExecutionError } from "./errors.js";

/** @typedef {import("./plan.js").Plan} Plan */
/** @typedef {import("./gpu.js").Resident} Resident */
/**
 * What a method takes or gives. `device`: its type on the GPU; without a dtype it is an int, or always this value.
 * @typedef {{name: string, dtype: string | null, device?: string, shape: number[], dynamic: boolean, value?: any}} Spec
 */
/**
 * What was started: what it gives; that on the GPU, as inputs of the next start; nobody wants it.
 * @typedef {{result(): Promise<any[]>, resident(): (Resident | number)[], discard(): void}} Running
 */
/**
 * What runs a method, where one plan does not do it all.
 * @typedef {{run(inputs: any[], signal?: AbortSignal): Promise<any[]>, reset(): void}} Host
 */
/** @typedef {ReturnType<typeof openMethod>} Method */

/**
 * @param {import("./gpu.js").Gpu} gpu
 * @param {any} json
 * @param {Plan[]} plans
 * @param {Host | null} host
 */
export function openMethod({ inTurn }, { name, signature, direct }, plans, host) {
  /**
   * What `work` gives for copies of the inputs, in its turn.
   * @template T
   * @param {any[]} inputs
   * @param {(given: any[]) => Promise<T>} work
   * @returns {Promise<T>}
   */
  function accepted(inputs, work) {
    /** @type {Spec[]} */
    const specs = signature.inputs;
    const simple = specs.map((spec, k) => asDeclared(inputs[k], spec));
    const exact = !host && inputs.length === specs.length && !simple.includes(undefined);
    const given = exact ? simple : inputs.map((one) => (one?.gpuBuffer ? one : structuredClone(one)));
    method.runs++;
    return inTurn(async () => work(exact ? given : (await import("./convert.js")).accept(name, given, specs, !host)));
  }

  const method = {
    /** @type {{inputs: Spec[], outputs: Spec[]}} */
    signature,
    plans,
    /** Whether one plan does it all, so that it can be started without waiting for the result. @type {boolean} */
    inOnePlan: !host,
    /** And resets: what states hold is as somebody left it, if this is what it was then. */
    runs: 0,

    /**
     * Starts a run; inputs may be resident outputs of the one before.
     * @param {any[]} inputs
     * @returns {Promise<Running>}
     */
    async start(inputs) {
      if (host) throw new ExecutionError(`${name} needs several plans: use run`);
      const { outputs, done } = await accepted(inputs, (given) =>
        plans[direct.plan].run(direct.inputs.map((/** @type {number} */ k) => given[k]), direct.outputs),
      );
      const found = direct.outputs.map((/** @type {number} */ k) => outputs[k]);
      return {
        resident: () => found,
        discard() {},
        async result() {
          return Promise.all((await done).map((value, k) => fromDevice(signature.outputs[k].dtype, found[k], value)));
        },
      };
    },

    /** @param {any[]} inputs @param {AbortSignal} [signal] @returns {Promise<any[]>} */
    async run(inputs, signal) {
      return host ? accepted(inputs, (given) => host.run(given, signal)) : (await method.start(inputs)).result();
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
 * A copy of an input; undefined where it is not just what was declared, or not of whole words.
 * @param {any} given
 * @param {Spec} spec
 */
function asDeclared(given, { dtype, device, shape, dynamic, value }) {
  if (!dtype) return value === undefined && Number.isSafeInteger(given) ? given : undefined;
  const { gpuBuffer, dtype: of, shape: sizes, data } = Object(given);
  if (of !== (gpuBuffer ? device : dtype) || sizes.length !== shape.length) return undefined;
  if (!shape.every((n, k) => (dynamic ? sizes[k] <= n : sizes[k] === n))) return undefined;
  if (gpuBuffer) return given;
  if (data?.constructor !== ARRAYS[/** @type {string} */ (device)] || data.length !== count(sizes)) return undefined;
  return data.byteLength % 4 ? undefined : { shape: sizes, data: data.slice() };
}

/**
 * Values that the GPU gave, in the program's type; an int is what it is.
 * @param {string} dtype
 * @param {any} output
 * @param {any} data
 */
export async function fromDevice(dtype, { dtype: device, shape }, data) {
  if (!dtype) return data;
  const found =
    dtype === device ? data
    : dtype === "int64" ? BigInt64Array.from(data, BigInt)
    : (await import("./convert.js")).fromDevice(dtype, data);
  return new Tensor(dtype, shape, found);
}
