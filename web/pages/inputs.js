// Editors of inputs: fields for dynamic sizes; values from a fill, a field for each, text, or a file.
import { button, fail, make, refill } from "./ui.js";
import { array, count, element, isIntegral, read } from "./npy.js";
import { heatmap, short, stats } from "./plots.js";

/**
 * @typedef {{name: string, dtype: string | null, shape: number[], dynamic?: boolean, value?: unknown}} Spec
 */

const MAX_CELLS = 36,
  MAX_COLUMNS = 6; // up to these, each element has a field
const MAX_TEXT = 4096; // elements that can be edited as text
const MAX_INITIAL_SIZE = 16; // of a dynamic dimension
const EXAMPLE = "example"; // the fill with the site's reference inputs

/** Returns a random number with the standard normal distribution. */
const normal = () => Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random());
/** @type {Record<string, [text: string, value: (k: number, end: number) => number]>} */
const FILLS = {
  normal: ["random, normal", normal],
  uniform: ["random, 0 to 1", Math.random],
  below: ["random, below …", (_, end) => Math.floor(Math.random() * end)],
  count: ["0, 1, 2, …", (k) => k],
  zeros: ["zeros", () => 0],
  ones: ["ones", () => 1],
};
/** Returns the fills of a dtype, the default first. @param {string} dtype */
const fills = (dtype) =>
  dtype === "bool"
    ? ["ones", "zeros", "below"]
    : isIntegral(dtype)
      ? ["below", "count", "zeros", "ones"]
      : ["normal", "uniform", "count", "zeros", "ones"];

/** The editor of one input. */
export class Port {
  /**
   * @param {Spec} spec
   * @param {number} index
   * @param {any} example a reference input, or undefined
   * @param {() => void} changed is called after each change of the value
   */
  constructor(spec, index, example, changed) {
    this.spec = spec;
    this.changed = changed;
    this.example = example?.dtype === spec.dtype ? example : null;
    this.id = `input-${index}`;
    this.dtype = spec.dtype ?? "int";
    this.sizes = spec.shape.map((size) => (spec.dynamic ? Math.min(size, MAX_INITIAL_SIZE) : size));
    this.fill = !spec.dtype ? "" : this.example ? EXAMPLE : fills(spec.dtype)[0];
    this.randomEnd = 2; // small, because integers often are indices
    this.value = Number(spec.dtype ? 0 : (example ?? spec.value ?? 0));
    /** @type {any} */
    this.data = null;
    this.box = make("div", { className: "port", role: "group" });
    this.box.setAttribute("aria-labelledby", `${this.id}-name`);
    if (spec.dtype) this.fillData();
    this.show();
  }

  fillData() {
    if (this.fill === EXAMPLE)
      ({ shape: this.sizes, data: this.data } = { ...this.example, data: this.example.data.slice() });
    else this.data = array(this.dtype, count(this.sizes), (k) => FILLS[this.fill][1](k, this.randomEnd));
  }

