// The page of a model for a task: its input is a text, a picture or a sound, and the page shows the task's result.
import { answer, batch, fitted, label, largest, located, planes, scores, softmax, spoken, tokens, wave } from "./media.js";
import { heatmap, short, stats } from "./plots.js";
import { $, announce, calm, duration, fail, make, open, ran, wake } from "./ui.js";

/**
 * @typedef {import("./ui.js").Remote} Remote
 * @typedef {import("./media.js").Facts} Facts
 * @typedef {{shape: number[], data: any}} Output
 */

const TOP = 8; // labels shown
const text = /** @type {HTMLTextAreaElement} */ ($("text")),
  passage = /** @type {HTMLTextAreaElement} */ ($("passage")),
  file = /** @type {HTMLInputElement} */ ($("file")),
  view = /** @type {HTMLCanvasElement} */ ($("view")),
  player = /** @type {HTMLAudioElement} */ ($("player"));

/** @type {Remote | null} */
let remote = null;
/** @type {Facts} */
let facts;
let method = "forward";
/** @type {import("@huggingface/tokenizers").Tokenizer | null} */
let tokenizer = null;
/** @type {URL} */
let base;
/** @type {ImageBitmap | null} */
let picture = null;
/** @type {Float32Array | null} */
let samples = null;
let running = false;

const zeroShot = () => Boolean(facts.image && facts.text);

/** Returns the site's tokenizer, loaded on first use. */
async function encoder() {
  if (tokenizer) return tokenizer;
  const answer = await fetch(new URL("tokenizer.json", base));
  const { Tokenizer } = await import("../src/tokenizers.js");
  return (tokenizer = new Tokenizer(await answer.json(), { clean_up_tokenization_spaces: false }));
}

/** Returns the picture as the model's input. */
function pixels() {
  const image = /** @type {import("./media.js").ImageFacts} */ (facts.image);
  const canvas = make("canvas", { width: image.width, height: image.height });
  const to = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const from = /** @type {ImageBitmap} */ (picture);
  const [wide, high] = fitted(from.width, from.height, image);
  to.imageSmoothingQuality = "high";
  to.drawImage(from, (image.width - wide) / 2, (image.height - high) / 2, wide, high);
  const { data } = to.getImageData(0, 0, image.width, image.height);
  return { dtype: "float32", shape: [1, image.channels, image.height, image.width], data: planes(data, image) };
}

/** Returns whether all inputs are there. */
function ready() {
  const hasPassage = !facts.context || passage.value.trim();
  return (!facts.text || text.value.trim()) && (!facts.image || picture) && (!facts.audio || samples) && hasPassage;
}

async function run() {
  if (!remote) return wake();
  if (running) return;
  if (!ready()) return void ($("speed").textContent = "Add an input first.");
  running = true;
  calm();
  document.body.ariaBusy = "true";
  $("speed").textContent = "Running …";
  announce("Running …");
  try {
    const startTime = performance.now();
    await ask(remote);
    ran();
    $("speed").textContent = `${duration(performance.now() - startTime)} from input to answer`;
  } catch (error) {
    $("speed").textContent = "";
    fail(error);
  }
  running = false;
  document.body.ariaBusy = "false";
}

/** Runs the model and shows the result. @param {Remote} remote */
async function ask(remote) {
  const runModel = async (/** @type {any[]} */ inputs) => /** @type {Output[]} */ (await remote.run(inputs, { method }));
  if (facts.audio) {
    const data = wave(/** @type {Float32Array} */ (samples), facts.audio);
    return showSoundResult((await runModel([{ dtype: "float32", shape: [1, data.length], data }]))[0]);
  }
  if (facts.image && !facts.text) return showPictureResult((await runModel([pixels()]))[0]);
  const library = await encoder();
  const textFacts = /** @type {import("./media.js").TextFacts} */ (facts.text);
  if (zeroShot()) {
    const names = text.value.split("\n").map((line) => line.trim()).filter(Boolean).slice(0, textFacts.batch); // prettier-ignore
    const texts = names.map((name) => tokens(library, name, null, textFacts));
    const [logits] = await runModel([pixels(), ...batch(texts, textFacts)]);
    return bars(scores(logits.data, facts), (k) => names[k]);
  }
  const pair = facts.context ? passage.value : null;
  const encoded = tokens(library, text.value, pair, textFacts);
  return showTextResult(await runModel(batch([encoded], textFacts)), encoded.ids, library);
}

