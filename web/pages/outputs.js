// Views of outputs: table, heatmap, lines or histogram. An output can be saved as a .npy file.
import { button, make, refill } from "./ui.js";
import { write } from "./npy.js";
import { heatmap, histogram, lines, short, stats } from "./plots.js";

/** @typedef {import("./npy.js").Tensor} Tensor */

/** The view of one output. */
export class Output {
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
    refill(this.box, () => this.fill(value));
  }

  /** @param {any} value */
  fill(value) {
    if (typeof value !== "object" || value === null) value = { dtype: "", shape: [], data: [value] };
    this.tensor = /** @type {Tensor} */ (value);
    const { dtype, shape, data } = this.tensor;
    const head = make(
      "div",
      { className: "row head" },
      make(
        "h3",
        {},
        this.name,
        " ",
        make("span", { className: "soft small" }, [dtype, shape.join(" × ")].filter(Boolean).join(" · ")),
      ),
    );
    if (dtype) head.append(button("Save .npy", () => this.save(), "bare"));
    /** @type {HTMLElement} */ (head.lastChild).title = `Download ${this.name} as a .npy file`;
    if (!data.length) return this.box.replaceChildren(head, make("p", { className: "soft" }, "No elements."));
    if (data.length === 1)
      return this.box.replaceChildren(head, make("p", { className: "big number" }, short(Number(data[0]))));
    const kinds = shape.length < 2 ? ["Line", "Histogram", "Table"] : ["Heatmap", "Line", "Histogram", "Table"];
    if (!kinds.includes(this.view)) this.view = data.length <= 12 ? "Table" : kinds[0];
    const lead = shape.slice(0, -2);
    if (this.at.length !== lead.length) this.at = lead.map(() => 0);
    const views = make("div", { className: "segments", role: "radiogroup", ariaLabel: `View of ${this.name}` });
    for (const kind of kinds) {
      const radio = make("input", {
        type: "radio",
        name: `view-${this.index}`,
        value: kind,
        checked: kind === this.view,
      });
      radio.onchange = () => ((this.view = kind), this.draw());
      views.append(make("label", {}, radio, make("span", {}, kind)));
    }
    const row = make("div", { className: "row" }, views);
    lead.forEach((size, d) => {
      if (size < 2) return void (this.at[d] = 0);
      const field = make("input", {
        type: "number",
        min: "0",
        max: String(size - 1),
        value: String(Math.min(this.at[d], size - 1)),
        ariaLabel: `Index in dimension ${d}, 0 to ${size - 1}`,
        title: `Dimension ${d}: 0 to ${size - 1}`,
      });
      this.at[d] = Number(field.value);
      field.oninput = () => {
        if (field.value === "" || !field.validity.valid) return;
        this.at[d] = Number(field.value);
        this.draw();
      };
      row.append(make("label", { className: "row small soft" }, `[${d}]`, field));
    });
    this.figure = make("figure");
    this.caption = make("p", { className: "small soft number" });
    this.box.replaceChildren(head, row, this.figure, this.caption);
    this.draw();
  }

  draw() {
    if (!this.tensor || !this.figure || !this.caption) return;
    const { shape, data } = this.tensor;
    const columns = shape.at(-1) ?? 1,
      rows = shape.at(-2) ?? 1;
    const slice = this.at.reduce((at, k, d) => at * shape[d] + k, 0) * rows * columns;
    const values = Array.from(data.slice(slice, slice + rows * columns), Number);
    const { low, high, mean, odd } = stats(values);
    const rest = odd ? `, ${odd} not finite` : "";
    this.caption.textContent = `${short(low)} to ${short(high)}, mean ${short(mean)}${rest}`;
    if (this.view === "Table") return this.figure.replaceChildren(table(this.name, values, rows, columns));
    const canvas = make("canvas", {
      className: "plot",
      ariaLabel: `${this.view} of ${this.name}: ${this.caption.textContent}`,
    });
    canvas.setAttribute("role", "img");
    this.figure.replaceChildren(canvas);
    if (this.view === "Heatmap") {
      heatmap(canvas, values, rows, columns);
      const all = this.caption.textContent;
      canvas.onpointermove = ({ offsetX, offsetY }) => {
        const c = Math.min(columns - 1, Math.floor((offsetX / canvas.clientWidth) * columns)),
          r = Math.min(rows - 1, Math.floor((offsetY / canvas.clientHeight) * rows));
        if (this.caption)
          this.caption.textContent = `[${[...this.at, r, c].join(", ")}] = ${short(values[r * columns + c])}`;
      };
      canvas.onpointerleave = () => this.caption && (this.caption.textContent = all);
    } else if (this.view === "Line") lines(canvas, values, rows, columns);
    else histogram(canvas, values);
  }

  save() {
    if (!this.tensor) return;
    const link = make("a", {
      href: URL.createObjectURL(write(this.tensor)),
      download: `${this.name.replace(/\W+/g, "-")}.npy`,
    });
    link.click();
    URL.revokeObjectURL(link.href);
  }
}

/**
 * Returns a table of the first rows and columns.
 * @param {string} name @param {number[]} values @param {number} rows @param {number} columns
 */
function table(name, values, rows, columns) {
  const shownRows = Math.min(rows, 40),
    shownColumns = Math.min(columns, 24);
  const table = make("table", {}, make("caption", { className: "quiet" }, name));
  const head = make("tr", {}, make("td"));
  for (let c = 0; c < shownColumns; c++) head.append(make("th", { scope: "col" }, String(c)));
  if (shownColumns < columns) head.append(make("th", { scope: "col" }, `… ${columns - 1}`));
  table.append(make("thead", {}, head));
  const body = make("tbody");
  for (let r = 0; r < shownRows; r++) {
    const row = make("tr", {}, make("th", { scope: "row" }, String(r)));
    for (let c = 0; c < shownColumns; c++) row.append(make("td", {}, short(values[r * columns + c])));
    if (shownColumns < columns) row.append(make("td", {}, "…"));
    body.append(row);
  }
  table.append(body);
  const scroll = make("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: `Table of ${name}` }, table);
  return shownRows < rows
    ? make(
        "div",
        {},
        scroll,
        make("p", { className: "small soft" }, `The first ${shownRows} of ${rows} rows. The .npy file has all.`),
      )
    : scroll;
}
