// Code shared by all pages: loading with progress, stop and resume; error panels; the theme; the footer.
import * as client from "../src/client.js";

/**
 * @typedef {import("../src/client.js").Remote} Remote
 * @typedef {{file: string, bytes: number}} Model
 * @typedef {{context: number, maxTokens?: number, examples?: string[], chat?: boolean}} Language
 * @typedef {{height: number, width: number, channels: number, shape: number[], scale: number, mean: number[],
 *   std: number[], labels: string[] | null, draw?: boolean, softmax?: boolean,
 *   shortest?: number | null, resize?: number[] | null}} Picture
 * @typedef {Record<"chat" | "text", string[]> & {models?: Record<string, string[]>}} Examples by kind, or by model
 * @typedef {{keys: boolean, examples: Examples}} Served
 * @typedef {{title: string, page: string, method: string, model: Model, language?: Language,
 *   image?: Picture, task?: import("./media.js").Facts, check?: Check, server?: Served}} Site `server`: the models run
 *   on the page's server and are not part of the site
 * @typedef {{file: string, method: string, inputs: any[]}} Check
 * @typedef {import("../src/client.js").Progress} Progress
 * @typedef {{site?: (site: Site, base: URL) => void, ready: (remote: Remote, site: Site, base: URL) => void,
 *   lost?: (next: Promise<Remote | null>) => void, failed?: () => void,
 *   attach?: (site: Site, base: URL, options: {signal: AbortSignal}) => Promise<any>}} Page `attach` opens a server;
 *   `next` resolves with the model that replaces one whose GPU was lost, or with null
 */

/**
 * Returns the element with this id.
 * @template {Element} [T=HTMLElement]
 * @param {string} id
 * @returns {T}
 */
export const $ = (id) => /** @type {T} */ (/** @type {unknown} */ (document.getElementById(id)));

/**
 * Creates an element with properties and children.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Partial<HTMLElementTagNameMap[K]> & Record<string, unknown>} [properties]
 * @param {...(Node | string)} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

/**
 * Calls `work`, which replaces the children of `box`, and restores the focus to the control at the same place.
 * @param {HTMLElement} box @param {() => void} work
 */
export function refill(box, work) {
  const controls = () =>
    /** @type {HTMLElement[]} */ ([...box.querySelectorAll("button, input, select, textarea, [tabindex]")]);
  const focused = controls().findIndex((e) => e === document.activeElement);
  work();
  if (focused >= 0) controls()[focused]?.focus({ preventScroll: true });
}

/** @param {string} text @param {() => void} onclick @param {string} [className] */
export const button = (text, onclick, className = "") => make("button", { type: "button", className, onclick }, text);

