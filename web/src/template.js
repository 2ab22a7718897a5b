// Chat templates as `tokenizer_config.json` gives them, rendered by npm @huggingface/jinja as Jinja2 does.
import { InvalidInput } from "./errors.js";

/** @typedef {{role: string, content?: any, [more: string]: any}} Message */

// What one conversation may take: expressions, and characters or items of one value. No real template comes near.
const STEPS = 1e6, LONG = 1 << 24;
const DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS = [
  "January", "February", "March", "April", "May", "June",
  "July", "August", "September", "October", "November", "December",
];

/** A template with the special tokens that it may name: `bos_token`, `eos_token`, … */
export class ChatTemplate {
  #library;
  #special;
  #program;

  /**
   * @param {unknown} source a text, or a list of `{name, template}`, of which the default is taken
   * @param {Record<string, string>} special
   * @param {any} library npm @huggingface/jinja; tsc does not find its types
   */
  constructor(source, special, library) {
    this.#library = library;
    this.#special = special;
    const text = chosen(source);
    try {
      this.#program = new library.Template(text).parsed;
    } catch (error) {
      throw new InvalidInput(`the chat template is invalid: ${/** @type {Error} */ (error).message}`);
    }
  }

  /**
   * The conversation as the model was trained to see it.
   * @param {Message[]} messages
   * @param {{addGenerationPrompt?: boolean}} [options]
   * @returns {string}
   */
  render(messages, { addGenerationPrompt = true } = {}) {
    const environment = new this.#library.Environment();
    const given = { messages, add_generation_prompt: addGenerationPrompt, tools: null, documents: null };
    const named = Object.entries({ ...GLOBALS, ...this.#special, ...given });
    try {
      for (const [name, value] of named) environment.set(name, value);
      return interpreter(this.#library, environment).run(this.#program).value;
    } catch (error) {
      throw new InvalidInput(`the chat template refuses this conversation: ${/** @type {Error} */ (error).message}`);
    }
  }
}

/**
 * As Jinja2: nothing can be asked of what is undefined, and a loop over it is one over nothing.
 * @param {any} library
 * @param {any} environment
 */
function interpreter({ Environment, Interpreter }, environment) {
  const made = new Interpreter(environment), evaluate = made.evaluate.bind(made);
  const asked = new WeakSet(), looped = new WeakSet();
  let steps = 0;
  made.evaluate = (/** @type {any} */ node, /** @type {any} */ scope) => {
    if (++steps > STEPS) throw new Error("it takes too long");
    if (node?.type === "MemberExpression") asked.add(node.object);
    if (node?.type === "For") looped.add(node.iterable.type === "SelectExpression" ? node.iterable.lhs : node.iterable);
    const value = evaluate(node, scope);
    if (value?.value?.length > LONG) throw new Error("it makes a text that is too long");
    if (!node || value.type !== "UndefinedValue") return value;
    if (asked.has(node)) throw new Error(`${nameOf(node)} is undefined`);
    return looped.has(node) ? new Environment().set("nothing", []) : value;
  };
  return made;
}

/** @type {(node: any) => string} */
const nameOf = ({ type, object, property, value = "a value" }) =>
  type === "MemberExpression" ? `${nameOf(object)}.${nameOf(property)}` : value;

const GLOBALS = {
  true: true, True: true, false: false, False: false, none: null, None: null,
  /** @type {(start: number, end?: number, step?: number) => number[]} */
  range(start, end, step = 1) {
    if (end === undefined) [start, end] = [0, start];
    if (!step) throw new Error("range() arg 3 must not be zero");
    if ((end - start) / step > STEPS) throw new Error("it takes too long");
    return Array.from({ length: Math.max(0, Math.ceil((end - start) / step)) }, (_, k) => start + k * step);
  },
  /** @param {string} message */
  raise_exception(message) {
    throw new Error(message);
  },
  /** @param {string} form */
  strftime_now: (form) => strftime(new Date(), form),
};

/** @param {unknown} source */
function chosen(source) {
  if (typeof source === "string") return source;
  const named = Array.isArray(source) ? source.filter((t) => t?.name !== undefined && t.template !== undefined) : [];
  if (!named.length) throw new InvalidInput("the chat template is neither a text nor a list of named texts");
  return String((named.find((t) => t.name === "default") ?? named[0]).template);
}

/**
 * As Python's, in English; what it does not know stays as it is.
 * @param {Date} date
 * @param {string} form
 */
export function strftime(date, form) {
  const two = (/** @type {number} */ n) => String(n).padStart(2, "0");
  const [year, month, day, hour] = [date.getFullYear(), date.getMonth(), date.getDate(), date.getHours()];
  const clock = `${two(hour)}:${two(date.getMinutes())}`;
  const days = Math.round((Date.UTC(year, month, day) - Date.UTC(year, 0, 1)) / 864e5);
  /** @type {Record<string, string>} */
  const parts = {
    Y: String(year), y: two(year % 100), m: two(month + 1), d: two(day), e: String(day).padStart(2),
    B: MONTHS[month], b: MONTHS[month].slice(0, 3), A: DAYS[date.getDay()], a: DAYS[date.getDay()].slice(0, 3),
    H: two(hour), I: two(hour % 12 || 12), M: clock.slice(3), S: two(date.getSeconds()), p: hour < 12 ? "AM" : "PM",
    j: String(days + 1).padStart(3, "0"), F: `${year}-${two(month + 1)}-${two(day)}`, R: clock,
    T: `${clock}:${two(date.getSeconds())}`, "%": "%",
  };
  return form.replace(/%(-?)([A-Za-z%])/g, (all, bare, name) => {
    const part = parts[name];
    return part === undefined ? all : bare ? part.replace(/^[0 ]+(?=.)/, "") : part;
  });
}
