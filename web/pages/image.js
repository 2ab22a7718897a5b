// The page of an image classifier: draw, drop, paste or choose a picture, or use the camera; bars show the likeliest labels.
import { fitted } from "./media.js";
import { $, announce, calm, duration, fail, make, open, ran } from "./ui.js";

/**
 * @typedef {import("./ui.js").Remote} Remote
 * @typedef {import("./ui.js").Picture} Picture
 * @typedef {{x: number, y: number}[]} Stroke coordinates from 0 to 1
 */

const stage = $("stage"),
  view = /** @type {HTMLCanvasElement} */ ($("view")),
  preview = /** @type {HTMLCanvasElement} */ ($("seen"));
const file = /** @type {HTMLInputElement} */ ($("file"));
const video = make("video", { muted: true, playsInline: true });
const sources = /** @type {HTMLInputElement[]} */ ([...document.querySelectorAll("[name=source]")]);
const ROWS = 12; // up to this many classes, each has a fixed row; beyond that, the likeliest are shown
const TOP = 6;
const DROP = matchMedia("(hover: hover)").matches
  ? "Drop a picture here, paste one, or choose one."
  : "Choose a picture, or paste one.";

/** @type {Remote | null} */
let remote = null;
/** @type {Picture} */
let image;
/** @type {Stroke[]} */
let strokes = [];
/** @type {ImageBitmap | null} */
let picture = null;
let method = "forward";
let source = "file";
let again = false,
  running = false;
let spoken = 0;

/** Returns the pen's width relative to the picture, as in the data that digit models were trained on. */
const pen = () => Math.max(0.09, 1.45 / image.height);

/** @param {CanvasRenderingContext2D} to @param {number} width @param {number} height @param {number} line */
function trace(to, width, height, line) {
  Object.assign(to, { lineCap: "round", lineJoin: "round", lineWidth: line });
  for (const stroke of strokes) {
    to.beginPath();
    stroke.forEach(({ x, y }) => to.lineTo(x * width, y * height));
    if (stroke.length === 1) to.lineTo(stroke[0].x * width + 0.1, stroke[0].y * height);
    to.stroke();
  }
}

/**
 * Draws the picture or the camera's frame, cropped to its centre.
 * @param {CanvasRenderingContext2D} to @param {number} width @param {number} height
 */
function crop(to, width, height) {
  const from = source === "camera" ? video : picture;
  if (!from) return;
  const [w, h] = from instanceof HTMLVideoElement ? [from.videoWidth, from.videoHeight] : [from.width, from.height];
  const [wide, high] = fitted(w, h, image);
  const [x, y] = [(wide * width) / image.width, (high * height) / image.height];
  to.imageSmoothingQuality = "high";
  to.drawImage(from, (width - x) / 2, (height - y) / 2, x, y);
}

/** Draws the strokes in white on black, centred and scaled like the digits in data sets. */
function centred(
  /** @type {CanvasRenderingContext2D} */ to,
  /** @type {number} */ width,
  /** @type {number} */ height,
) {
  const xs = strokes.flat().map((p) => p.x),
    ys = strokes.flat().map((p) => p.y);
  const [left, right, top, bottom] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const inner = (image.height < 16 ? 0.95 : 0.72) - pen();
  const scale = Math.min(inner / Math.max(right - left, bottom - top, 0.2), 3);
  to.translate(width / 2, height / 2);
  to.scale(scale, scale);
  to.translate((-width * (left + right)) / 2, (-height * (top + bottom)) / 2);
  to.strokeStyle = "#fff";
  trace(to, width, height, (pen() * height) / scale);
  to.resetTransform();
}

const small = make("canvas");

/** Returns the model's input; each pixel is the mean of several. @returns {Float32Array} */
function pixels() {
  const { width, height, channels, mean, std, scale, shape } = image;
  const k = Math.max(1, Math.min(8, Math.round(448 / Math.max(width, height))));
  small.width = width * k;
  small.height = height * k;
  const to = /** @type {CanvasRenderingContext2D} */ (small.getContext("2d", { willReadFrequently: true }));
  to.fillStyle = "#000";
  to.fillRect(0, 0, small.width, small.height);
  if (source === "draw") centred(to, small.width, small.height);
  else crop(to, small.width, small.height);
  const { data } = to.getImageData(0, 0, small.width, small.height);
  const rgb = new Float32Array(width * height * 3); // 0 to 255
  for (let y = 0; y < small.height; y++)
    for (let x = 0; x < small.width; x++) {
      const at = (Math.floor(y / k) * width + Math.floor(x / k)) * 3,
        from = (y * small.width + x) * 4;
      for (let c = 0; c < 3; c++) rgb[at + c] += data[from + c] / (k * k);
    }
  if (channels === 1) grey(rgb, width, height);
  showPreview(rgb);
  const last = shape.at(-1) === channels && shape.at(-2) === width; // channels come last
  const out = new Float32Array(width * height * channels);
  for (let p = 0; p < width * height; p++)
    for (let c = 0; c < channels; c++)
      out[last ? p * channels + c : c * width * height + p] =
        (rgb[p * 3 + c] * scale - (mean[c] ?? mean[0])) / (std[c] ?? std[0]);
  return out;
}

