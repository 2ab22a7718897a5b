// The page of any other model: an editor for each input by its shape and dtype, a view of each output.
import { $, announce, button, bytes, calm, digits, fail, make, open } from "./ui.js";
import { array, count, one, read, whole, write } from "./npy.js";
import { heatmap, histogram, lines, short, stats } from "./plots.js";

/**
 * @typedef {import("./ui.js").Remote} Remote
 * @typedef {import("./npy.js").Tensor} Tensor
 * @typedef {{name: string, dtype: string | null, shape: number[], dynamic?: boolean, value?: unknown}} Spec
 */

const CELLS = 36, COLUMNS = 6; // as many elements have a field each
const TEXT = 4096; // as many can be typed as text
const LARGE = 16; // a dynamic size starts at most here

/** @type {Remote | null} */
let remote = null;
/** @type {Port[]} */
let ports = [];
/** @type {Output[]} */
let outputs = [];
let method = "forward";
let running = false, again = false;

/** A standard normal number. */
const normal = () => Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random());
/** @type {Record<string, [text: string, value: (k: number, below: number) => number]>} */
const FILLS = {
  normal: ["random, normal", normal], uniform: ["random, 0 to 1", Math.random], below: ["random, below …", (_, below) => Math.floor(Math.random() * below)],
  count: ["0, 1, 2, …", (k) => k], zeros: ["zeros", () => 0], ones: ["ones", () => 1],
};
/** @param {string} dtype */
const fills = (dtype) => (dtype === "bool" ? ["ones", "zeros", "below"] : whole(dtype) ? ["below", "count", "zeros", "ones"] : ["normal", "uniform", "count", "zeros", "ones"]);

/** One input: what it is, and the editor of it. */
class Port {
  /** @param {Spec} spec @param {number} index */
  constructor(spec, index) {
    this.spec = spec;
    this.id = `input-${index}`;
    this.dtype = spec.dtype ?? "int";
    this.sizes = spec.shape.map((size) => (spec.dynamic ? Math.min(size, LARGE) : size));
    this.fill = spec.dtype ? fills(spec.dtype)[0] : "";
    this.most = spec.dtype === "bool" ? 2 : 10;
    this.value = Number(spec.value ?? 0);
    /** @type {any} */
    this.data = null;
    this.box = make("div", { className: "port", role: "group" });
    this.box.setAttribute("aria-labelledby", `${this.id}-name`);
    if (spec.dtype) this.make();
    this.show();
  }

  make() {
    this.data = array(this.dtype, count(this.sizes), (k) => FILLS[this.fill][1](k, this.most));
  }

  show() {
    const { spec, id } = this;
    const name = make("h3", { id: `${id}-name` }, spec.name, " ", make("span", { className: "soft small" }, this.dtype));
    if (!spec.dtype) {
      const field = make("input", { type: "number", step: "1", id, value: String(this.value), ariaLabel: `${spec.name}, a whole number` });
      field.oninput = () => {
        if (!field.validity.valid || field.value === "") return;
        this.value = Number(field.value);
        changed();
      };
      return this.box.replaceChildren(name, field);
    }
    const choice = make("select", { ariaLabel: `Fill ${spec.name} with` }, ...fills(this.dtype).map((name) => make("option", { value: name }, FILLS[name][0])));
    if (!this.fill) choice.append(make("option", { value: "" }, "your values"));
    choice.value = this.fill;
    choice.onchange = () => this.refill(choice.value);
    const most = make("input", { type: "number", min: "1", step: "1", value: String(this.most), ariaLabel: `Random below`, hidden: this.fill !== "below" || this.dtype === "bool" });
    most.onchange = () => {
      this.most = Math.max(1, Number(most.value) || 1);
      this.refill("below");
    };
    const file = make("input", { type: "file", hidden: true, tabIndex: -1, ariaLabel: `A file for ${spec.name}` });
    file.onchange = () => this.take(file.files?.[0]);
    const actions = make("div", { className: "row" }, choice, most, button("Again", () => this.refill(this.fill)), button("File …", () => file.click()), file);
    actions.children[2].toggleAttribute("hidden", !["normal", "uniform", "below"].includes(this.fill));
    this.box.replaceChildren(name, this.shape(), actions, this.elements());
  }

