// Plots on a canvas: heatmap, lines, histogram, in the page's colours.

/** Returns a colour of the page. @param {string} name of a custom property @returns {[number, number, number]} */
function colour(name) {
  const probe = document.createElement("i");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const components = getComputedStyle(probe).color.match(/[\d.]+/g) ?? [];
  probe.remove();
  return /** @type {[number, number, number]} */ (components.slice(0, 3).map(Number));
}

/** Returns range and mean of the finite values, and the number of others. @param {number[]} values */
export function stats(values) {
  let low = Infinity,
    high = -Infinity,
    sum = 0,
    odd = 0;
  for (const x of values) {
    if (!Number.isFinite(x)) odd++;
    else ((sum += x), (low = Math.min(low, x)), (high = Math.max(high, x)));
  }
  const n = values.length - odd;
  return n ? { low, high, mean: sum / n, odd } : { low: 0, high: 0, mean: 0, odd };
}

/** Formats a number with at most four digits. @param {number} x */
export const short = (x) =>
  (Number.isInteger(x) && Math.abs(x) < 1e6
    ? String(x)
    : Math.abs(x) >= 1e5 || (x && Math.abs(x) < 1e-3)
      ? x.toExponential(2)
      : String(Number(x.toPrecision(4)))
  ).replace("-", "−");

/** @param {HTMLCanvasElement} canvas @param {number} width @param {number} height in CSS pixels */
function sized(canvas, width, height) {
  const scale = devicePixelRatio || 1;
  canvas.width = width * scale;
  canvas.height = height * scale;
  canvas.style.aspectRatio = `${width} / ${height}`;
  const to = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  to.scale(scale, scale);
  return to;
}

/**
 * Draws rows × columns as coloured cells: from grey to the accent colour, negative values to the warning colour.
 * @param {HTMLCanvasElement} canvas @param {number[]} values @param {number} rows @param {number} columns
 */
export function heatmap(canvas, values, rows, columns) {
  const { low, high } = stats(values);
  const largest = Math.max(Math.abs(low), Math.abs(high)) || 1;
  const signed = low < 0,
    zero = colour("--cell"),
    positive = colour("--accent"),
    negative = colour("--warn");
  canvas.width = columns;
  canvas.height = rows;
  const image = new ImageData(columns, rows);
  values.forEach((x, k) => {
    const part = Number.isFinite(x) ? (signed ? x / largest : high > low ? (x - low) / (high - low) : Number(x !== 0)) : 0;
    const to = part < 0 ? negative : positive;
    for (let c = 0; c < 3; c++) image.data[k * 4 + c] = zero[c] + (to[c] - zero[c]) * Math.abs(part);
    image.data[k * 4 + 3] = 255;
  });
  canvas.getContext("2d")?.putImageData(image, 0, 0);
  const cell = Math.max(1, Math.min(28, 560 / columns, 360 / rows)); // square cells, except in very wide or tall arrays
  canvas.style.aspectRatio = columns / rows > 16 || rows > columns * 4 ? "auto" : `${columns} / ${rows}`;
  canvas.style.height = canvas.style.aspectRatio === "auto" ? `${Math.max(48, Math.min(360, rows * cell))}px` : "auto";
  canvas.style.maxWidth = `${Math.max(96, columns * cell)}px`;
}

/**
 * Draws each row as a line.
 * @param {HTMLCanvasElement} canvas @param {number[]} values @param {number} rows @param {number} columns
 */
export function lines(canvas, values, rows, columns) {
  const width = canvas.parentElement?.clientWidth || 480,
    height = 200,
    { low, high } = stats(values);
  const to = sized(canvas, width, height);
  const y = (/** @type {number} */ v) => 12 + (height - 32) * (1 - (v - low) / (high - low || 1));
  const x = (/** @type {number} */ k) => 1 + (k / Math.max(1, columns - 1)) * (width - 2);
  frame(to, width, height, low, high, y);
  const shown = Math.min(rows, 12);
  const [r, g, b] = colour("--accent");
  for (let row = shown - 1; row >= 0; row--) {
    to.beginPath();
    for (let k = 0; k < columns; k++) to.lineTo(x(k), y(values[row * columns + k]));
    to.strokeStyle = `rgb(${r} ${g} ${b} / ${1 - (row / shown) * 0.8})`;
    to.lineWidth = 1.5;
    to.stroke();
  }
  label(to, `0 … ${columns - 1}`, width, height - 4, "right");
}

/** Draws the counts of values in 48 ranges. @param {HTMLCanvasElement} canvas @param {number[]} values */
export function histogram(canvas, values) {
  const width = canvas.parentElement?.clientWidth || 480,
    height = 200,
    { low, high } = stats(values),
    bins = Array(48).fill(0);
  for (const v of values)
    if (Number.isFinite(v)) bins[Math.min(47, Math.floor(((v - low) / (high - low || 1)) * 48))]++;
  const to = sized(canvas, width, height),
    maxCount = Math.max(...bins);
  to.fillStyle = `rgb(${colour("--accent").join(" ")})`;
  bins.forEach((n, k) =>
    to.fillRect(
      (k * width) / 48,
      12 + (height - 32) * (1 - n / maxCount),
      Math.max(1, width / 48 - 2),
      ((height - 32) * n) / maxCount,
    ),
  );
  label(to, short(low), 0, height - 4, "left");
  label(to, short(high), width, height - 4, "right");
  label(to, `at most ${maxCount} of ${values.length}`, 0, 10, "left");
}

/**
 * @param {CanvasRenderingContext2D} to @param {number} width @param {number} height
 * @param {number} low @param {number} high @param {(v: number) => number} y
 */
function frame(to, width, height, low, high, y) {
  to.strokeStyle = `rgb(${colour("--line").join(" ")})`;
  to.lineWidth = 1;
  for (const v of new Set([low, high, ...(low < 0 && high > 0 ? [0] : [])])) {
    to.beginPath();
    to.moveTo(0, Math.round(y(v)) + 0.5);
    to.lineTo(width, Math.round(y(v)) + 0.5);
    to.stroke();
  }
  label(to, short(high), 0, 10, "left");
  label(to, short(low), 0, height - 4, "left");
}

/**
 * @param {CanvasRenderingContext2D} to @param {string} text @param {number} x @param {number} y
 * @param {CanvasTextAlign} align
 */
function label(to, text, x, y, align) {
  const before = to.fillStyle;
  to.fillStyle = `rgb(${colour("--soft").join(" ")})`;
  to.font = "12px system-ui, sans-serif";
  to.textAlign = align;
  to.fillText(text, x, y);
  to.fillStyle = before;
}
