// What the pages share: loading with progress, stop and resume; errors that say what to do; theme; the last line.
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
 *   image?: Picture, task?: import("./media.js").Facts, check?: Check, server?: Served}} Site where there is a server, its models are not in the site
 * @typedef {{file: string, method: string, inputs: any[]}} Check
 * @typedef {import("../src/client.js").Progress} Progress
 * @typedef {{site?: (site: Site, base: URL) => void, ready: (remote: Remote, site: Site, base: URL) => void,
 *   lost?: (next: Promise<Remote | null>) => void, failed?: () => void,
 *   attach?: (site: Site, base: URL, options: {signal: AbortSignal}) => Promise<any>}} Page `attach` opens a server; `next` is what
 *   follows a model whose GPU was lost, if anything does
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

/**
 * Makes the children of `box` again; what had the focus in it has it again, if it is still there.
 * @param {HTMLElement} box @param {() => void} work
 */
export function refill(box, work) {
  const all = () =>
    /** @type {HTMLElement[]} */ ([...box.querySelectorAll("button, input, select, textarea, [tabindex]")]);
  const at = all().findIndex((e) => e === document.activeElement);
  work();
  if (at >= 0) all()[at]?.focus({ preventScroll: true });
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

/** A time in ms for people. @param {number} ms */
export const duration = (ms) => (ms < 1000 ? `${digits(ms)} ms` : `${digits(ms / 1000)} s`);

/** @param {number} s */
const remaining = (s) =>
  s < 1 ? "almost there" : s < 90 ? `${Math.ceil(s)} s left` : `${Math.round(s / 60)} min left`;

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
const AGAIN = "Try again",
  KEPT = "What has arrived is kept: loading goes on from there.";
/**
 * By code or name: a title, what to do besides what the message says, the button.
 * @type {Record<string, [string, string?, string?]>}
 */
const ERRORS = {
  NoWebGPU: ["This browser has no WebGPU"],
  NoAdapter: ["The browser found no GPU that it may use"],
  MissingFeature: ["This GPU lacks what the model needs", "Another browser, or another device, may have it."],
  OutOfMemory: ["Not enough GPU memory", "Close other tabs and programs that use the GPU, then try again."],
  DeviceLost: [
    "The GPU was taken away",
    "That happens after sleep, or when a driver restarts. What is on this page stays.",
    "Load again",
  ],
  BadShard: ["A part of the model did not arrive whole", KEPT],
  BadBundle: ["A file of this page did not arrive", KEPT],
  UnsupportedProgram: ["This model cannot run here"],
  InvalidInput: ["The model does not take this"],
  IndexOutOfRange: ["A number is out of range"],
  ExecutionError: ["The model stopped in the middle"],
  NotAllowedError: ["The camera is not allowed here", "Allow it in the browser's address bar, then try again."],
  NotFoundError: ["There is no camera", "Plug one in, or use a picture instead."],
  EncodingError: ["This file cannot be shown", "Try a JPEG, PNG or WebP."],
  NoSound: ["This file cannot be heard", "Try a WAV, MP3 or FLAC."],
  TypeError: ["The connection broke", KEPT],
  NoServer: ["The server cannot be reached", "Is it still running? What is on this page stays."],
  BadKey: ["This server asks for an API key", "Whoever runs it has one for you.", "Enter the key"],
  Busy: ["Many are asking at once", "Nothing is wrong: wait a little, then send it again."],
  Unavailable: ["The server does not answer now", "It is stopping, or its model starts again. Try again soon."],
  TooLong: ["This took too long", "Ask for fewer tokens, or try again when fewer others ask."],
  NoModel: ["Nothing here writes text"],
};

const OWN = ["localhost", "127.0.0.1", "[::1]"]; // hosts whose visitor runs the site

/** What to do about an error, besides what its message says. @param {string | number} code @param {string} host */
export function advice(code, host) {
  const [, text = ""] = ERRORS[code] ?? [];
  if (code !== "BadShard" && code !== "BadBundle") return text;
  return OWN.includes(host)
    ? "Is every file there? Upload the whole folder again, or make the site again."
    : `${text} If it does not help, tell whoever runs this page.`;
}

/** Loads the model again. @type {(() => void) | undefined} */
let reload;
/** Whether a lost GPU is worth another try: the model ran since the last one. */
let worked = true;

/** Notes that the model ran to its end. */
export const ran = () => void (worked = true);

/** Loads the model if nothing does: it was not asked for yet, was stopped, or failed. */
export function wake() {
  if (["idle", "stopped", "error"].includes(document.body.dataset.state ?? "")) reload?.();
}

/**
 * Shows an error: what happened, what to do. Returns whether it was shown: an abort is none, and of a lost GPU `open`
 * hears by itself.
 * @param {unknown} thrown
 * @param {(() => void)} [again] what the button does; without it, it only closes the panel
 */
export function fail(thrown, again) {
  const error = /** @type {{code?: string | number, name?: string, message?: string}} */ (thrown);
  if (error.name === "AbortError") return false;
  const code = error.code ?? "";
  if (code === "DeviceLost" && again !== reload) return false;
  if (code === "BadKey") again = reload;
  const known = ERRORS[code] ? code : (error.name ?? "");
  const [title, , label = AGAIN] = ERRORS[known] ?? ["Something went wrong"];
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
    make("p", { className: "soft" }, advice(known, location.hostname)),
    actions,
  );
  $("error").hidden = false;
  $("error").scrollIntoView({ block: "nearest" });
  return true;
}