  show() {
    const { spec, id } = this;
    const name = make(
      "h3",
      { id: `${id}-name` },
      spec.name,
      " ",
      make("span", { className: "soft small" }, this.dtype),
    );
    if (!spec.dtype) {
      const field = make("input", {
        type: "number",
        step: "1",
        id,
        value: String(this.value),
        ariaLabel: `${spec.name}, an integer`,
      });
      field.oninput = () => {
        if (!field.validity.valid || field.value === "") return;
        this.value = Number(field.value);
        this.changed();
      };
      return this.box.replaceChildren(name, field);
    }
    const choice = make(
      "select",
      { ariaLabel: `Fill ${spec.name} with` },
      ...fills(this.dtype).map((name) => make("option", { value: name }, FILLS[name][0])),
    );
    if (this.example) choice.prepend(make("option", { value: EXAMPLE }, "example"));
    if (!this.fill) choice.append(make("option", { value: "" }, "your values"));
    choice.value = this.fill;
    choice.onchange = () => this.refill(choice.value);
    const randomEnd = make("input", {
      type: "number",
      min: "1",
      step: "1",
      value: String(this.randomEnd),
      ariaLabel: `Random below`,
      hidden: this.fill !== "below" || this.dtype === "bool",
    });
    randomEnd.onchange = () => {
      this.randomEnd = Math.max(1, Number(randomEnd.value) || 1);
      this.refill("below");
    };
    const file = make("input", { type: "file", hidden: true, tabIndex: -1, ariaLabel: `A file for ${spec.name}` });
    file.onchange = () => this.readFile(file.files?.[0]);
    const actions = make(
      "div",
      { className: "row" },
      choice,
      randomEnd,
      button("Again", () => this.refill(this.fill)),
      button("File …", () => file.click()),
      file,
    );
    actions.children[2].toggleAttribute("hidden", !["normal", "uniform", "below"].includes(this.fill));
    refill(this.box, () => this.box.replaceChildren(name, this.shape(), actions, this.elements()));
  }

  /** Returns the shape, with a field for each dynamic size. */
  shape() {
    const { shape, dynamic, name } = this.spec;
    const row = make("div", { className: "row shape number" });
    if (!shape.length) row.append(make("span", { className: "soft" }, "one value"));
    shape.forEach((maxSize, d) => {
      if (d) row.append("×");
      if (!dynamic || maxSize === 1) return row.append(make("span", {}, String(maxSize)));
      const field = make("input", {
        type: "number",
        min: "1",
        max: String(maxSize),
        step: "1",
        value: String(this.sizes[d]),
        ariaLabel: `Size ${d} of ${name}, 1 to ${maxSize}`,
        title: `1 to ${maxSize}`,
      });
      field.onchange = () => {
        this.sizes[d] = Math.max(1, Math.min(maxSize, Math.round(Number(field.value)) || 1));
        this.refill(FILLS[this.fill] ? this.fill : fills(this.dtype)[0]);
      };
      row.append(field);
    });
    if (dynamic) row.append(make("span", { className: "soft" }, `at most ${shape.join(" × ")}`));
    return row;
  }

  /** Returns fields for a small array, text and a heatmap for a larger one, only a heatmap for a large one. */
  elements() {
    const columns = this.sizes.at(-1) ?? 1,
      rows = count(this.sizes) / (columns || 1);
    return rows * columns <= MAX_CELLS && columns <= MAX_COLUMNS ? this.cells(columns) : this.picture(rows, columns);
  }

  /** @param {number} columns */
  cells(columns) {
    const table = make("div", { className: "cellfields" });
    table.style.setProperty("--columns", String(columns));
    this.data.forEach((/** @type {number | bigint} */ x, /** @type {number} */ k) => {
      const at = this.sizes.length ? ` at ${this.index(k).join(", ")}` : "";
      const value = String(Number(Number(x).toPrecision(5)));
      const field = make("input", {
        type: "number",
        step: isIntegral(this.dtype) ? "1" : "any",
        value,
        ariaLabel: `${this.spec.name}${at}`,
      });
      field.oninput = () => {
        if (field.value === "" || !field.validity.valid) return;
        this.data[k] = element(this.dtype, Number(field.value));
        this.markEdited();
      };
      table.append(field);
    });
    return table;
  }