/** Formats a number of bytes. @param {number} n */
export function bytes(n) {
  const unit = n < 1e3 ? 0 : n < 1e6 ? 1 : n < 1e9 ? 2 : 3;
  const value = n / 1e3 ** unit;
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${["B", "kB", "MB", "GB"][unit]}`;
}

/** Formats a number with about three digits. @param {number} x */
export const digits = (x) => (x >= 100 ? x.toFixed(0) : x.toPrecision(3));

/** Formats a time. @param {number} ms */
export const duration = (ms) => (ms < 1000 ? `${digits(ms)} ms` : `${digits(ms / 1000)} s`);

/** @param {number} s */
const remaining = (s) =>
  s < 1 ? "almost there" : s < 90 ? `${Math.ceil(s)} s left` : `${Math.round(s / 60)} min left`;

/** Announces a text to screen readers. @param {string} text */
export const announce = (text) => ($("live").textContent = text);

/** Returns a value in localStorage, or null. @param {string} key @param {string} [value] stores it; "" removes it */
export function stored(key, value) {
  try {
    if (value) localStorage.setItem(`ptegpu-${key}`, value);
    else if (value === "") localStorage.removeItem(`ptegpu-${key}`);
    return localStorage.getItem(`ptegpu-${key}`);
  } catch {
    return null; // localStorage is blocked
  }
}

/** Copies text to the clipboard and shows that on the button. @param {HTMLButtonElement} button @param {string} text */
export async function copy(button, text) {
  const before = button.textContent;
  await navigator.clipboard?.writeText(text).then(
    () => (button.textContent = "Copied"),
    () => (button.textContent = "Not allowed here"),
  );
  setTimeout(() => (button.textContent = before), 1500);
}

const WEBGPU = "https://github.com/gpuweb/gpuweb/wiki/Implementation-Status";
const TRY_AGAIN = "Try again",
  RESUMES = "The parts that have arrived are saved: loading continues from there.";
/**
 * By code or name: a title, advice that the message lacks, the button's text.
 * @type {Record<string, [string, string?, string?]>}
 */
const ERRORS = {
  NoWebGPU: ["This browser has no WebGPU"],
  NoAdapter: ["The browser found no GPU"],
  MissingFeature: ["This GPU lacks a feature that the model needs", "Another browser or device may have it."],
  OutOfMemory: ["Not enough GPU memory", "Close other tabs and programs that use the GPU, then try again."],
  DeviceLost: [
    "The browser lost access to the GPU",
    "That happens after sleep or when a driver restarts. The text on this page is not lost.",
    "Load again",
  ],
  BadShard: ["A part of the model could not be downloaded", RESUMES],
  BadBundle: ["A file of this page could not be downloaded", RESUMES],
  UnsupportedProgram: ["This model cannot run here"],
  InvalidInput: ["The model cannot use this input"],
  IndexOutOfRange: ["A number is out of range"],
  ExecutionError: ["The model stopped with an error"],
  NotAllowedError: ["This page may not use the camera", "Allow it in the browser's address bar, then try again."],
  NotFoundError: ["No camera found", "Plug one in, or use a picture instead."],
  EncodingError: ["This file cannot be shown", "Try a JPEG, PNG or WebP file."],
  NoSound: ["This file cannot be played", "Try a WAV, MP3 or FLAC file."],
  TypeError: ["The connection was interrupted", RESUMES],
  NoServer: ["The server cannot be reached", "Check that it is still running. The text on this page is not lost."],
  BadKey: ["This server requires an API key", "Ask the person who runs it for one.", "Enter the key"],
  Busy: ["The server is busy", "Wait a little, then send it again."],
  Unavailable: ["The server is not available", "It is stopping, or restarting its model. Try again soon."],
  TooLong: ["This took too long", "Ask for fewer tokens, or try again when the server is less busy."],
  NoModel: ["No model here generates text"],
};

const LOCAL_HOSTS = ["localhost", "127.0.0.1", "[::1]"]; // on these, the visitor also runs the site

/** Returns advice that the error's own message lacks. @param {string | number} code @param {string} host */
export function advice(code, host) {
  const [, text = ""] = ERRORS[code] ?? [];
  if (code !== "BadShard" && code !== "BadBundle") return text;
  return LOCAL_HOSTS.includes(host)
    ? "A file may be missing: upload the whole folder again, or write the site again."
    : `${text} If that does not help, tell the person who runs this page.`;
}

/** Loads the model again. @type {(() => void) | undefined} */
let reload;
/** Whether the model has run since the GPU was lost last; if so, it is loaded again by itself. */
let worked = true;

/** Records a successful run. */
export const ran = () => void (worked = true);

/** Loads the model, unless it is loaded or loading. */
export function wake() {
  if (["idle", "stopped", "error"].includes(document.body.dataset.state ?? "")) reload?.();
}

/**
 * Shows an error with advice. Returns false for errors that are not shown: an abort, and a lost GPU, which `open` handles.
 * @param {unknown} thrown
 * @param {(() => void)} [again] the action of the button, which otherwise only closes the panel
 */
export function fail(thrown, again) {
  const error = /** @type {{code?: string | number, name?: string, message?: string}} */ (thrown);
  if (error.name === "AbortError") return false;
  const code = error.code ?? "";
  if (code === "DeviceLost" && again !== reload) return false;
  if (code === "BadKey") again = reload;
  const key = ERRORS[code] ? code : (error.name ?? "");
  const [title, , label = TRY_AGAIN] = ERRORS[key] ?? ["Something went wrong"];
  const actions = make(
    "div",
    { className: "row" },
    button(again ? label : "Dismiss", () => (calm(), again?.()), "main"),
  );
  if (code === "NoWebGPU" || code === "NoAdapter")
    actions.append(make("a", { className: "button", href: WEBGPU, rel: "noreferrer" }, "Where WebGPU works"));
  const message = (error.message ?? String(thrown))
    .replace(/^[a-z](?=\w* )/, (c) => c.toUpperCase())
    .replace(/[^.!?]$/, "$&.");
  $("error").replaceChildren(
    make("h2", {}, title),
    make("p", {}, message),
    make("p", { className: "soft" }, advice(key, location.hostname)),
    actions,
  );
  $("error").hidden = false;
  $("error").scrollIntoView({ block: "nearest" });
  return true;
}

/** Hides the error. */
export const calm = () => ($("error").hidden = true);

/** @param {"idle" | "loading" | "stopped" | "ready" | "error"} state */
const state = (state) => (document.body.dataset.state = state);

const AUTOMATIC = 64e6; // bytes; larger models load on a click

/** Opens the model of this page. @param {Page} page */
export async function open(page) {
  theme();
  // A bundled page shows its own site. Only the unbundled files, for work on the pages, read `?site`, which names
  // another site of the same host, and `?fake`, which names a fake model.
  const unbuilt = import.meta.url.endsWith("/ui.js");
  const query = new URLSearchParams(unbuilt ? location.search : "");
  const base = new URL(query.get("site") ?? ".", location.href);
  /** @type {Site} */
  let site;
  let { connect } = client;
  try {
    if (base.origin !== location.origin)
      throw Object.assign(new Error(`${base.href}: this page only shows sites of its own host`), { code: "BadBundle" });
    if (query.has("fake")) ({ connect, site } = await import(new URL("fake.js", import.meta.url).href));
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
  const served = site.server && page.attach;
  $("foot-place").textContent = served
    ? "runs on this page's server, which receives what you write"
    : "runs on your GPU; nothing leaves this page";
  if (served) connect = (_, options) => served(site, base, /** @type {{signal: AbortSignal}} */ (options));
  else {
    $("foot-model").textContent = `${site.model.file} · ${bytes(site.model.bytes)}`;
    page.site?.(site, base);
  }

  const act = /** @type {HTMLButtonElement} */ ($("load-button"));
  const loadedKey = served ? "" : `loaded-${site.model.file}-${site.model.bytes}`;
  /** Loads the model; resolves with null if that fails or is stopped. @param {string} [status] the first text */
  const load = async (status = served ? "Asking the server for its models" : "Getting ready") => {
    calm();
    act.classList.remove("main");
    state("loading");
    const abort = new AbortController();
    const meter = new Meter();
    $("load-stage").textContent = status;
    $("load-detail").textContent = served ? "" : "The model is loaded into this page and runs only here.";
    act.hidden = false;
    act.textContent = "Stop";
    act.onclick = () => abort.abort();
    try {
      const remote = await connect(base.href, { signal: abort.signal, onProgress: (progress) => meter.show(progress) });
      // Compile all kernels now, so that no run waits for one. On a CPU that takes too long.
      if (!remote.info.adapter?.software)
        await remote.prepare({ signal: abort.signal, onProgress: (progress) => meter.show(progress) });
      if (loadedKey) stored(loadedKey, "1");
      ready(remote);
      return remote;
    } catch (error) {
      act.onclick = again;
      act.textContent = "Resume";
      if (fail(error, again)) {
        state("error");
        page.failed?.();
      } else {
        state("stopped");
        $("load-stage").textContent = "Stopped";
        $("load-detail").textContent = meter.weights ? `Stopped at ${meter.weights}. Complete parts are saved.` : "";
      }
      return null;
    }
  };
  const again = (reload = () => void load());
  /** @param {Remote} remote */
  const ready = (remote) => {
    if (!served) $("foot-place").textContent = place(remote.info);
    const check = /** @type {HTMLButtonElement} */ ($("check"));
    check.hidden = !site.check;
    check.onclick = () => selfcheck(remote, check);
    state("ready");
    announce("The model is ready.");
    remote.lost.then((error) => {
      remote.dispose();
      const retry = worked; // once, unless the model runs in between
      worked = false;
      page.lost?.(retry ? load("The browser lost access to the GPU: loading again") : Promise.resolve(null));
      if (retry) return;
      state("error");
      fail(error, again);
    });
    page.ready(remote, site, base);
  };

  const connection = /** @type {{connection?: {saveData?: boolean}}} */ (navigator).connection;
  if (served || stored(loadedKey) || (site.model.bytes <= AUTOMATIC && !connection?.saveData)) return void load();
  state("idle");
  $("load-stage").textContent = "Load the model into this page?";
  $("load-detail").textContent = `Downloads ${bytes(site.model.bytes)} once; your browser keeps the model.`;
  act.hidden = false;
  act.textContent = `Load ${bytes(site.model.bytes)}`;
  act.classList.add("main");
  act.onclick = again;
}

/** Describes where a model runs. @param {Remote["info"]} info */
function place({ adapter, variant }) {
  const name = adapter.description || [adapter.vendor, adapter.architecture].filter(Boolean).join(" ") || "a GPU";
  const where = adapter.software ? "your CPU, without a GPU" : "your GPU";
  return `${variant.name ?? "generic"} on ${name} · runs on ${where}; nothing leaves this page`;
}

/** @param {Remote} remote @param {HTMLButtonElement} button */
async function selfcheck(remote, button) {
  button.disabled = true;
  $("foot-check").textContent = "checking …";
  try {
    const { ok, error } = await remote.selfcheck();
    const difference = error ? `relative error ${error.toExponential(0)}` : "exactly equal";
    $("foot-check").textContent = `${ok ? "✓ matches the original" : "✗ differs from the original"}, ${difference}`;
  } catch (error) {
    $("foot-check").textContent = "";
    fail(error);
  }
  button.disabled = false;
}

/** Sets up the colours: the system's, or the visitor's choice. */
function theme() {
  const root = document.documentElement,
    toggle = $("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const show = () => toggle.setAttribute("aria-pressed", String(dark()));
  toggle.onclick = () => {
    const name = dark() ? "light" : "dark";
    root.dataset.theme = name === (system.matches ? "dark" : "light") ? "" : name; // "" follows the system
    stored("theme", root.dataset.theme);
    show();
    dispatchEvent(new Event("themechange"));
  };
  system.onchange = () => (show(), dispatchEvent(new Event("themechange")));
  show();
}

/** The loading bar: stage, progress and remaining time. Weights and kernels load in parallel. */
class Meter {
  weights = "";
  /**
   * By stage: the part done, and the part and time of its first report.
   * @type {Record<string, {part: number, from: number, since: number}>}
   */
  stages = {};

  /** @param {Progress} progress */
  show({ stage, done, total }) {
    const now = performance.now(),
      part = done / (total || 1);
    const current = (this.stages[stage] ??= { part, from: part, since: now });
    current.part = part;
    const { weights, kernels } = this.stages;
    const overall = 0.05 + 0.65 * (weights?.part ?? 0) + 0.3 * (kernels?.part ?? 0);
    $("load-bar").style.setProperty("--part", overall.toFixed(3));
    $("load-bar").setAttribute("aria-valuenow", String(Math.round(overall * 100)));
    if (stage === "weights") this.weights = `${bytes(done)} of ${bytes(total)}`;
    const compiling = weights?.part === 1;
    $("load-stage").textContent = !weights
      ? "Reading the plan"
      : compiling
        ? "Compiling for your GPU"
        : "Loading the weights";
    if (stage !== (compiling ? "kernels" : "weights")) return;
    const seconds = (now - current.since) / 1000,
      gained = part - current.from;
    const left = seconds > 0.5 && gained > 0 && part < 1 ? ` · ${remaining((seconds * (1 - part)) / gained)}` : "";
    $("load-detail").textContent = (compiling ? `${this.weights} · ${done} of ${total} kernels` : this.weights) + left;
  }
}