/**
 * Shows the result for a text.
 * @param {Output[]} outputs @param {number[]} ids @param {import("@huggingface/tokenizers").Tokenizer} library
 */
function showTextResult(outputs, ids, library) {
  const [{ shape, data }] = outputs;
  const rows = shape.at(-1) ?? 1;
  const row = (/** @type {number} */ k) => Array.from(data.slice(k * rows, (k + 1) * rows), Number);
  if (facts.result === "labels") return classes(data);
  if (facts.result === "spans") return tags(ids, row, library);
  if (facts.result === "answer") {
    let from = library.encode(text.value, { add_special_tokens: true }).ids.length;
    if (ids[from] === ids[from - 1]) from++; // RoBERTa has two separators between texts
    const { start, end, score } = answer(data, outputs[1].data, from, ids.length - 1);
    const places = located(passage.value, ids.slice(from, -1).map((id) => library.decode([id]))); // prettier-ignore
    const words = passage.value.slice(places[start - from]?.[0], places[end - from]?.[1]);
    return say(words.trim(), `${(score * 100).toFixed(1)} %`);
  }
  if (facts.result === "words") {
    const at = ids.indexOf(facts.text?.mask ?? -1);
    const mask = library.id_to_token(facts.text?.mask ?? -1);
    if (at < 0) return say("", `Write ${mask} in place of the missing word.`);
    return bars(softmax(row(at)), (k) => library.decode([k]).trim() || library.id_to_token(k) || "");
  }
  numbers(outputs[0]);
}

/** Shows the classes of an input, or the values of a regression. @param {ArrayLike<number>} data */
function classes(data) {
  const parts = scores(data, facts);
  if (!facts.regression) return bars(parts, (k) => label(facts, k));
  const rows = parts.map((value, k) => `${label(facts, k)}: ${short(value)}`);
  show(...rows.map((row) => make("p", { className: "said number" }, row)));
  announce(rows.join(", "));
}

/** Shows the result for a sound. @param {Output} output */
function showSoundResult({ shape, data }) {
  if (facts.result === "labels") return classes(data);
  if (facts.result === "text") return say(spoken(data, shape[2], facts) || "No speech was recognized.", "");
  numbers({ shape, data });
}

/** Shows the result for a picture. @param {Output} output */
function showPictureResult({ shape, data }) {
  const [height, width] = shape.slice(-2);
  if (facts.result === "labels") return classes(data);
  if (facts.result === "segments") return segments(data, shape[1], height, width);
  if (facts.result !== "depths") return numbers({ shape, data });
  const canvas = make("canvas", { className: "plot", ariaLabel: "Depth" });
  canvas.setAttribute("role", "img");
  show(canvas);
  heatmap(canvas, Array.from(data, Number), height, width);
}

/**
 * Shows the likeliest class of each pixel, with a colour for each class.
 * @param {any} data @param {number} count @param {number} height @param {number} width
 */
function segments(data, count, height, width) {
  const canvas = make("canvas", { className: "plot", width, height, ariaLabel: "Classes of pixels" });
  canvas.setAttribute("role", "img");
  const to = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  /** @type {number[]} */
  const counts = Array(count).fill(0);
  for (let p = 0; p < height * width; p++) {
    const best = largest(Array.from({ length: count }, (_, c) => data[c * height * width + p]));
    counts[best]++;
    to.fillStyle = `hsl(${(best * 222.5) % 360} 65% 55%)`; // hues far apart
    to.fillRect(p % width, Math.floor(p / width), 1, 1);
  }
  bars(counts.map((n) => n / (height * width)), (k) => label(facts, k)); // prettier-ignore
  $("answer").append(canvas);
}

/** @param {...Node} nodes */
function show(...nodes) {
  $("bars").replaceChildren();
  $("answer").replaceChildren(...nodes);
}

/** Shows a text and details. @param {string} text @param {string} details */
function say(text, details) {
  show(make("p", { className: "said" }, text, " ", make("span", { className: "soft number" }, details)));
  announce(text || details);
}