  /** @param {number} rows @param {number} columns */
  picture(rows, columns) {
    const canvas = make("canvas", { className: "plot", ariaLabel: `${this.spec.name} as a heatmap` });
    const caption = make("figcaption", { className: "small soft number" });
    const values = Array.from(this.data, Number),
      { low, high, mean } = stats(values);
    canvas.setAttribute("role", "img");
    heatmap(canvas, values, rows, columns);
    caption.textContent = `${short(low)} to ${short(high)}, mean ${short(mean)}`;
    const figure = make("figure", {}, canvas, caption);
    if (rows * columns > MAX_TEXT) return figure;
    const textLines = Array.from({ length: rows }, (_, r) =>
      values
        .slice(r * columns, (r + 1) * columns)
        .map((x) => Number(x.toPrecision(5)))
        .join(" "),
    );
    const text = make("textarea", {
      className: "values",
      rows: Math.min(rows, 4),
      spellcheck: false,
      value: textLines.join("\n"),
      ariaLabel: `Values of ${this.spec.name}, one row on each line`,
    });
    text.oninput = () => {
      const problem = this.parse(text.value, rows, columns);
      text.setCustomValidity(problem);
      text.setAttribute("aria-invalid", String(!!problem));
      caption.textContent = problem || "Uses your values.";
      if (!problem) this.markEdited();
    };
    text.onchange = () => text.validity.valid && this.show();
    return make("div", { className: "stack" }, text, figure);
  }

  /**
   * Reads values from text and adapts dynamic sizes. Returns the problem with the text, or "".
   * @param {string} text @param {number} rows @param {number} columns
   */
  parse(text, rows, columns) {
    const lines = text
      .trim()
      .split("\n")
      .map((line) =>
        line
          .split(/[\s,;[\]]+/)
          .filter(Boolean)
          .map(Number),
      );
    const width = lines[0].length,
      values = lines.flat(),
      { shape, dynamic } = this.spec;
    if (values.some((x) => Number.isNaN(x) || (isIntegral(this.dtype) && !Number.isInteger(x))))
      return `All values must be ${isIntegral(this.dtype) ? "integers" : "numbers"}.`;
    if (lines.some((line) => line.length !== width)) return `Each line must have as many values as the first: ${width}.`;
    const sizes = shape.length === 1 ? [width] : shape.length === 2 ? [lines.length, width] : this.sizes;
    const fits = dynamic
      ? sizes.every((size, d) => size && size <= shape[d])
      : width === columns && lines.length === rows;
    if (!fits || count(sizes) !== values.length) {
      const expected = dynamic ? `at most ${shape.join(" × ")}` : `${rows} × ${columns}`;
      return `Expected ${expected} values, not ${lines.length} × ${width}.`;
    }
    this.sizes = sizes;
    this.data = array(this.dtype, values.length, (k) => values[k]);
    return "";
  }

  /** Shows that the values are the visitor's own. */
  markEdited() {
    const select = /** @type {HTMLSelectElement} */ (this.box.querySelector("select"));
    if (this.fill) select.append(make("option", { value: "" }, "your values"));
    select.value = this.fill = "";
    this.changed();
  }

  /** Returns the index of element `k` in each dimension. @param {number} k @returns {number[]} */
  index(k) {
    const indices = [];
    for (const size of [...this.sizes].reverse()) {
      indices.unshift(k % size);
      k = Math.floor(k / size);
    }
    return indices;
  }

  /** @param {string} fill */
  refill(fill) {
    this.fill = fill;
    if (fill) this.fillData();
    this.show();
    this.changed();
  }

  /** @param {File | undefined} file */
  async readFile(file) {
    if (!file) return;
    try {
      const { shape, data } = read(await file.arrayBuffer(), this.dtype, this.sizes);
      const declared = this.spec.shape;
      const expected = `${this.spec.dynamic ? "at most " : ""}[${declared}]`;
      const fits =
        shape.length === declared.length &&
        shape.every((size, d) => (this.spec.dynamic ? size <= declared[d] : size === declared[d]));
      if (!fits)
        throw Object.assign(new Error(`${file.name} has the shape [${shape}]; ${this.spec.name} takes ${expected}.`), {
          code: "InvalidInput",
        });
      Object.assign(this, { sizes: shape, data, fill: "" });
      this.show();
      this.changed();
    } catch (error) {
      fail(error);
    }
  }

  /** Returns the model's input, a copy of the array. */
  input() {
    return this.spec.dtype ? { dtype: this.dtype, shape: this.sizes, data: this.data.slice() } : this.value;
  }
}
