// Editors of inputs: sizes where they may change, values by a fill, a field each, as text, or from a file.
import { button, fail, make, refill } from "./ui.js";
import { array, count, one, read, whole } from "./npy.js";
import { heatmap, short, stats } from "./plots.js";

/**
 * @typedef {{name: string, dtype: string | null, shape: number[], dynamic?: boolean, value?: unknown}} Spec
 */

const CELLS = 36,
  COLUMNS = 6; // as many elements have a field each
const TEXT = 4096; // as many can be typed as text
const LARGE = 16; // a dynamic size starts at most here
const EXAMPLE = "example"; // the fill with what the site is checked with

/** A standard normal number. */
const normal = () => Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random());
/** @type {Record<string, [text: string, value: (k: number, below: number) => number]>} */
const FILLS = {
  normal: ["random, normal", normal],
  uniform: ["random, 0 to 1", Math.random],
  below: ["random, below …", (_, below) => Math.floor(Math.random() * below)],
  count: ["0, 1, 2, …", (k) => k],
  zeros: ["zeros", () => 0],
  ones: ["ones", () => 1],
};
/** @param {string} dtype */
const fills = (dtype) =>
  dtype === "bool"
    ? ["ones", "zeros", "below"]
    : whole(dtype)
      ? ["below", "count", "zeros", "ones"]
      : ["normal", "uniform", "count", "zeros", "ones"];

/** One input: what it is, and the editor of it. */
export class Port {
  /**
   * @param {Spec} spec
   * @param {number} index
   * @param {any} example what it may begin with
   * @param {() => void} changed is called when its value is another
   */
  constructor(spec, index, example, changed) {
    this.spec = spec;
    this.changed = changed;
    this.example = example?.dtype === spec.dtype ? example : null;
    this.id = `input-${index}`;
    this.dtype = spec.dtype ?? "int";
    this.sizes = spec.shape.map((size) => (spec.dynamic ? Math.min(size, LARGE) : size));
    this.fill = !spec.dtype ? "" : this.example ? EXAMPLE : fills(spec.dtype)[0];
    this.most = 2; // indices are as small as can be
    this.value = Number(spec.dtype ? 0 : (example ?? spec.value ?? 0));
    /** @type {any} */
    this.data = null;
    this.box = make("div", { className: "port", role: "group" });
    this.box.setAttribute("aria-labelledby", `${this.id}-name`);
    if (spec.dtype) this.make();
    this.show();
  }

  make() {
    if (this.fill === EXAMPLE)
      ({ shape: this.sizes, data: this.data } = { ...this.example, data: this.example.data.slice() });
    else this.data = array(this.dtype, count(this.sizes), (k) => FILLS[this.fill][1](k, this.most));
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
        ariaLabel: `${spec.name}, a whole number`,
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
    if (this.example) choice.prepend(make("option", { value: EXAMPLE }, "the example"));
    if (!this.fill) choice.append(make("option", { value: "" }, "your values"));
    choice.value = this.fill;
    choice.onchange = () => this.refill(choice.value);
    const most = make("input", {
      type: "number",
      min: "1",
      step: "1",
      value: String(this.most),
      ariaLabel: `Random below`,
      hidden: this.fill !== "below" || this.dtype === "bool",
    });
    most.onchange = () => {
      this.most = Math.max(1, Number(most.value) || 1);
      this.refill("below");
    };
    const file = make("input", { type: "file", hidden: true, tabIndex: -1, ariaLabel: `A file for ${spec.name}` });
    file.onchange = () => this.take(file.files?.[0]);
    const actions = make(
      "div",
      { className: "row" },
      choice,
      most,
      button("Again", () => this.refill(this.fill)),
      button("File …", () => file.click()),
      file,
    );
    actions.children[2].toggleAttribute("hidden", !["normal", "uniform", "below"].includes(this.fill));
    refill(this.box, () => this.box.replaceChildren(name, this.shape(), actions, this.elements()));
  }

  /** The sizes; fields where they may change. */
  shape() {
    const { shape, dynamic, name } = this.spec;
    const row = make("div", { className: "row shape number" });
    if (!shape.length) row.append(make("span", { className: "soft" }, "one value"));
    shape.forEach((most, d) => {
      if (d) row.append("×");
      if (!dynamic || most === 1) return row.append(make("span", {}, String(most)));
      const field = make("input", {
        type: "number",
        min: "1",
        max: String(most),
        step: "1",
        value: String(this.sizes[d]),
        ariaLabel: `Size ${d} of ${name}, 1 to ${most}`,
        title: `1 to ${most}`,
      });
      field.onchange = () => {
        this.sizes[d] = Math.max(1, Math.min(most, Math.round(Number(field.value)) || 1));
        this.refill(FILLS[this.fill] ? this.fill : fills(this.dtype)[0]);
      };
      row.append(field);
    });
    if (dynamic) row.append(make("span", { className: "soft" }, `at most ${shape.join(" × ")}`));
    return row;
  }