  /** The sizes; fields where they may change. */
  shape() {
    const { shape, dynamic, name } = this.spec;
    const row = make("div", { className: "row shape number" });
    if (!shape.length) row.append(make("span", { className: "soft" }, "one value"));
    shape.forEach((most, d) => {
      if (d) row.append("×");
      if (!dynamic || most === 1) return row.append(make("span", {}, String(most)));
      const field = make("input", { type: "number", min: "1", max: String(most), step: "1", value: String(this.sizes[d]), ariaLabel: `Size ${d} of ${name}, 1 to ${most}`, title: `1 to ${most}` });
      field.onchange = () => {
        this.sizes[d] = Math.max(1, Math.min(most, Math.round(Number(field.value)) || 1));
        this.refill(this.fill || fills(this.dtype)[0]);
      };
      row.append(field);
    });
    if (dynamic) row.append(make("span", { className: "soft" }, `at most ${shape.join(" × ")}`));
    return row;
  }

  /** Few elements as fields, more as text with a picture, many as a picture. */
  elements() {
    const columns = this.sizes.at(-1) ?? 1, rows = count(this.sizes) / (columns || 1);
    return rows * columns <= CELLS && columns <= COLUMNS ? this.cells(columns) : this.picture(rows, columns);
  }

  /** @param {number} columns */
  cells(columns) {
    const table = make("div", { className: "cellfields" });
    table.style.setProperty("--columns", String(columns));
    this.data.forEach((/** @type {number | bigint} */ x, /** @type {number} */ k) => {
      const at = this.sizes.length ? ` at ${this.index(k).join(", ")}` : "";
      const value = String(Number(Number(x).toPrecision(5)));
      const field = make("input", { type: "number", step: whole(this.dtype) ? "1" : "any", value, ariaLabel: `${this.spec.name}${at}` });
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
    const values = Array.from(this.data, Number), { low, high, mean } = stats(values);
    canvas.setAttribute("role", "img");
    heatmap(canvas, values, rows, columns);
    caption.textContent = `${short(low)} to ${short(high)}, mean ${short(mean)}`;
    const figure = make("figure", {}, canvas, caption);
    if (rows * columns > TEXT) return figure;
    const written = Array.from({ length: rows }, (_, r) => values.slice(r * columns, (r + 1) * columns).map((x) => Number(x.toPrecision(5))).join(" "));
    const text = make("textarea", { className: "values", rows: Math.min(rows, 4), spellcheck: false, value: written.join("\n"), ariaLabel: `Values of ${this.spec.name}, a row on each line` });
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

  /** Takes values from text; sizes follow where they may. Says what is wrong, or "". @param {string} text @param {number} rows @param {number} columns */
  parse(text, rows, columns) {
    const lines = text.trim().split("\n").map((line) => line.split(/[\s,;[\]]+/).filter(Boolean).map(Number));
    const wide = lines[0].length, all = lines.flat(), { shape, dynamic } = this.spec;
    if (all.some((x) => Number.isNaN(x) || (whole(this.dtype) && !Number.isInteger(x)))) return `These are not all ${whole(this.dtype) ? "whole " : ""}numbers.`;
    if (lines.some((line) => line.length !== wide)) return `Each line must have as many values as the first: ${wide}.`;
    const sizes = shape.length === 1 ? [wide] : shape.length === 2 ? [lines.length, wide] : this.sizes;
    const fits = dynamic ? sizes.every((size, d) => size && size <= shape[d]) : wide === columns && lines.length === rows;
    if (!fits || count(sizes) !== all.length) return `${lines.length} × ${wide} values do not fit: ${dynamic ? "at most " : ""}${dynamic ? shape.join(" × ") : `${rows} × ${columns}`}.`;
    this.sizes = sizes;
    this.data = array(this.dtype, all.length, (k) => all[k]);
    return "";
  }

  /** The values are the reader's own. */
  own() {
    const select = /** @type {HTMLSelectElement} */ (this.box.querySelector("select"));
    if (this.fill) select.append(make("option", { value: "" }, "your values"));
    select.value = this.fill = "";
    changed();
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
    changed();
  }

  /** @param {File | undefined} file */
  async take(file) {
    if (!file) return;
    try {
      const { shape, data } = read(await file.arrayBuffer(), this.dtype, this.sizes);
      const most = this.spec.shape;
      const fits = shape.length === most.length && shape.every((size, d) => (this.spec.dynamic ? size <= most[d] : size === most[d]));
      if (!fits) throw Object.assign(new Error(`${file.name} has the shape [${shape}]; ${this.spec.name} takes ${this.spec.dynamic ? "at most " : ""}[${most}].`), { code: "InvalidInput" });
      Object.assign(this, { sizes: shape, data, fill: "" });
      this.show();
      changed();
    } catch (error) {
      fail(error);
    }
  }

  /** What the model gets. The array is copied: it goes to another thread. */
  input() {
    return this.spec.dtype ? { dtype: this.dtype, shape: this.sizes, data: this.data.slice() } : this.value;
  }
}

/** One output in the view that was chosen for it. */
class Output {
  /** @param {string} name @param {number} index */
  constructor(name, index) {
    this.name = name;
    this.index = index;
    this.view = "";
    /** @type {number[]} */
    this.at = [];
    this.box = make("article", { className: "port" });
  }

  /** @param {any} value a tensor, or a number */
  show(value) {
    if (typeof value !== "object" || value === null) value = { dtype: "", shape: [], data: [value] };
    this.tensor = /** @type {Tensor} */ (value);
    const { dtype, shape, data } = this.tensor;
    const head = make("div", { className: "row head" }, make("h3", {}, this.name, " ", make("span", { className: "soft small" }, [dtype, shape.join(" × ")].filter(Boolean).join(" · "))));
    if (dtype) head.append(button("Save .npy", () => this.save(), "bare"));
    /** @type {HTMLElement} */ (head.lastChild).title = `Download ${this.name} as a .npy file`;
    if (data.length === 1) return this.box.replaceChildren(head, make("p", { className: "big number" }, short(Number(data[0]))));
    const kinds = shape.length < 2 ? ["Line", "Histogram", "Table"] : ["Heatmap", "Line", "Histogram", "Table"];
    if (!kinds.includes(this.view)) this.view = data.length <= 12 ? "Table" : kinds[0];
    const lead = shape.slice(0, -2);
    if (this.at.length !== lead.length) this.at = lead.map(() => 0);
    const views = make("div", { className: "segments", role: "radiogroup", ariaLabel: `View of ${this.name}` });
    for (const kind of kinds) {
      const radio = make("input", { type: "radio", name: `view-${this.index}`, value: kind, checked: kind === this.view });
      radio.onchange = () => ((this.view = kind), this.draw());
      views.append(make("label", {}, radio, make("span", {}, kind)));
    }
    const row = make("div", { className: "row" }, views);
    lead.forEach((size, d) => {
      const field = make("input", { type: "number", min: "0", max: String(size - 1), value: String(Math.min(this.at[d], size - 1)), ariaLabel: `Index in dimension ${d}, 0 to ${size - 1}`, title: `Dimension ${d}: 0 to ${size - 1}` });
      this.at[d] = Number(field.value);
      field.oninput = () => {
        if (field.value === "" || !field.validity.valid) return;
        this.at[d] = Number(field.value);
        this.draw();
      };
      row.append(field);
    });
    this.figure = make("figure");
    this.caption = make("p", { className: "small soft number" });
    this.box.replaceChildren(head, row, this.figure, this.caption);
    this.draw();
  }

  draw() {
    if (!this.tensor || !this.figure || !this.caption) return;
    const { shape, data } = this.tensor;
    const columns = shape.at(-1) ?? 1, rows = shape.at(-2) ?? 1;
    const slice = this.at.reduce((at, k, d) => at * shape[d] + k, 0) * rows * columns;
    const values = Array.from(data.slice(slice, slice + rows * columns), Number);
    const { low, high, mean, odd } = stats(values);
    this.caption.textContent = `${short(low)} to ${short(high)}, mean ${short(mean)}${odd ? `, ${odd} not finite` : ""}`;
    if (this.view === "Table") return this.figure.replaceChildren(table(this.name, values, rows, columns));
    const canvas = make("canvas", { className: "plot", ariaLabel: `${this.view} of ${this.name}: ${this.caption.textContent}` });
    canvas.setAttribute("role", "img");
    this.figure.replaceChildren(canvas);
    if (this.view === "Heatmap") {
      heatmap(canvas, values, rows, columns);
      const rest = this.caption.textContent;
      canvas.onpointermove = ({ offsetX, offsetY }) => {
        const c = Math.min(columns - 1, Math.floor((offsetX / canvas.clientWidth) * columns)), r = Math.min(rows - 1, Math.floor((offsetY / canvas.clientHeight) * rows));
        if (this.caption) this.caption.textContent = `[${[...this.at, r, c].join(", ")}] = ${short(values[r * columns + c])}`;
      };
      canvas.onpointerleave = () => this.caption && (this.caption.textContent = rest);
    } else if (this.view === "Line") lines(canvas, values, rows, columns);
    else histogram(canvas, values);
  }

  save() {
    if (!this.tensor) return;
    const link = make("a", { href: URL.createObjectURL(write(this.tensor)), download: `${this.name.replace(/\W+/g, "-")}.npy` });
    link.click();
    URL.revokeObjectURL(link.href);
  }
}

/** The first rows and columns. @param {string} name @param {number[]} values @param {number} rows @param {number} columns */
function table(name, values, rows, columns) {
  const few = Math.min(rows, 40), narrow = Math.min(columns, 24);
  const made = make("table", {}, make("caption", { className: "quiet" }, name));
  const head = make("tr", {}, make("td"));
  for (let c = 0; c < narrow; c++) head.append(make("th", { scope: "col" }, String(c)));
  if (narrow < columns) head.append(make("th", { scope: "col" }, `… ${columns - 1}`));
  made.append(make("thead", {}, head));
  const body = make("tbody");
  for (let r = 0; r < few; r++) {
    const row = make("tr", {}, make("th", { scope: "row" }, String(r)));
    for (let c = 0; c < narrow; c++) row.append(make("td", {}, short(values[r * columns + c])));
    if (narrow < columns) row.append(make("td", {}, "…"));
    body.append(row);
  }
  made.append(body);
  const scroll = make("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: `Table of ${name}` }, made);
  return few < rows ? make("div", {}, scroll, make("p", { className: "small soft" }, `The first ${few} of ${rows} rows; the .npy file has all.`)) : scroll;
}

/** Inputs and outputs of a method. @param {string} name */
function choose(name) {
  if (!remote) return;
  method = name;
  const { inputs, outputs: gives } = /** @type {{inputs: Spec[], outputs: Spec[]}} */ (remote.info.signatures[name]);
  ports = inputs.map((spec, k) => new Port({ ...spec, name: spec.name || `input ${k}` }, k));
  outputs = gives.map((spec, k) => new Output(spec.name || `output ${k}`, k));
  $("ports").replaceChildren(...ports.map((port) => port.box));
  $("outputs").replaceChildren();
  run();
}

/** An input changed. */
function changed() {
  calm();
  if (/** @type {HTMLInputElement} */ ($("auto")).checked) run();
}

async function run() {
  if (!remote) return;
  if (running) return void (again = true);
  running = true;
  document.body.ariaBusy = "true";
  const started = performance.now();
  try {
    const values = await remote.run(ports.map((port) => port.input()), { method });
    calm();
    const time = `${digits(performance.now() - started)} ms`;
    while (outputs.length < values.length) outputs.push(new Output(`output ${outputs.length}`, outputs.length));
    $("outputs").replaceChildren(...values.map((_, k) => outputs[k].box));
    values.forEach((value, k) => outputs[k].show(value));
    $("speed").textContent = `${time} · ${bytes(remote.info.bytes.memory)} of memory`;
    announce(`Ran in ${time}.`);
  } catch (error) {
    again = false;
    fail(error);
  }
  running = false;
  document.body.ariaBusy = "false";
  if (again) {
    again = false;
    run();
  }
}

$("inputs").onsubmit = (event) => {
  event.preventDefault();
  run();
};
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run();
});
$("reset").onclick = () => remote?.reset().then(run, fail);
const redraw = () => (outputs.forEach((output) => output.draw()), ports.forEach((port) => port.show()));
addEventListener("themechange", redraw);
let width = innerWidth;
addEventListener("resize", () => width !== innerWidth && ((width = innerWidth), outputs.forEach((output) => output.draw())));

open({
  ready(opened, site) {
    remote = opened;
    const select = /** @type {HTMLSelectElement} */ ($("method"));
    const names = opened.info.methods;
    select.replaceChildren(...names.map((name) => make("option", { value: name }, name)));
    select.value = names.includes(site.method) ? site.method : names[0];
    select.onchange = () => (calm(), choose(select.value));
    $("method-label").hidden = names.length < 2;
    $("waiting").hidden = true;
    $("go").hidden = $("reset").hidden = false;
    choose(select.value);
  },
});