/** Shows the likeliest classes as bars. @param {number[]} parts @param {(k: number) => string} name */
function bars(parts, name) {
  const order = parts.map((_, k) => k).sort((a, b) => parts[b] - parts[a]).slice(0, TOP); // prettier-ignore
  show();
  for (const k of order) {
    const percent = `${(parts[k] * 100).toFixed(1)} %`;
    const bar = make("span", { className: "cells", ariaHidden: "true" }, make("i"));
    const item = make("li", {}, make("span", {}, name(k)), bar, make("span", { className: "number" }, percent));
    item.className = k === order[0] ? "top" : "";
    item.style.setProperty("--part", parts[k].toFixed(3));
    $("bars").append(item);
  }
  announce(`${name(order[0])}, ${(parts[order[0]] * 100).toFixed(1)} %`);
}

/**
 * Shows a label for each token.
 * @param {number[]} ids @param {(k: number) => number[]} row @param {import("@huggingface/tokenizers").Tokenizer} library
 */
function tags(ids, row, library) {
  const body = make("tbody");
  const words = ids.map((id) => library.decode([id], { skip_special_tokens: true }));
  const places = located(text.value, words.filter(Boolean));
  words.forEach((word, k) => {
    if (!word) return;
    const [start, end] = /** @type {[number, number]} */ (places.shift());
    const parts = softmax(row(k)),
      best = largest(parts);
    const cells = [text.value.slice(start, end).trim() || word, label(facts, best), `${(parts[best] * 100).toFixed(1)} %`];
    body.append(make("tr", {}, ...cells.map((cell) => make("td", {}, cell))));
  });
  const head = make("tr", {}, ...["token", "label", "probability"].map((n) => make("th", { scope: "col" }, n)));
  show(make("table", {}, make("caption", { className: "quiet" }, "Tokens"), make("thead", {}, head), body));
}

/** Shows an array's shape, range and first values. @param {Output} output */
function numbers({ shape, data }) {
  const values = Array.from(data, Number),
    { low, high, mean } = stats(values);
  const first = `${values.slice(0, TOP).map(short).join("  ")} …`;
  say(shape.slice(1).join(" × "), `${short(low)} to ${short(high)}, mean ${short(mean)}`);
  $("answer").append(make("p", { className: "number small" }, first));
}

// Files
/** Reads a picture or a sound and runs the model. @param {File | null | undefined} upload */
async function readFile(upload) {
  if (!upload || !facts || (!facts.image && !facts.audio)) return;
  try {
    if (facts.image) {
      picture = await createImageBitmap(upload);
      view.width = 640;
      view.height = Math.round((640 * picture.height) / picture.width);
      view.getContext("2d")?.drawImage(picture, 0, 0, view.width, view.height);
      view.hidden = false;
    } else if (facts.audio) {
      const decoder = new OfflineAudioContext(1, 1, facts.audio.rate);
      const sound = await decoder.decodeAudioData(await upload.arrayBuffer()); // resampled to the model's rate
      samples = new Float32Array(sound.length);
      for (let c = 0; c < sound.numberOfChannels; c++)
        sound.getChannelData(c).forEach((v, k) => (/** @type {Float32Array} */ (samples)[k] += v / sound.numberOfChannels));
      player.src = URL.createObjectURL(upload);
      player.hidden = false;
    }
    run();
  } catch {
    const [name, media] = facts.image ? ["EncodingError", "picture"] : ["NoSound", "sound"];
    fail({ name, message: `This browser cannot read ${upload.name} as a ${media}.` });
  }
}
$("choose").onclick = () => file.click();
file.onchange = () => (readFile(file.files?.[0]), (file.value = ""));
document.addEventListener("paste", (event) => readFile(event.clipboardData?.files[0]));
document.addEventListener("dragover", (event) => event.preventDefault());
document.addEventListener("drop", (event) => (event.preventDefault(), readFile(event.dataTransfer?.files[0])));
$("inputs").onsubmit = (event) => (event.preventDefault(), run());

open({
  site(site, from) {
    if (!site.task) return;
    facts = site.task;
    method = site.method;
    base = from;
    $("task").textContent = facts.task.replaceAll("-", " ");
    $("text-part").hidden = !facts.text;
    $("text-label").textContent = zeroShot() ? "Labels, one on each line" : facts.context ? "Question" : "Text"; // prettier-ignore
    $("passage-part").hidden = !facts.context;
    $("file-part").hidden = !facts.image && !facts.audio;
    $("choose").textContent = facts.image ? "Choose a picture" : "Choose a sound";
    file.accept = facts.image ? "image/*" : "audio/*";
    file.ariaLabel = $("choose").textContent;
  },
  ready(opened) {
    remote = opened;
    if (ready()) run();
  },
  lost() {
    remote = null;
  },
});
