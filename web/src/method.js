/** A method of a program: what it takes and gives, and its runs. */

import { Tensor, arrayOf, count, fromDevice, toDevice } from "./dtypes.js";
import { ExecutionError, InvalidInput } from "./errors.js";
import { Resident } from "./plan.js";

/** @typedef {import("./plan.js").Plan} Plan */
/** @typedef {Tensor | Resident | number | boolean | null | any[]} Value */

/** A run that was started. */
export class Running {
  /** @param {Method} method @param {{outputs: any[], done: Promise<Map<number, ArrayBuffer>>}} started @param {any} item */
  constructor(method, started, item) {
    this.started = started;
    const { json } = method;
    this.places = json.outputs.map((/** @type {any} */ o) =>
      item.outputs.findIndex((/** @type {any} */ given) => given.slot === o.slot),
    );
    this.dtypes = json.outputs.map((/** @type {any} */ o) => json.slots[o.slot].dtype);
  }

  /** What it gave. @returns {Promise<(Tensor | number)[]>} */
  async result() {
    const { outputs, done } = this.started;
    const read = await done;
    return this.places.map((/** @type {number} */ at, /** @type {number} */ k) => {
      const output = outputs[at];
      return output instanceof Resident ? fromDevice(this.dtypes[k], output.shape, /** @type {any} */ (read.get(at))) : output;
    });
  }

  /** Its outputs on the GPU, as inputs of the next start; until the method runs twice more. @returns {(Resident | number)[]} */
  resident() {
    return this.places.map((/** @type {number} */ at) => this.started.outputs[at]);
  }

  /** Nobody wants the result. */
  discard() {}
}

/** Whether the GPU runs all of a method at once, so that it can be started without waiting. @param {any} json @returns {boolean} */
export function inOnePlan({ items, states, outputs }) {
  const [item] = items;
  /** @type {(o: any) => boolean} */
  const given = (o) => item.outputs.some((/** @type {any} */ other) => other.slot === o?.slot);
  return items.length === 1 && item.run !== undefined && !states.length && outputs.every(given);
}

/** A method, ready to run. */
export class Method {
  /** @param {any} json @param {Plan[]} plans */
  constructor(json, plans) {
    this.name = json.name;
    this.json = json;
    this.plans = plans;
    this.inOnePlan = inOnePlan(json);
    this.runs = 0; // and resets: what states hold is as somebody left it, if this is what it was then
    /** Blobs that slots begin with, by slot. @type {Map<number, Uint8Array>} */
    this.data = new Map();
    /** Values of states. @type {Map<number, Value>} */
    this.states = new Map();
    /** @type {Promise<any>} */
    this.last = Promise.resolve();
    /** What runs its items, where one plan does not do it all. @type {typeof import("./host.js") | null} */
    this.host = null;
  }

  /** What it takes and gives. */
  signature() {
    const { inputs, outputs, slots } = this.json;
    /** @type {(o: any, k: number, what: string) => any} */
    const told = (o, k, what) => {
      const slot = slots[o?.slot];
      return slot
        ? { name: slot.kind === "input" ? slot.name : `${what} ${k}`, dtype: slot.dtype, shape: slot.sizes, dynamic: slot.dynamic }
        : { name: `${what} ${k}`, dtype: null, shape: [], dynamic: false, value: literal(o) };
    };
    return {
      inputs: inputs.map((/** @type {any} */ o, /** @type {number} */ k) => told(o, k, "input")),
      outputs: outputs.map((/** @type {any} */ o, /** @type {number} */ k) => told(o, k, "output")),
    };
  }

  /** States back to their first values. */
  reset() {
    this.runs++;
    for (const plan of this.plans) plan.reset();
    this.states = new Map(this.json.states.map((/** @type {any} */ o) => [o.slot, this.first(o.slot)]));
  }

  /** Start a run that one plan does; inputs may be resident outputs of the one before. @param {any[]} inputs */
  start(inputs) {
    if (!this.inOnePlan) throw new ExecutionError(`${this.name} needs several plans: use run`);
    const [item] = this.json.items;
    const env = this.accept(inputs);
    const plan = this.plans[item.run];
    this.runs++;
    return new Running(this, plan.start(this.given(env, item, plan), [...plan.json.families[0].outputs.keys()]), item);
  }

  /** @param {any[]} inputs @param {AbortSignal} [signal] @returns {Promise<any[]>} */
  run(inputs, signal) {
    if (this.inOnePlan) return this.start(inputs).result();
    this.runs++;
    const turn = this.last.then(() => /** @type {any} */ (this.host).run(this, inputs, signal));
    this.last = turn.catch(() => {});
    return turn;
  }