/** Converts to grey. Models of drawings expect light on dark, so a picture with a light border is inverted. */
function grey(/** @type {Float32Array} */ rgb, /** @type {number} */ width, /** @type {number} */ height) {
  let border = 0;
  for (let p = 0; p < width * height; p++) {
    const value = rgb[p * 3] * 0.299 + rgb[p * 3 + 1] * 0.587 + rgb[p * 3 + 2] * 0.114;
    rgb.fill(value, p * 3, p * 3 + 3);
    if (p < width || p >= width * (height - 1)) border += value / (2 * width);
  }
  if (image.draw && source !== "draw" && border > 127) rgb.forEach((value, k) => (rgb[k] = 255 - value));
}

/** @param {Float32Array} rgb */
function showPreview(rgb) {
  const { width, height } = image;
  const bytes = new ImageData(width, height);
  for (let p = 0; p < width * height; p++) bytes.data.set([rgb[p * 3], rgb[p * 3 + 1], rgb[p * 3 + 2], 255], p * 4);
  preview.getContext("2d")?.putImageData(bytes, 0, 0);
}

const empty = () => (source === "draw" ? !strokes.length : source === "camera" ? !video.videoWidth : !picture);

/** Shows the picture and classifies it. */
function refresh() {
  const to = /** @type {CanvasRenderingContext2D} */ (view.getContext("2d"));
  const colours = getComputedStyle(stage);
  to.clearRect(0, 0, view.width, view.height);
  stage.className = `${source} ${empty() ? "empty" : ""}`;
  $("seen-figure").hidden = empty() || image.width > 64;
  if (source === "draw") {
    to.strokeStyle = colours.color;
    trace(to, view.width, view.height, pen() * view.height * 0.6);
  } else crop(to, view.width, view.height);
  $("clear").hidden = source !== "draw";
  $("choose").hidden = source !== "file";
  $("hint").textContent = { draw: "Draw here.", camera: "Waiting for the camera.", file: DROP }[source] ?? "";
  if (empty()) blank();
  else look();
}

/** Classifies the picture; a call during a run causes one more run after it. */
async function look() {
  if (!remote) return empty() || void pixels();
  if (running) return void (again = true);
  running = true;
  const slow = setTimeout(() => ($("speed").textContent = "Looking …"), 500);
  try {
    const startTime = performance.now();
    const [output] = await remote.run([{ dtype: "float32", shape: sizes(), data: pixels() }], { method });
    const ms = performance.now() - startTime;
    clearTimeout(slow);
    ran();
    if (!empty()) {
      showScores(Array.from(output.data, Number));
      $("speed").textContent = `${duration(ms)} from picture to answer`;
    }
  } catch (error) {
    again = false;
    if (fail(error, refresh)) stop();
  }
  clearTimeout(slow);
  running = false;
  if (again) {
    again = false;
    requestAnimationFrame(refresh);
  }
}

/** Returns the input's shape, with a batch of one. */
const sizes = () => image.shape.map((size, k) => (k === 0 && image.shape.length > 2 && !pixelDims(k) ? 1 : size));
const pixelDims = (/** @type {number} */ k) =>
  image.shape.length === 3 && image.shape[k] === image.channels && image.channels > 1;

/** @param {number} k */
const label = (k) => image.labels?.[k] ?? `class ${k}`;

/** @param {number[]} scores */
function showScores(scores) {
  let parts = scores;
  if (image.softmax) {
    const top = Math.max(...scores),
      powers = scores.map((s) => Math.exp(s - top));
    const sum = powers.reduce((a, b) => a + b);
    parts = powers.map((p) => p / sum);
  }
  const order = parts.map((_, k) => k).sort((a, b) => parts[b] - parts[a]);
  rows(parts.length <= ROWS ? parts.map((_, k) => k) : order.slice(0, TOP), parts, order[0]);
  const percent = `${(parts[order[0]] * 100).toFixed(1)} %`;
  $("best-label").textContent = label(order[0]);
  $("best-part").textContent = percent;
  clearTimeout(spoken);
  spoken = setTimeout(() => announce(`${label(order[0])}, ${percent}`), 700);
}

