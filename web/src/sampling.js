// How the next token is chosen: the settings that a caller gives, as the words that the GPU reads.
import { InvalidInput } from "./errors.js";

const GREEDY = 1, DRAW = 2, TOP_K = 4, TOP_P = 8, PENALTY = 16; // of `how`
const LARGEST = 3.4e38; // within float32

/**
 * @typedef {object} Settings
 * @property {number} [temperature] 0: greedy, always the likeliest token
 * @property {number} [topK] keeps the k likeliest; 0: all
 * @property {number} [topP] keeps the fewest of these with that much of their probability
 * @property {number} [minP] keeps those at least that likely relative to the likeliest
 * @property {number} [repeatPenalty] above 1: tokens of the context are less likely
 * @property {number | null} [seed] the same one gives the same tokens; without one it is random
 */

/** Settings, checked. */
export class Sampling {
  #words = new Int32Array(8);

  /** @param {Settings} [settings] */
  constructor({ temperature = 0, topK = 0, topP = 1, minP = 0, repeatPenalty = 1, seed } = {}) {
    check("temperature", temperature, "at least 0", temperature >= 0);
    check("topK", topK, "a whole number of at least 0", whole(topK, 2 ** 31));
    check("topP", topP, "above 0 and at most 1", topP > 0 && topP <= 1);
    check("minP", minP, "at least 0 and at most 1", minP >= 0 && minP <= 1);
    check("repeatPenalty", repeatPenalty, "above 0", repeatPenalty > 0);
    /** @type {number} */
    this.seed = seed ?? crypto.getRandomValues(new Uint32Array(1))[0];
    check("seed", this.seed, "a whole number from 0 to 4294967295", whole(this.seed, 2 ** 32));
    /** A penalty needs the host to know each token before the next one. */
    this.penalises = repeatPenalty !== 1;
    /** Which steps of the selection are needed. */
    this.how = temperature ? DRAW | (topK && TOP_K) | (topP < 1 ? TOP_P : 0) : GREEDY;
    if (this.penalises) this.how |= PENALTY;
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
   * The operand `settings` of the `step`-th token.
   * @param {number} step
   */
  words(step) {
    const words = this.#words.slice();
    words[7] = step;
    return words;
  }
}

/** @type {(value: number, end: number) => boolean} */
const whole = (value, end) => Number.isInteger(value) && value >= 0 && value < end;

/** @type {(name: string, value: unknown, wanted: string, fits: boolean) => void} */
function check(name, value, wanted, fits) {
  if (typeof value !== "number" || !fits) throw new InvalidInput(`${name} must be ${wanted}, not ${value}`);
}