  /** The slots with what the caller gives. @param {any[]} inputs @returns {Map<number, Value>} */
  accept(inputs) {
    const wanted = this.json.inputs;
    if (inputs.length !== wanted.length)
      throw new InvalidInput(`${this.name} takes ${wanted.length} inputs, not ${inputs.length}`);
    const env = new Map(this.states);
    wanted.forEach((/** @type {any} */ o, /** @type {number} */ k) => {
      const slot = this.json.slots[o?.slot];
      const what = `input ${k} of ${this.name}`;
      if (slot) env.set(o.slot, slot.dtype ? tensor(inputs[k], slot, what) : int(inputs[k], what));
      else if (o !== null && literal(o) !== inputs[k])
        throw new InvalidInput(`${what} must be ${literal(o)}, the value it was exported with, not ${inputs[k]}`);
    });
    return env;
  }

  /** What a plan takes, in the GPU's types. @param {Map<number, Value>} env @param {any} item @param {Plan} plan */
  given(env, item, plan) {
    return item.inputs.map((/** @type {any} */ o, /** @type {number} */ k) => {
      const value = /** @type {any} */ (this.held(env, o));
      const slot = this.json.slots[o.slot];
      if (value instanceof Resident) return value;
      if (!slot.dtype) return int(Number(value), `${slot.name} of ${this.name}`);
      const clip = slot.kind === "temp" && plan.json.inputs[k].index;
      return { data: toDevice(value, `${slot.name} of ${this.name}`, clip), shape: value.shape };
    });
  }

  /** What a slot holds. @param {Map<number, Value>} env @param {any} o @returns {Value} */
  held(env, o) {
    const found = env.has(o.slot) ? env.get(o.slot) : this.first(o.slot);
    if (found === undefined) throw new ExecutionError(`${this.name}: ${this.json.slots[o.slot].name} is read before it has a value`);
    return found;
  }

  /** What a slot begins with. @param {number} k @returns {any} */
  first(k) {
    const { dtype, sizes, kind, initial } = this.json.slots[k];
    if (!dtype) return initial;
    const bytes = this.data.get(k);
    if (!bytes) return kind === "state" ? new Tensor(dtype, sizes, new (arrayOf(dtype))(count(sizes))) : undefined;
    if (dtype === "bfloat16") {
      const bits = Uint32Array.from(new Uint16Array(bytes.slice().buffer), (b) => b << 16);
      return new Tensor(dtype, sizes, new Float32Array(bits.buffer));
    }
    return new Tensor(dtype, sizes, new (arrayOf(dtype))(bytes.slice().buffer));
  }
}

/** A value that JSON cannot write. @type {(o: any) => any} */
export const literal = (o) => (o?.float ? { inf: Infinity, "-inf": -Infinity, nan: NaN }[/** @type {"nan"} */ (o.float)] : o);

/** @type {(given: any, what: string) => number} */
function int(given, what) {
  const value = Number(given);
  if (given === null || typeof given === "object" || !Number.isSafeInteger(value))
    throw new InvalidInput(`${what} must be an int, not ${given instanceof Tensor ? "a tensor" : given}`);
  return value;
}

/**
 * An input as a tensor of the declared type, whose shape fits.
 * @param {any} given
 * @param {any} slot
 * @param {string} what
 * @returns {Tensor | Resident}
 */
function tensor(given, { dtype, sizes, dynamic }, what) {
  const wanted = `${dtype} [${sizes.map((/** @type {number} */ n) => (dynamic ? `≤${n}` : n)).join(", ")}]`;
  /** @type {any} */
  let made = given;
  try {
    if (!(given instanceof Resident) && given?.dtype === undefined) {
      const [shape, values] = ArrayBuffer.isView(given) ? [null, /** @type {any} */ (given)] : nested(given);
      const whole = values.length === count(sizes) ? sizes : [values.length];
      made = new Tensor(dtype, shape && (shape.length === sizes.length || values.length !== 1) ? shape : whole, values);
    } else if (given.dtype !== dtype && !(given instanceof Resident)) throw new InvalidInput(`it is ${given.dtype}`);
    else if (!(given instanceof Resident || given instanceof Tensor)) made = new Tensor(dtype, given.shape, given.data);
  } catch (error) {
    throw new InvalidInput(`${what} must be ${wanted}: ${/** @type {Error} */ (error).message}`);
  }
  const fits = made.shape.length === sizes.length &&
    sizes.every((/** @type {number} */ n, /** @type {number} */ k) => (dynamic ? made.shape[k] <= n : made.shape[k] === n));
  if (!fits) throw new InvalidInput(`${what} must be ${wanted}, not [${made.shape.join(", ")}]`);
  return made;
}

/** Nested lists as a shape and their values. @param {any} given @returns {[number[], any[]]} */
function nested(given) {
  if (!Array.isArray(given)) return [[], [given]];
  const parts = given.map(nested);
  const shape = parts[0]?.[0] ?? [];
  if (parts.some(([s]) => s.join() !== shape.join())) throw new InvalidInput("its lists have different lengths");
  return [[given.length, ...shape], parts.flatMap(([, values]) => values)];
}
