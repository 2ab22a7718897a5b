// Texts, pictures and sounds as what a model takes, and what its outputs say: what ptegpu/tasks does in Python.

/**
 * @typedef {{length: number, batch: number, types?: boolean, pad?: number, mask?: number, masked?: boolean,
 *   fixed?: boolean}} TextFacts
 * @typedef {{height: number, width: number, channels: number, mean: number[], std: number[], scale: number,
 *   shortest?: number | null, resize?: number[] | null}} ImageFacts
 * @typedef {{rate: number, most: number, least: number, step?: number, normalize?: boolean}} AudioFacts
 * @typedef {{task: string, result: string, context: boolean, text?: TextFacts, image?: ImageFacts, audio?: AudioFacts, labels?: string[],
 *   many?: boolean, regression?: boolean, blank?: number}} Facts
 * @typedef {{ids: number[], token_type_ids?: number[]}} Encoding
 * @typedef {{encode(text: string, options: object): Encoding}} Encoder
 */

/**
 * Width and height that a picture is drawn at, in pixels of the model, around its middle.
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
 * Pixels (channels, height, width) of a canvas's bytes.
 * @param {Uint8ClampedArray} rgba @param {ImageFacts} facts
 */
export function planes(rgba, facts) {
  const count = facts.width * facts.height;
  const made = new Float32Array(count * facts.channels);
  for (let p = 0; p < count; p++) {
    const [r, g, b] = rgba.subarray(p * 4, p * 4 + 3);
    const values = facts.channels === 1 ? [r * 0.299 + g * 0.587 + b * 0.114] : [r, g, b];
    values.forEach((v, c) => (made[c * count + p] = (v * facts.scale - facts.mean[c]) / facts.std[c]));
  }
  return made;
}

/**
 * The beginning of a wave at the model's rate: whole frames, as the model is compiled for, or filled up with zeros.
 * @param {Float32Array} samples @param {AudioFacts} facts
 */
export function wave(samples, facts) {
  const step = Math.max(facts.step ?? 1, Math.floor(facts.most / 4096));
  const most = Math.min(samples.length, facts.most);
  const given = samples.subarray(0, most - (Math.max(0, most - facts.least) % step));
  const made = new Float32Array(Math.max(given.length, facts.least));
  made.set(given);
  if (facts.normalize) {
    const mean = given.reduce((a, b) => a + b, 0) / given.length;
    const variance = given.reduce((a, b) => a + (b - mean) ** 2, 0) / given.length;
    for (let k = 0; k < given.length; k++) made[k] = (given[k] - mean) / Math.sqrt(variance + 1e-7);
  }
  return made;
}

/**
 * Tokens of a text, or two, cut to what the model takes: its last token stays.
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
 * The inputs of a model of texts: tokens, mask and, where it has any, types, each (texts, longest).
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
  const made = [
    full((row, k) => row.ids[k] ?? facts.pad ?? 0),
    full((row, k) => Number(facts.masked === false || k < row.ids.length)),
  ];
  return facts.types ? [...made, full((row, k) => row.types[k] ?? 0)] : made;
}

/** Over all values. @param {ArrayLike<number>} values */
export function softmax(values) {
  const top = Array.from(values).reduce((a, b) => Math.max(a, b), -Infinity);
  const powers = Array.from(values, (v) => Math.exp(v - top));
  const sum = powers.reduce((a, b) => a + b);
  return powers.map((p) => p / sum);
}

/**
 * The scores of classes: probabilities, or the outputs themselves for a regression.
 * @param {ArrayLike<number>} logits @param {{many?: boolean, regression?: boolean}} facts
 */
export function scores(logits, { many, regression }) {
  if (regression) return Array.from(logits);
  return many ? Array.from(logits, (v) => 1 / (1 + Math.exp(-v))) : softmax(logits);
}

/**
 * The name of a class.
 * @param {Facts} facts @param {number} k
 */
export const label = (facts, k) => facts.labels?.[k] ?? `class ${k}`;

/** The index of the largest value. @param {ArrayLike<number>} values */
export const largest = (values) => Array.from(values).reduce((best, v, k) => (v > values[best] ? k : best), 0);

const SILENT = ["<pad>", "<s>", "</s>", "<unk>", "[PAD]", "[UNK]"];

/**
 * What was said: the likeliest token of each frame, without repetitions and blanks.
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

/** Letters as tokenizers may write them: small, without accents and spaces. @param {string} c */
const folded = (c) => c.normalize("NFKD").replace(/[\p{M}\s]/gu, "").toLowerCase();

/**
 * Where tokens are in the text that they were made of: [start, end) each. One that is not found, such as an unknown one,
 * is what lies between its neighbours.
 * @param {string} text @param {string[]} pieces the texts of the tokens
 * @returns {[number, number][]}
 */
export function located(text, pieces) {
  let letters = "",
    at = 0;
  const places = /** @type {[number, number][]} */ ([]); // of each of the letters
  for (const c of text) {
    const some = folded(c);
    letters += some;
    for (let k = 0; k < some.length; k++) places.push([at, at + c.length]);
    at += c.length;
  }
  let next = 0;
  const found = pieces.map((piece) => {
    const wanted = [...piece.replace(/^##(?=.)/, "")].map(folded).join("");
    const from = wanted ? letters.indexOf(wanted, next) : -1;
    if (from < 0) return null;
    next = from + wanted.length;
    return /** @type {[number, number]} */ ([places[from][0], places[next - 1][1]]);
  });
  const before = (/** @type {number} */ k) => found.slice(0, k).findLast((place) => place)?.[1] ?? 0;
  const after = (/** @type {number} */ k) => found.slice(k).find((place) => place)?.[0] ?? text.length;
  return found.map((place, k) => place ?? [before(k), after(k)]);
}

const LONGEST = 30; // tokens of an answer

/**
 * The first and the last token of the likeliest answer between two positions, and its probability.
 * @param {ArrayLike<number>} starts @param {ArrayLike<number>} ends @param {number} from @param {number} to
 */
export function answer(starts, ends, from, to) {
  const [first, last] = [starts, ends].map((values) => softmax(Array.from(values).slice(from, to)));
  let found = { start: from, end: from, score: 0 };
  first.forEach((p, i) => {
    for (let j = i; j < Math.min(last.length, i + LONGEST); j++)
      if (p * last[j] > found.score) found = { start: from + i, end: from + j, score: p * last[j] };
  });
  return found;
}
