// Sampling: converts a caller's settings to the words that the sampling kernels read.
import { InvalidInput } from "./errors.js";

const GREEDY = 1, DRAW = 2, TOP_K = 4, TOP_P = 8, PENALTY = 16; // bits of `flags`
const LARGEST = 3.4e38; // within float32

/**
 * @typedef {object} Settings
 * @property {number} [temperature] 0: greedy, always the likeliest token
 * @property {number} [topK] keeps the k likeliest tokens; 0: all
 * @property {number} [topP] keeps the fewest likeliest tokens whose total probability reaches `topP`
 * @property {number} [minP] keeps tokens at least `minP` times as likely as the likeliest
 * @property {number} [repeatPenalty] above 1: makes tokens of the context less likely
 * @property {number | null} [seed] equal seeds give equal tokens; random by default
 */

/** Validated settings. */
export class Sampling {
  #words = new Int32Array(8);

  /** @param {Settings} [settings] */
  constructor({ temperature = 0, topK = 0, topP = 1, minP = 0, repeatPenalty = 1, seed } = {}) {
    check("temperature", temperature, "at least 0", temperature >= 0);
    check("topK", topK, "an integer of at least 0", isIntegerBelow(topK, 2 ** 31));
    check("topP", topP, "above 0 and at most 1", topP > 0 && topP <= 1);
    check("minP", minP, "at least 0 and at most 1", minP >= 0 && minP <= 1);
    check("repeatPenalty", repeatPenalty, "above 0", repeatPenalty > 0);
    /** @type {number} */
    this.seed = seed ?? crypto.getRandomValues(new Uint32Array(1))[0];
    check("seed", this.seed, "an integer from 0 to 4294967295", isIntegerBelow(this.seed, 2 ** 32));
    /** With a penalty, the host must know each token before the next step. */
    this.penalises = repeatPenalty !== 1;
    /** Bits of the selection steps that run. */
    this.flags = temperature ? DRAW | (topK && TOP_K) | (topP < 1 ? TOP_P : 0) : GREEDY;
    if (this.penalises) this.flags |= PENALTY;
    const floats = new Float32Array(this.#words.buffer);
    floats[0] = Math.min(temperature ? 1 / temperature : 1, LARGEST);
    this.#words[1] = topK;
    floats[2] = topP;
    floats[3] = minP ? Math.log(minP) : -3e38;
    floats[4] = Math.min(repeatPenalty, LARGEST);
    floats[5] = Math.min(1 / repeatPenalty, LARGEST);
    this.#words[6] = this.seed;
  }

  /**
   * Returns the operand `settings` of the `step`-th token.
   * @param {number} step
   */
  words(step) {
    const words = this.#words.slice();
    words[7] = step;
    return words;
  }
}

/** @type {(value: number, end: number) => boolean} */
const isIntegerBelow = (value, end) => Number.isInteger(value) && value >= 0 && value < end;

/** @type {(name: string, value: unknown, expected: string, valid: boolean) => void} */
function check(name, value, expected, valid) {
  if (typeof value !== "number" || !valid) throw new InvalidInput(`${name} must be ${expected}, not ${value}`);
}
