// Conversion of texts, pictures and sounds to a model's inputs, and of its outputs to results, as `ptegpu.models` does
// in Python.

/**
 * @typedef {{length: number, batch: number, types?: boolean, pad?: number, mask?: number, masked?: boolean,
 *   fixed?: boolean}} TextFacts
 * @typedef {{height: number, width: number, channels: number, mean: number[], std: number[], scale: number,
 *   shortest?: number | null, resize?: number[] | null}} ImageFacts
 * @typedef {{rate: number, most: number, least: number, step?: number, normalize?: boolean}} AudioFacts
 * @typedef {{task: string, result: string, context: boolean, text?: TextFacts, image?: ImageFacts, audio?: AudioFacts,
 *   labels?: string[], many?: boolean, regression?: boolean, blank?: number}} Facts
 * @typedef {{ids: number[], token_type_ids?: number[]}} Encoding
 * @typedef {{encode(text: string, options: object): Encoding}} Encoder
 */

/**
 * Returns the width and height to draw a picture at, centred, in the model's pixels.
 * @param {number} width @param {number} height
 * @param {{width: number, height: number, shortest?: number | null, resize?: number[] | null}} facts
 */
export function fitted(width, height, facts) {
  if (facts.resize) return [facts.resize[1], facts.resize[0]];
  const scale = facts.shortest
    ? facts.shortest / Math.min(width, height)
    : Math.max(facts.width / width, facts.height / height);
  return [width * scale, height * scale];
}

/**
 * Converts a canvas's bytes to normalized pixels, (channels, height, width).
 * @param {Uint8ClampedArray} rgba @param {ImageFacts} facts
 */
export function planes(rgba, facts) {
  const count = facts.width * facts.height;
  const pixels = new Float32Array(count * facts.channels);
  for (let p = 0; p < count; p++) {
    const [r, g, b] = rgba.subarray(p * 4, p * 4 + 3);
    const values = facts.channels === 1 ? [r * 0.299 + g * 0.587 + b * 0.114] : [r, g, b];
    values.forEach((v, c) => (pixels[c * count + p] = (v * facts.scale - facts.mean[c]) / facts.std[c]));
  }
  return pixels;
}

/**
 * Returns the beginning of a sound at the model's rate, cut to a length that the model supports or padded with zeros.
 * @param {Float32Array} samples @param {AudioFacts} facts
 */
export function wave(samples, facts) {
  const step = Math.max(facts.step ?? 1, Math.floor(facts.most / 4096));
  const length = Math.min(samples.length, facts.most);
  const cut = samples.subarray(0, length - (Math.max(0, length - facts.least) % step));
  const padded = new Float32Array(Math.max(cut.length, facts.least));
  padded.set(cut);
  if (facts.normalize) {
    const mean = cut.reduce((a, b) => a + b, 0) / cut.length;
    const variance = cut.reduce((a, b) => a + (b - mean) ** 2, 0) / cut.length;
    for (let k = 0; k < cut.length; k++) padded[k] = (cut[k] - mean) / Math.sqrt(variance + 1e-7);
  }
  return padded;
}

/**
 * Returns the tokens of a text or a pair of texts, cut to the model's length; the last token stays.
 * @param {Encoder} encoder @param {string} text @param {string | null} pair @param {TextFacts} facts
 */
export function tokens(encoder, text, pair, facts) {
  const options = { text_pair: pair, add_special_tokens: true, return_token_type_ids: true };
  const { ids, token_type_ids: types } = encoder.encode(text, options);
  const cut = (/** @type {number[]} */ list) =>
    list.length > facts.length ? [...list.slice(0, facts.length - 1), /** @type {number} */ (list.at(-1))] : list;
  return { ids: cut(ids), types: cut(types ?? ids.map(() => 0)) };
}

/**
 * Returns the inputs of a text model: tokens, mask and, if it has them, types, each of shape (texts, longest).
 * @param {{ids: number[], types: number[]}[]} texts @param {TextFacts} facts
 */
export function batch(texts, facts) {
  const longest = facts.fixed ? facts.length : Math.max(1, ...texts.map((t) => t.ids.length));
  const shape = [texts.length, longest];
  const full = (/** @type {(row: {ids: number[], types: number[]}, k: number) => number} */ value) => ({
    dtype: "int64",
    shape,
    data: BigInt64Array.from({ length: texts.length * longest }, (_, k) =>
      BigInt(value(texts[Math.floor(k / longest)], k % longest)),
    ),
  });
  const inputs = [
    full((row, k) => row.ids[k] ?? facts.pad ?? 0),
    full((row, k) => Number(facts.masked === false || k < row.ids.length)),
  ];
  return facts.types ? [...inputs, full((row, k) => row.types[k] ?? 0)] : inputs;
}