  /** Few elements as fields, more as text with a picture, many as a picture. */
  elements() {
    const columns = this.sizes.at(-1) ?? 1,
      rows = count(this.sizes) / (columns || 1);
    return rows * columns <= CELLS && columns <= COLUMNS ? this.cells(columns) : this.picture(rows, columns);
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
        step: whole(this.dtype) ? "1" : "any",
        value,
        ariaLabel: `${this.spec.name}${at}`,
      });
      field.oninput = () => {
        if (field.value === "" || !field.validity.valid) return;
        this.data[k] = one(this.dtype, Number(field.value));
        this.own();
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
    if (rows * columns > TEXT) return figure;
    const written = Array.from({ length: rows }, (_, r) =>
      values
        .slice(r * columns, (r + 1) * columns)
        .map((x) => Number(x.toPrecision(5)))
        .join(" "),
    );
    const text = make("textarea", {
      className: "values",
      rows: Math.min(rows, 4),
      spellcheck: false,
      value: written.join("\n"),
      ariaLabel: `Values of ${this.spec.name}, a row on each line`,
    });
    text.oninput = () => {
      const problem = this.parse(text.value, rows, columns);
      text.setCustomValidity(problem);
      text.setAttribute("aria-invalid", String(!!problem));
      caption.textContent = problem || "As you typed it.";
      if (!problem) this.own();
    };
    text.onchange = () => text.validity.valid && this.show();
    return make("div", { className: "stack" }, text, figure);
  }

  /**
   * Takes values from text; sizes follow where they may. Says what is wrong, or "".
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
    const wide = lines[0].length,
      all = lines.flat(),
      { shape, dynamic } = this.spec;
    if (all.some((x) => Number.isNaN(x) || (whole(this.dtype) && !Number.isInteger(x))))
      return `These are not all ${whole(this.dtype) ? "whole " : ""}numbers.`;
    if (lines.some((line) => line.length !== wide)) return `Each line must have as many values as the first: ${wide}.`;
    const sizes = shape.length === 1 ? [wide] : shape.length === 2 ? [lines.length, wide] : this.sizes;
    const fits = dynamic
      ? sizes.every((size, d) => size && size <= shape[d])
      : wide === columns && lines.length === rows;
    if (!fits || count(sizes) !== all.length) {
      const takes = dynamic ? `at most ${shape.join(" × ")}` : `${rows} × ${columns}`;
      return `These are ${lines.length} × ${wide} values; it takes ${takes}.`;
    }
    this.sizes = sizes;
    this.data = array(this.dtype, all.length, (k) => all[k]);
    return "";
  }

  /** The values are the reader's own. */
  own() {
    const select = /** @type {HTMLSelectElement} */ (this.box.querySelector("select"));
    if (this.fill) select.append(make("option", { value: "" }, "your values"));
    select.value = this.fill = "";
    this.changed();
  }

  /** @param {number} k @returns {number[]} */
  index(k) {
    const found = [];
    for (const size of [...this.sizes].reverse()) {
      found.unshift(k % size);
      k = Math.floor(k / size);
    }
    return found;
  }

  /** @param {string} fill */
  refill(fill) {
    this.fill = fill;
    if (fill) this.make();
    this.show();
    this.changed();
  }

  /** @param {File | undefined} file */
  async take(file) {
    if (!file) return;
    try {
      const { shape, data } = read(await file.arrayBuffer(), this.dtype, this.sizes);
      const most = this.spec.shape;
      const wanted = `${this.spec.dynamic ? "at most " : ""}[${most}]`;
      const fits =
        shape.length === most.length &&
        shape.every((size, d) => (this.spec.dynamic ? size <= most[d] : size === most[d]));
      if (!fits)
        throw Object.assign(new Error(`${file.name} has the shape [${shape}]; ${this.spec.name} takes ${wanted}.`), {
          code: "InvalidInput",
        });
      Object.assign(this, { sizes: shape, data, fill: "" });
      this.show();
      this.changed();
    } catch (error) {
      fail(error);
    }
  }

  /** What the model gets. The array is copied: it goes to another thread. */
  input() {
    return this.spec.dtype ? { dtype: this.dtype, shape: this.sizes, data: this.data.slice() } : this.value;
  }
}
