/** A method of a program: its signature and its runs. */

import { ARRAYS, Tensor, count } from "./dtypes.js";
import { ExecutionError } from "./errors.js";

/** @typedef {import("./plan.js").Plan} Plan */
/** @typedef {import("./gpu.js").Resident} Resident */
/**
 * An input or output of a method. `device`: its dtype on the GPU. Without a dtype it is an int, or always `value`.
 * @typedef {{name: string, dtype: string | null, device?: string, shape: number[], dynamic: boolean, value?: any}} Spec
 */
/**
 * A started run: await its `result`, pass its `resident` GPU outputs to the next start, or `discard` it.
 * @typedef {{result(): Promise<any[]>, resident(): (Resident | number)[], discard(): void}} Running
 */
/**
 * The runner of a method that needs more than one plan.
 * @typedef {{run(inputs: any[], signal?: AbortSignal): Promise<any[]>, reset(): void}} Host
 */
/** @typedef {ReturnType<typeof openMethod>} Method */

/**
 * Returns a method that can run.
 * @param {import("./gpu.js").Gpu} gpu
 * @param {any} json
 * @param {Plan[]} plans
 * @param {Host | null} host
 */
export function openMethod({ inTurn }, { name, signature, direct }, plans, host) {
  /**
   * Copies the inputs now, and calls `work` with them after all earlier calls. Returns the result of `work`.
   * @template T
   * @param {any[]} inputs
   * @param {(copies: any[]) => Promise<T>} work
   * @returns {Promise<T>}
   */
  function withCopies(inputs, work) {
    /** @type {Spec[]} */
    const specs = signature.inputs;
    const declared = specs.map((spec, k) => asDeclared(inputs[k], spec));
    const exact = !host && inputs.length === specs.length && !declared.includes(undefined);
    const copies = exact ? declared : inputs.map((input) => (input?.gpuBuffer ? input : structuredClone(input)));
    method.runs++;
    return inTurn(async () => work(exact ? copies : (await import("./convert.js")).accept(name, copies, specs, !host)));
  }

  const method = {
    /** @type {{inputs: Spec[], outputs: Spec[]}} */
    signature,
    plans,
    /** Whether the method is a single plan; `start` needs that. @type {boolean} */
    inOnePlan: !host,
    /** The number of runs and resets; while it is unchanged, so are the states. */
    runs: 0,

    /**
     * Starts a run; inputs may be resident outputs of the last one.
     * @param {any[]} inputs
     * @returns {Promise<Running>}
     */
    async start(inputs) {
      if (host) throw new ExecutionError(`${name} needs several plans: use run`);
      const { outputs, done } = await withCopies(inputs, (copies) =>
        plans[direct.plan].run(direct.inputs.map((/** @type {number} */ k) => copies[k]), direct.outputs),
      );
      const resident = direct.outputs.map((/** @type {number} */ k) => outputs[k]);
      return {
        resident: () => resident,
        discard() {},
        async result() {
          return Promise.all((await done).map((value, k) => fromDevice(signature.outputs[k].dtype, resident[k], value)));
        },
      };
    },

    /** @param {any[]} inputs @param {AbortSignal} [signal] @returns {Promise<any[]>} */
    async run(inputs, signal) {
      return host ? withCopies(inputs, (copies) => host.run(copies, signal)) : (await method.start(inputs)).result();
    },

    /** Restores the initial states. @returns {Promise<void>} */
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
 * Returns a copy of an input, or undefined if it needs conversion or padding to whole words.
 * @param {any} input
 * @param {Spec} spec
 */
function asDeclared(input, { dtype, device, shape, dynamic, value }) {
  if (!dtype) return value === undefined && Number.isSafeInteger(input) ? input : undefined;
  const { gpuBuffer, dtype: inputDtype, shape: sizes, data } = Object(input);
  if (inputDtype !== (gpuBuffer ? device : dtype) || sizes.length !== shape.length) return undefined;
  if (!shape.every((n, k) => (dynamic ? sizes[k] <= n : sizes[k] === n))) return undefined;
  if (gpuBuffer) return input;
  if (data?.constructor !== ARRAYS[/** @type {string} */ (device)] || data.length !== count(sizes)) return undefined;
  return data.byteLength % 4 ? undefined : { shape: sizes, data: data.slice() };
}

/**
 * Returns values of the GPU as a tensor of the program's dtype; without a dtype, returns them unchanged.
 * @param {string} dtype
 * @param {any} output
 * @param {any} data
 */
export async function fromDevice(dtype, { dtype: device, shape }, data) {
  if (!dtype) return data;
  const converted =
    dtype === device ? data
    : dtype === "int64" ? BigInt64Array.from(data, BigInt)
    : (await import("./convert.js")).fromDevice(dtype, data);
  return new Tensor(dtype, shape, converted);
}