/** Returns the softmax over all values. @param {ArrayLike<number>} values */
export function softmax(values) {
  const top = Array.from(values).reduce((a, b) => Math.max(a, b), -Infinity);
  const powers = Array.from(values, (v) => Math.exp(v - top));
  const sum = powers.reduce((a, b) => a + b);
  return powers.map((p) => p / sum);
}

/**
 * Returns the probabilities of classes, or the outputs of a regression.
 * @param {ArrayLike<number>} logits @param {{many?: boolean, regression?: boolean}} facts
 */
export function scores(logits, { many, regression }) {
  if (regression) return Array.from(logits);
  return many ? Array.from(logits, (v) => 1 / (1 + Math.exp(-v))) : softmax(logits);
}

/**
 * Returns the name of a class.
 * @param {Facts} facts @param {number} k
 */
export const label = (facts, k) => facts.labels?.[k] ?? `class ${k}`;

/** Returns the index of the largest value. @param {ArrayLike<number>} values */
export const largest = (values) => Array.from(values).reduce((best, v, k) => (v > values[best] ? k : best), 0);

const SILENT = ["<pad>", "<s>", "</s>", "<unk>", "[PAD]", "[UNK]"];

/**
 * Returns the recognized text: the likeliest token of each frame, without repetitions and blanks.
 * @param {ArrayLike<number>} logits (frames, classes) @param {number} classes @param {Facts} facts
 */
export function spoken(logits, classes, facts) {
  const all = Array.from(logits);
  const best = Array.from({ length: all.length / classes }, (_, k) =>
    largest(all.slice(k * classes, (k + 1) * classes)),
  );
  return best
    .filter((t, k) => t !== (facts.blank ?? 0) && (k === 0 || t !== best[k - 1]))
    .map((t) => label(facts, t))
    .filter((t) => !SILENT.includes(t))
    .map((t) => (t === "|" ? " " : t))
    .join("")
    .replace(/\s+/g, " ")
    .trim();
}

/** Normalizes letters as tokenizers may do: to lower case, without accents and spaces. @param {string} c */
const folded = (c) => c.normalize("NFKD").replace(/[\p{M}\s]/gu, "").toLowerCase();

/**
 * Returns the positions of tokens in their text, [start, end) each. A token that does not occur there, such as an unknown
 * one, gets the text between its neighbours.
 * @param {string} text @param {string[]} pieces the texts of the tokens
 * @returns {[number, number][]}
 */
export function located(text, pieces) {
  let letters = "",
    at = 0;
  const places = /** @type {[number, number][]} */ ([]); // of each letter
  for (const c of text) {
    const normalized = folded(c);
    letters += normalized;
    for (let k = 0; k < normalized.length; k++) places.push([at, at + c.length]);
    at += c.length;
  }
  let next = 0;
  const matches = pieces.map((piece) => {
    const sought = [...piece.replace(/^##(?=.)/, "")].map(folded).join("");
    const from = sought ? letters.indexOf(sought, next) : -1;
    if (from < 0) return null;
    next = from + sought.length;
    return /** @type {[number, number]} */ ([places[from][0], places[next - 1][1]]);
  });
  const before = (/** @type {number} */ k) => matches.slice(0, k).findLast((place) => place)?.[1] ?? 0;
  const after = (/** @type {number} */ k) => matches.slice(k).find((place) => place)?.[0] ?? text.length;
  return matches.map((place, k) => place ?? [before(k), after(k)]);
}

const MAX_ANSWER = 30; // tokens

/**
 * Returns the first and the last token of the likeliest answer between two positions, and its probability.
 * @param {ArrayLike<number>} starts @param {ArrayLike<number>} ends @param {number} from @param {number} to
 */
export function answer(starts, ends, from, to) {
  const [first, last] = [starts, ends].map((values) => softmax(Array.from(values).slice(from, to)));
  let best = { start: from, end: from, score: 0 };
  first.forEach((p, i) => {
    for (let j = i; j < Math.min(last.length, i + MAX_ANSWER); j++)
      if (p * last[j] > best.score) best = { start: from + i, end: from + j, score: p * last[j] };
  });
  return best;
}