/** Takes the error away. */
export const calm = () => ($("error").hidden = true);

/** @param {"idle" | "loading" | "stopped" | "ready" | "error"} state */
const state = (state) => (document.body.dataset.state = state);

const AUTOMATIC = 64e6; // bytes that are loaded without asking

/** Opens the model of this page. @param {Page} page */
export async function open(page) {
  theme();
  // Bundled, this is part of another file, and the page shows the site that it is part of. Only unbundled, for work on
  // the pages, `?site` names another one and `?fake` a made-up model.
  const unbuilt = import.meta.url.endsWith("/ui.js");
  const query = new URLSearchParams(unbuilt ? location.search : "");
  const base = new URL(query.get("site") ?? ".", location.href);
  /** @type {Site} */
  let site;
  let { connect } = client;
  try {
    if (base.origin !== location.origin)
      throw Object.assign(new Error(`${base.href}: this page shows sites of its own host only`), { code: "BadBundle" });
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
    ? "runs on this page's server: what you write goes there"
    : "runs on your GPU; nothing leaves this page";
  if (served) connect = (_, options) => served(site, base, /** @type {{signal: AbortSignal}} */ (options));
  else {
    $("foot-model").textContent = `${site.model.file} · ${bytes(site.model.bytes)}`;
    page.site?.(site, base);
  }

  const act = /** @type {HTMLButtonElement} */ ($("load-button"));
  const known = served ? "" : `loaded-${site.model.file}-${site.model.bytes}`;
  /** Resolves with the model, or with null if it did not come. @param {string} [why] it is loaded */
  const load = async (why = served ? "Asking the server for its models" : "Getting ready") => {
    calm();
    act.classList.remove("main");
    state("loading");
    const abort = new AbortController();
    const meter = new Meter();
    $("load-stage").textContent = why;
    $("load-detail").textContent = served ? "" : "The model loads into this page, and stays in it.";
    act.hidden = false;
    act.textContent = "Stop";
    act.onclick = () => abort.abort();
    try {
      const remote = await connect(base.href, { signal: abort.signal, onProgress: (progress) => meter.show(progress) });
      // All kernels now, so that nothing waits later. Without a GPU that takes too long: each waits for its first use.
      if (!remote.info.adapter?.software)
        await remote.prepare({ signal: abort.signal, onProgress: (progress) => meter.show(progress) });
      if (known) kept(known, "1");
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
        $("load-detail").textContent = meter.weights ? `At ${meter.weights}. Parts that are whole stay here.` : "";
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
      const tries = worked; // once, unless the model runs in between
      worked = false;
      page.lost?.(tries ? load("The GPU was taken away: loading again") : Promise.resolve(null));
      if (tries) return;
      state("error");
      fail(error, again);
    });
    page.ready(remote, site, base);
  };

  const connection = /** @type {{connection?: {saveData?: boolean}}} */ (navigator).connection;
  if (served || kept(known) || (site.model.bytes <= AUTOMATIC && !connection?.saveData)) return void load();
  state("idle");
  $("load-stage").textContent = "Load the model into this page?";
  $("load-detail").textContent = `${bytes(site.model.bytes)}, once; your browser keeps them.`;
  act.hidden = false;
  act.textContent = `Load ${bytes(site.model.bytes)}`;
  act.classList.add("main");
  act.onclick = again;
}

/** Where a model runs. @param {Remote["info"]} info */
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
    const off = error ? `${error.toExponential(0)} off` : "exactly";
    $("foot-check").textContent = `${ok ? "✓ as the original" : "✗ not as the original"}, ${off}`;
  } catch (error) {
    $("foot-check").textContent = "";
    fail(error);
  }
  button.disabled = false;
}

/** Light and dark: what the system says, or what was chosen here. */
function theme() {
  const root = document.documentElement,
    toggle = $("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const show = () => toggle.setAttribute("aria-pressed", String(dark()));
  toggle.onclick = () => {
    const name = dark() ? "light" : "dark";
    root.dataset.theme = name === (system.matches ? "dark" : "light") ? "" : name; // nothing to remember
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
  /**
   * How far each stage is, and where and when it was first heard of.
   * @type {Record<string, {part: number, from: number, since: number}>}
   */
  stages = {};

  /** @param {Progress} progress */
  show({ stage, done, total }) {
    const now = performance.now(),
      part = done / (total || 1);
    const own = (this.stages[stage] ??= { part, from: part, since: now });
    own.part = part;
    const { weights, kernels } = this.stages;
    const all = 0.05 + 0.65 * (weights?.part ?? 0) + 0.3 * (kernels?.part ?? 0);
    $("load-bar").style.setProperty("--part", all.toFixed(3));
    $("load-bar").setAttribute("aria-valuenow", String(Math.round(all * 100)));
    if (stage === "weights") this.weights = `${bytes(done)} of ${bytes(total)}`;
    const compiles = weights?.part === 1;
    $("load-stage").textContent = !weights
      ? "Reading the plan"
      : compiles
        ? "Compiling for your GPU"
        : "Loading the weights";
    if (stage !== (compiles ? "kernels" : "weights")) return;
    const seconds = (now - own.since) / 1000,
      gained = part - own.from;
    const left = seconds > 0.5 && gained > 0 && part < 1 ? ` · ${remaining((seconds * (1 - part)) / gained)}` : "";
    $("load-detail").textContent = (compiles ? `${this.weights} · ${done} of ${total} kernels` : this.weights) + left;
  }
}
