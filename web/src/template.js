// Chat templates from `tokenizer_config.json`, rendered by npm @huggingface/jinja with the behaviour of Jinja2.
import { InvalidInput } from "./errors.js";

/** @typedef {{role: string, content?: any, [more: string]: any}} Message */

// Limits for one conversation: evaluated expressions, and the length of a value. Real templates need far less.
const MAX_STEPS = 1e6, MAX_LENGTH = 1 << 24;
const DAYS = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS = [
  "January", "February", "March", "April", "May", "June",
  "July", "August", "September", "October", "November", "December",
];

/** A template, with the special tokens that it may use: `bos_token`, `eos_token`, … */
export class ChatTemplate {
  #library;
  #special;
  #program;

  /**
   * @param {unknown} source a text, or a list of `{name, template}`, of which "default" or the first is used
   * @param {Record<string, string>} special
   * @param {any} library npm @huggingface/jinja, whose types tsc does not find
   */
  constructor(source, special, library) {
    this.#library = library;
    this.#special = special;
    const text = templateText(source);
    try {
      this.#program = new library.Template(text).parsed;
    } catch (error) {
      throw new InvalidInput(`the chat template is invalid: ${/** @type {Error} */ (error).message}`);
    }
  }

  /**
   * Returns the conversation in the format that the model was trained on.
   * @param {Message[]} messages
   * @param {{addGenerationPrompt?: boolean}} [options]
   * @returns {string}
   */
  render(messages, { addGenerationPrompt = true } = {}) {
    const environment = new this.#library.Environment();
    const conversation = { messages, add_generation_prompt: addGenerationPrompt, tools: null, documents: null };
    const variables = Object.entries({ ...GLOBALS, ...this.#special, ...conversation });
    try {
      for (const [name, value] of variables) environment.set(name, value);
      return createInterpreter(this.#library, environment).run(this.#program).value;
    } catch (error) {
      throw new InvalidInput(`the chat template refuses this conversation: ${/** @type {Error} */ (error).message}`);
    }
  }
}

/**
 * Returns an interpreter with Jinja2's undefined values: reading an attribute of one throws, a loop over one is empty.
 * @param {any} library
 * @param {any} environment
 */
function createInterpreter({ Environment, Interpreter }, environment) {
  const interpreter = new Interpreter(environment), evaluate = interpreter.evaluate.bind(interpreter);
  const objects = new WeakSet(), iterables = new WeakSet(); // nodes with an attribute read, nodes looped over
  let steps = 0;
  interpreter.evaluate = (/** @type {any} */ node, /** @type {any} */ scope) => {
    if (++steps > MAX_STEPS) throw new Error("it takes too long");
    if (node?.type === "MemberExpression") objects.add(node.object);
    if (node?.type === "For")
      iterables.add(node.iterable.type === "SelectExpression" ? node.iterable.lhs : node.iterable);
    const value = evaluate(node, scope);
    if (value?.value?.length > MAX_LENGTH) throw new Error("it makes a text that is too long");
    if (!node || value.type !== "UndefinedValue") return value;
    if (objects.has(node)) throw new Error(`${nameOf(node)} is undefined`);
    return iterables.has(node) ? new Environment().set("empty", []) : value;
  };
  return interpreter;
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
    if ((end - start) / step > MAX_STEPS) throw new Error("it takes too long");
    return Array.from({ length: Math.max(0, Math.ceil((end - start) / step)) }, (_, k) => start + k * step);
  },
  /** @param {string} message */
  raise_exception(message) {
    throw new Error(message);
  },
  /** @param {string} form */
  strftime_now: (form) => strftime(new Date(), form),
};

/** Returns the template's text, of a list the default's. @param {unknown} source */
function templateText(source) {
  if (typeof source === "string") return source;
  const templates = Array.isArray(source) ? source.filter((t) => t?.name !== undefined && t.template !== undefined) : [];
  if (!templates.length) throw new InvalidInput("the chat template is neither a text nor a list of named texts");
  return String((templates.find((t) => t.name === "default") ?? templates[0]).template);
}

/**
 * Formats a date as Python's strftime does, in English; unknown directives stay as they are.
 * @param {Date} date
 * @param {string} form
 */
export function strftime(date, form) {
  const twoDigits = (/** @type {number} */ n) => String(n).padStart(2, "0");
  const [year, month, day, hour] = [date.getFullYear(), date.getMonth(), date.getDate(), date.getHours()];
  const clock = `${twoDigits(hour)}:${twoDigits(date.getMinutes())}`;
  const days = Math.round((Date.UTC(year, month, day) - Date.UTC(year, 0, 1)) / 864e5);
  /** @type {Record<string, string>} */
  const parts = {
    Y: String(year), y: twoDigits(year % 100), m: twoDigits(month + 1), d: twoDigits(day), e: String(day).padStart(2),
    B: MONTHS[month], b: MONTHS[month].slice(0, 3), A: DAYS[date.getDay()], a: DAYS[date.getDay()].slice(0, 3),
    H: twoDigits(hour), I: twoDigits(hour % 12 || 12), M: clock.slice(3), S: twoDigits(date.getSeconds()),
    p: hour < 12 ? "AM" : "PM",
    j: String(days + 1).padStart(3, "0"), F: `${year}-${twoDigits(month + 1)}-${twoDigits(day)}`, R: clock,
    T: `${clock}:${twoDigits(date.getSeconds())}`, "%": "%",
  };
  return form.replace(/%(-?)([A-Za-z%])/g, (all, bare, name) => {
    const part = parts[name];
    return part === undefined ? all : bare ? part.replace(/^[0 ]+(?=.)/, "") : part;
  });
}