/** @param {number[]} classes @param {number[]} parts @param {number} best */
function rows(classes, parts, best) {
  const list = $("bars");
  while (list.children.length < classes.length)
    list.append(
      make(
        "li",
        {},
        make("span"),
        make("span", { className: "cells", ariaHidden: "true" }, make("i")),
        make("span", { className: "number" }),
      ),
    );
  classes.forEach((k, row) => {
    const item = /** @type {HTMLElement} */ (list.children[row]);
    item.className = k === best ? "top" : "";
    item.style.setProperty("--part", (parts[k] ?? 0).toFixed(3));
    /** @type {HTMLElement} */ (item.children[0]).textContent = k < 0 ? "–" : label(k);
    item.children[2].textContent = parts[k] === undefined ? "" : `${(parts[k] * 100).toFixed(1)} %`;
  });
}

/** Shows the result of no picture. */
function blank() {
  const classes = image.labels?.length ?? ROWS + 1;
  rows(classes <= ROWS ? Array.from({ length: classes }, (_, k) => k) : Array(TOP).fill(-1), [], -1);
  $("best-label").textContent = $("speed").textContent = "";
  $("best-part").textContent =
    { draw: "The result follows your drawing.", camera: "The result follows the camera.", file: "No picture yet." }[
      source
    ] ?? "";
}

// Drawing
/** @param {PointerEvent} event */
function point(event) {
  const box = view.getBoundingClientRect();
  return { x: (event.clientX - box.left) / box.width, y: (event.clientY - box.top) / box.height };
}
let frame = 0;
const soon = () => (frame ||= requestAnimationFrame(() => ((frame = 0), refresh())));
view.onpointerdown = (event) => {
  if (source !== "draw" || event.button) return;
  view.setPointerCapture(event.pointerId);
  strokes.push([point(event)]);
  soon();
};
view.onpointermove = (event) => {
  if (source !== "draw" || !view.hasPointerCapture(event.pointerId)) return;
  for (const each of event.getCoalescedEvents?.() ?? [event]) strokes.at(-1)?.push(point(each));
  soon();
};
$("clear").onclick = () => {
  strokes = [];
  refresh();
};

// Pictures
/** Reads a picture and shows it. @param {File | null | undefined} upload */
async function readFile(upload) {
  if (!upload) return;
  try {
    picture = await createImageBitmap(upload);
    calm();
    choose("file");
  } catch {
    fail({ name: "EncodingError", message: `This browser cannot read ${upload.name} as a picture.` });
  }
}
$("choose").onclick = () => file.click();
file.onchange = () => (readFile(file.files?.[0]), (file.value = ""));
document.addEventListener("paste", (event) => readFile(event.clipboardData?.files[0]));
document.addEventListener("dragover", (event) => {
  event.preventDefault();
  document.body.classList.add("dropping");
});
document.addEventListener("dragleave", (event) => event.relatedTarget || document.body.classList.remove("dropping"));
document.addEventListener("drop", (event) => {
  event.preventDefault();
  document.body.classList.remove("dropping");
  readFile(event.dataTransfer?.files[0]);
});

// The camera
const stop = () => /** @type {MediaStream | null} */ (video.srcObject)?.getTracks().forEach((track) => track.stop());
async function film() {
  try {
    if (!navigator.mediaDevices) throw new DOMException("The browser does not offer this page a camera.", "NotFoundError");
    video.srcObject = await navigator.mediaDevices.getUserMedia({ video: { facingMode: "environment" } });
    await video.play();
    const tick = () => {
      if (source !== "camera" || !(/** @type {MediaStream} */ (video.srcObject).active)) return;
      refresh();
      requestAnimationFrame(tick);
    };
    tick();
  } catch (error) {
    fail(error, () => choose("camera"));
  }
}

/** @param {string} name */
function choose(name) {
  if (source === "camera") stop();
  source = name;
  for (const radio of sources) radio.checked = radio.value === name;
  refresh();
  if (name === "camera") film();
}
for (const radio of sources) radio.onchange = () => (calm(), choose(radio.value));
addEventListener("themechange", () => refresh());

open({
  site(site) {
    if (!site.image) return;
    image = site.image;
    method = site.method;
    const ratio = image.width / image.height;
    view.width = 640;
    view.height = 640 / ratio;
    stage.style.aspectRatio = String(ratio);
    preview.width = image.width;
    preview.height = image.height;
    preview.style.aspectRatio = String(ratio);
    $("seen-size").textContent = `${image.width} × ${image.height}`;
    $("can-draw").hidden = !image.draw;
    const longest = Math.max(...(image.labels ?? ["class 1000"]).map((name) => name.length));
    $("bars").style.setProperty("--label", `${Math.min(11, Math.max(1.25, longest * 0.55))}rem`);
    $("best").classList.toggle("long", longest > 8);
    const classes = image.labels?.length ?? 0;
    $("bars").classList.toggle("few", classes > 5 && classes <= ROWS && longest < 4);
    $("bars").style.setProperty("--rows", String(Math.ceil(classes / 2)));
    choose(image.draw ? "draw" : "file");
  },
  ready(opened) {
    remote = opened;
    running = false;
    if (!empty()) look();
  },
  lost() {
    remote = null;
  },
});
