// The page of any other model: an editor for each input, by shape and dtype, and a view of each output.
import { $, announce, bytes, calm, duration, fail, make, open, ran, wake } from "./ui.js";
import { Port } from "./inputs.js";
import { read } from "./npy.js";
import { Output } from "./outputs.js";

/**
 * @typedef {import("./ui.js").Remote} Remote
 * @typedef {import("./inputs.js").Spec} Spec
 */

/** @type {Remote | null} */
let remote = null;
/** @type {Port[]} */
let ports = [];
/** @type {Output[]} */
let outputs = [];
let method = "forward";
let running = false,
  again = false;

/** The site's reference inputs, by method. @type {Record<string, any[]>} */
const examples = {};

/** Loads the reference inputs. @param {import("./ui.js").Check} check @param {URL} base */
async function loadExamples({ file, inputs }, base) {
  const bytes = await (await fetch(new URL(file, base))).arrayBuffer();
  return inputs.map((t) => (t?.dtype ? read(bytes.slice(t.at, t.at + t.length), t.dtype, t.shape) : t));
}

/** Shows the inputs of a method and runs it. @param {string} name */
function choose(name) {
  if (!remote) return;
  method = name;
  const { inputs, outputs: specs } = /** @type {{inputs: Spec[], outputs: Spec[]}} */ (remote.info.signatures[name]);
  ports = inputs.map(
    (spec, k) => new Port({ ...spec, name: spec.name || `input ${k}` }, k, examples[name]?.[k], changed),
  );
  outputs = specs.map((spec, k) => new Output(spec.name || `output ${k}`, k));
  $("ports").replaceChildren(...ports.map((port) => port.box));
  $("outputs").replaceChildren();
  run();
}

/** Handles a change of an input. */
function changed() {
  calm();
  if (/** @type {HTMLInputElement} */ ($("auto")).checked) run();
}

async function run() {
  if (!remote) return wake();
  if (running) return void (again = true);
  running = true;
  document.body.ariaBusy = "true";
  const startTime = performance.now();
  const startMethod = method;
  const slow = setTimeout(() => ($("speed").textContent = "Running …"), 500);
  try {
    const values = await remote.run(
      ports.map((port) => port.input()),
      { method },
    );
    clearTimeout(slow);
    ran();
    if (startMethod !== method) throw new DOMException("another method was chosen", "AbortError");
    calm();
    const time = duration(performance.now() - startTime);
    while (outputs.length < values.length) outputs.push(new Output(`output ${outputs.length}`, outputs.length));
    if ($("outputs").children.length !== values.length)
      $("outputs").replaceChildren(...values.map((_, k) => outputs[k].box));
    values.forEach((value, k) => outputs[k].show(value));
    $("speed").textContent = `${time} · ${bytes(remote.info.bytes.memory)} of memory`;
    announce(`Ran in ${time}.`);
  } catch (error) {
    $("speed").textContent = "";
    fail(error);
  }
  clearTimeout(slow);
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
addEventListener(
  "resize",
  () => width !== innerWidth && ((width = innerWidth), outputs.forEach((output) => output.draw())),
);

open({
  async ready(opened, site, base) {
    remote = opened;
    document.body.ariaBusy = "true"; // until the first run
    if (ports.length) return void run(); // loaded again after a loss of the GPU
    const select = /** @type {HTMLSelectElement} */ ($("method"));
    const names = opened.info.methods;
    select.replaceChildren(...names.map((name) => make("option", { value: name }, name)));
    select.value = names.includes(site.method) ? site.method : names[0];
    select.onchange = () => (calm(), choose(select.value));
    $("method-label").hidden = names.length < 2;
    $("waiting").hidden = true;
    $("go").hidden = $("reset").hidden = false;
    if (site.check) examples[site.check.method] = await loadExamples(site.check, base).catch(() => []);
    choose(select.value);
  },
  lost() {
    remote = null;
  },
});
