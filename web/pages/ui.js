// What the pages share: loading with progress, stop and resume; errors that say what to do; theme; the line at the bottom.
import * as client from "../src/client.js";

/**
 * @typedef {import("../src/client.js").Remote} Remote
 * @typedef {{file: string, bytes: number}} Model
 * @typedef {{method: string, context: number, examples?: string[], chat?: boolean}} Language
 * @typedef {{height: number, width: number, channels: number, shape: number[], scale: number, mean: number[], std: number[],
 *   labels: string[] | null, draw?: boolean, softmax?: boolean}} Picture
 * @typedef {{title: string, page: string, method: string, model: Model, language?: Language, image?: Picture, check?: object}} Site
 * @typedef {import("../src/client.js").Progress} Progress
 * @typedef {{site?: (site: Site) => void, ready: (remote: Remote, site: Site) => void}} Page
 */

/**
 * The element with this id.
 * @template {Element} [T=HTMLElement]
 * @param {string} id
 * @returns {T}
 */
export const $ = (id) => /** @type {T} */ (/** @type {unknown} */ (document.getElementById(id)));

/**
 * A new element with properties and children.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Partial<HTMLElementTagNameMap[K]> & Record<string, unknown>} [properties]
 * @param {...(Node | string)} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function make(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

/** @param {string} text @param {() => void} onclick @param {string} [className] */
export const button = (text, onclick, className = "") => make("button", { type: "button", className, onclick }, text);

/** Bytes for people. @param {number} n */
export function bytes(n) {
  const unit = n < 1e3 ? 0 : n < 1e6 ? 1 : n < 1e9 ? 2 : 3;
  const value = n / 1e3 ** unit;
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${["B", "kB", "MB", "GB"][unit]}`;
}

/** A number with about three digits. @param {number} x */
export const digits = (x) => (x >= 100 ? x.toFixed(0) : x.toPrecision(3));

/** @param {number} s */
const remaining = (s) => (s < 1 ? "almost there" : s < 90 ? `${Math.ceil(s)} s left` : `${Math.round(s / 60)} min left`);

/** Says it to screen readers, once. @param {string} text */
export const announce = (text) => ($("live").textContent = text);

/** A value in localStorage, where there is one. @param {string} key @param {string} [value] to keep; "" forgets */
export function kept(key, value) {
  try {
    if (value) localStorage.setItem(`ptegpu-${key}`, value);
    else if (value === "") localStorage.removeItem(`ptegpu-${key}`);
    return localStorage.getItem(`ptegpu-${key}`);
  } catch {
    return null; // blocked: nothing is remembered
  }
}

/** Copies, and says so on the button. @param {HTMLButtonElement} button @param {string} text */
export async function copy(button, text) {
  const before = button.textContent;
  await navigator.clipboard?.writeText(text).then(
    () => (button.textContent = "Copied"),
    () => (button.textContent = "Not allowed here"),
  );
  setTimeout(() => (button.textContent = before), 1500);
}

const WEBGPU = "https://github.com/gpuweb/gpuweb/wiki/Implementation-Status";
const AGAIN = "Try again", KEPT = "What has arrived is kept: loading goes on from there.";
/** By code or name: a title, what to do besides what the message says, the button. @type {Record<string, [string, string?, string?]>} */
const ERRORS = {
  NoWebGPU: ["This browser has no WebGPU"],
  NoAdapter: ["The browser found no GPU that it may use"],
  MissingFeature: ["This GPU lacks what the model needs", "Another browser, or another device, may have it."],
  OutOfMemory: ["Not enough GPU memory", "Close other tabs and programs that use the GPU, then try again."],
  DeviceLost: ["The GPU was taken away", "That happens after sleep, or when a driver restarts. What is on this page stays.", "Load again"],
  BadShard: ["A part of the model did not arrive whole", KEPT],
  BadBundle: ["A file of this page did not arrive", KEPT],
  UnsupportedProgram: ["This model cannot run here"],
  InvalidInput: ["The model does not take this"],
  IndexOutOfRange: ["A number is out of range"],
  ExecutionError: ["The model stopped in the middle"],
  NotAllowedError: ["The camera is not allowed here", "Allow it in the browser's address bar, then try again."],
  NotFoundError: ["There is no camera", "Plug one in, or use a picture instead."],
  EncodingError: ["This file cannot be shown", "Try a JPEG, PNG or WebP."],
  TypeError: ["The connection broke", KEPT],
};

/**
 * Shows an error: what happened, what to do. Returns whether it was shown (an abort is none).
 * @param {unknown} thrown
 * @param {(() => void)} [again] what the button does; without it, it only closes the panel
 */
export function fail(thrown, again) {
  const error = /** @type {{code?: string | number, name?: string, message?: string}} */ (thrown);
  if (error.name === "AbortError") return false;
  const code = error.code ?? "";
  const [title, advice, label = AGAIN] = ERRORS[code] ?? ERRORS[error.name ?? ""] ?? ["Something went wrong"];
  const actions = make("div", { className: "row" }, button(again ? label : "Dismiss", () => (calm(), again?.()), "main"));
  if (code === "NoWebGPU" || code === "NoAdapter")
    actions.append(make("a", { className: "button", href: WEBGPU, rel: "noreferrer" }, "Where WebGPU works"));
  const message = (error.message ?? String(thrown)).replace(/^./, (c) => c.toUpperCase()).replace(/[^.!?]$/, "$&.");
  $("error").replaceChildren(make("h2", {}, title), make("p", {}, message), make("p", { className: "soft" }, advice ?? ""), actions);
  $("error").hidden = false;
  $("error").scrollIntoView({ block: "nearest" });
  return true;
}

/** Takes the error away. */
export const calm = () => ($("error").hidden = true);

/** @param {"idle" | "loading" | "stopped" | "ready" | "error"} state */
const state = (state) => (document.body.dataset.state = state);

/** Bundled, this is part of another file; only unbundled, `?fake` answers with made-up models. */
const fake = import.meta.url.endsWith("/ui.js") && new URLSearchParams(location.search).has("fake");
const AUTOMATIC = 64e6; // bytes that are loaded without asking

/** Opens the model of this page. @param {Page} page */
export async function open(page) {
  theme();
  const base = new URL(new URLSearchParams(location.search).get("site") ?? ".", location.href);
  /** @type {Site} */
  let site;
  let { connect } = client;
  try {
    if (fake) ({ connect, site } = await import(new URL("fake.js", import.meta.url).href));
    else {
      const answer = await fetch(new URL("site.json", base));
      if (!answer.ok) throw Object.assign(new Error(`${answer.url}: status ${answer.status}`), { code: "BadBundle" });
      site = await answer.json();
    }
  } catch (error) {
    state("error");
    return void fail(error, () => location.reload());
  }
  document.title = $("title").textContent = site.title;
  $("foot-model").textContent = `${site.model.file} · ${bytes(site.model.bytes)}`;
  page.site?.(site);

  const act = /** @type {HTMLButtonElement} */ ($("load-button"));
  const known = `loaded-${site.model.file}-${site.model.bytes}`;
  const load = async () => {
    calm();
    state("loading");
    const abort = new AbortController();
    const meter = new Meter();
    act.hidden = false;
    act.textContent = "Stop";
    act.onclick = () => abort.abort();
    try {
      const remote = await connect(base.href, { signal: abort.signal, onProgress: (progress) => meter.show(progress) });
      // All kernels now, so that nothing waits later; without a GPU that takes too long, and each waits for its first use.
      if (!remote.info.adapter.software)
        await remote.prepare({ signal: abort.signal, onProgress: (progress) => meter.show(progress) });
      kept(known, "1");
      ready(remote);
    } catch (error) {
      act.onclick = load;
      act.textContent = "Resume";
      if (fail(error, load)) return void state("error");
      state("stopped");
      $("load-stage").textContent = "Stopped";
      $("load-detail").textContent = meter.weights ? `${meter.weights} are here, and stay.` : "Nothing is lost.";
    }
  };
  /** @param {Remote} remote */
  const ready = (remote) => {
    const { adapter, variant } = remote.info;
    const name = adapter.description || [adapter.vendor, adapter.architecture].filter(Boolean).join(" ") || "a GPU";
    $("foot-place").textContent = `${variant.name ?? "generic"} on ${name} · ` +
      (adapter.software ? "runs on your CPU, as no GPU is free; nothing leaves this page" : "runs on your GPU; nothing leaves this page");
    const check = /** @type {HTMLButtonElement} */ ($("check"));
    check.hidden = !site.check;
    check.onclick = () => selfcheck(remote, check);
    state("ready");
    announce("The model is ready.");
    remote.lost.then((error) => {
      state("error");
      fail(error, load);
    });
    page.ready(remote, site);
  };

  const connection = /** @type {{connection?: {saveData?: boolean}}} */ (navigator).connection;
  if (kept(known) || (site.model.bytes <= AUTOMATIC && !connection?.saveData)) return load();
  state("idle");
  $("load-stage").textContent = "Load the model into this page?";
  $("load-detail").textContent = `${bytes(site.model.bytes)}, once; your browser keeps them.`;
  act.hidden = false;
  act.textContent = `Load ${bytes(site.model.bytes)}`;
  act.classList.add("main");
  act.onclick = () => (act.classList.remove("main"), load());
}

/** @param {Remote} remote @param {HTMLButtonElement} button */
async function selfcheck(remote, button) {
  button.disabled = true;
  $("foot-check").textContent = "checking …";
  try {
    const { ok, error } = await remote.selfcheck();
    $("foot-check").textContent = `${ok ? "✓ as the original" : "✗ differs from the original"}: ${error.toExponential(0)} off`;
  } catch (error) {
    $("foot-check").textContent = "";
    fail(error);
  }
  button.disabled = false;
}

/** Light and dark: what the system says, or what was chosen here. */
function theme() {
  const root = document.documentElement, toggle = $("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const show = () => toggle.setAttribute("aria-pressed", String(dark()));
  toggle.onclick = () => {
    const name = dark() ? "light" : "dark";
    root.dataset.theme = name === (system.matches ? "dark" : "light") ? "" : name; // as the system: nothing to remember
    kept("theme", root.dataset.theme);
    show();
    dispatchEvent(new Event("themechange"));
  };
  system.onchange = () => (show(), dispatchEvent(new Event("themechange")));
  show();
}

/** The loading bar: what is done, how far, how long it takes. Weights and kernels come side by side. */
class Meter {
  weights = "";
  kernels = "";
  part = 0;
  from = -1; // bytes that were here at the first word about them
  since = 0;

  /** @param {Progress} progress */
  show({ stage, done, total }) {
    const part = done / (total || 1);
    let left = "";
    if (stage === "weights") {
      if (this.from < 0) Object.assign(this, { from: done, since: performance.now() });
      const seconds = (performance.now() - this.since) / 1000;
      if (seconds > 0.5 && done > this.from && done < total) left = ` · ${remaining((seconds * (total - done)) / (done - this.from))}`;
      this.weights = `${bytes(done)} of ${bytes(total)}`;
      this.set(0.05 + 0.95 * part);
    } else if (stage === "kernels") this.kernels = done < total ? ` · ${done} of ${total} kernels` : "";
    const loaded = stage === "weights" ? done === total : this.part === 1;
    $("load-stage").textContent = !this.weights ? "Reading the plan" : loaded ? "Compiling for your GPU" : "Loading the weights";
    $("load-detail").textContent = this.weights + left + this.kernels;
  }

  /** @param {number} part */
  set(part) {
    this.part = part;
    $("load-bar").style.setProperty("--part", part.toFixed(3));
    $("load-bar").setAttribute("aria-valuenow", String(Math.round(part * 100)));
  }
}
