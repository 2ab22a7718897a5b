// What the three pages share: loading with progress, stop and resume; errors that say what to do; theme; the line at the bottom.

/**
 * @typedef {import("../src/client.js").Remote} Remote
 * @typedef {{file: string, bytes: number}} Model
 * @typedef {{method: string, context: number, examples?: string[], chat?: boolean}} Language
 * @typedef {{height: number, width: number, channels: number, shape: number[], scale: number, mean: number[], std: number[],
 *   labels: string[] | null, draw?: boolean, softmax?: boolean}} Picture
 * @typedef {{title: string, description?: string, page: string, method: string, model: Model, language?: Language, image?: Picture, check?: object}} Site
 * @typedef {{stage: string, done: number, total: number, bytes?: number}} Progress
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
const left = (s) => (s < 1 ? "almost there" : s < 90 ? `${Math.ceil(s)} s left` : `${Math.round(s / 60)} min left`);

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
const AGAIN = "Try again";
/** @type {Record<string, [title: string, advice: string, again: string, link?: [string, string]]>} */
const ERRORS = {
  NoWebGPU: ["This browser has no WebGPU", "It is in current Chrome, Edge, Safari and Firefox; some have it behind a switch.",
    AGAIN, ["Where WebGPU works", WEBGPU]],
  NoAdapter: ["The browser found no GPU that it may use", "Turn on hardware acceleration in its settings, and restart it.",
    AGAIN, ["Where WebGPU works", WEBGPU]],
  MissingFeature: ["This GPU lacks what the model needs", "Another browser or another device may have it.", AGAIN],
  OutOfMemory: ["Not enough GPU memory", "Close other tabs and programs that use the GPU, then try again.", AGAIN],
  DeviceLost: ["The GPU was taken away", "This happens after sleep or a driver restart. Your text is still here.", "Load again"],
  BadShard: ["A part of the model arrived damaged", "It was fetched twice. What arrived whole is kept.", AGAIN],
  BadBundle: ["The model's files are incomplete", "If this page is yours, upload the whole folder again.", AGAIN],
  UnsupportedProgram: ["This model cannot run here", "It was made for a newer or another runner.", AGAIN],
  InvalidInput: ["The model does not take this input", "", "Dismiss"],
  IndexOutOfRange: ["A number in the input is out of range", "", "Dismiss"],
  ExecutionError: ["The model stopped in the middle", "", "Dismiss"],
  TypeError: ["The connection broke", "What has arrived is kept; loading goes on from there.", "Resume"],
};

/**
 * Shows an error: what happened, what to do. Returns whether it was shown (an abort is none).
 * @param {unknown} thrown
 * @param {(() => void)} [again] what the button does; without it, it only closes the panel
 */
export function fail(thrown, again) {
  const error = /** @type {{code?: string, name?: string, message?: string}} */ (thrown);
  if (error?.name === "AbortError") return false;
  const code = error?.code ?? error?.name ?? "";
  const known = ERRORS[code];
  if (!known) console.warn(thrown);
  const [title, advice, label, link] = known ?? ["Something went wrong", "", again ? AGAIN : "Dismiss"];
  const act = button(again ? label : "Dismiss", () => (calm(), again?.()), "main");
  const actions = make("div", { className: "row" }, act);
  if (link) actions.append(make("a", { className: "button", href: link[1], rel: "noreferrer" }, link[0]));
  const message = error?.message ?? String(thrown);
  $("error").replaceChildren(make("h2", {}, title), make("p", {}, message),
    ...(advice ? [make("p", { className: "soft" }, advice)] : []), actions);
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
  /** @type {typeof import("../src/client.js").connect} */
  let connect;
  try {
    const from = fake ? await import(new URL("./fake.js", import.meta.url).href) : await import("../src/client.js");
    connect = from.connect;
    site = fake ? from.site : await (await fetch(new URL("site.json", base))).json();
  } catch (error) {
    state("error");
    return void fail(error, () => location.reload());
  }
  document.title = $("title").textContent = site.title;
  if (site.description) $("about").textContent = site.description;
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
      const remote = await connect(base.href, { signal: abort.signal, onProgress: (/** @type {Progress} */ p) => meter.show(p) });
      kept(known, "1");
      ready(remote);
    } catch (error) {
      act.onclick = load;
      act.textContent = "Resume";
      if (fail(error, load)) return void state("error");
      state("stopped");
      $("load-stage").textContent = "Stopped";
      $("load-detail").textContent = meter.bytes ? `${meter.bytes} are here, and stay.` : "Nothing is lost.";
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

const STAGES = /** @type {Record<string, [text: string, from: number, to: number]>} */ ({
  plan: ["Reading the plan", 0, 0.03], weights: ["Loading the weights", 0.03, 0.8], kernels: ["Compiling for your GPU", 0.8, 1],
});

/** The loading bar: a stage, how far it is, how long it takes. */
class Meter {
  stage = "";
  bytes = "";
  since = 0;
  from = 0;
  part = -1;

  /** @param {Progress} progress */
  show({ stage, done, total }) {
    const now = performance.now();
    const [text, from, to] = STAGES[stage] ?? [stage, 0, 1];
    if (stage !== this.stage) {
      Object.assign(this, { stage, since: now, from: done });
      $("load-stage").textContent = text;
    }
    const part = Math.floor((from + (to - from) * (total ? done / total : 0)) * 200) / 200;
    if (part !== this.part) {
      this.part = part;
      $("load-bar").style.setProperty("--part", String(part));
      $("load-bar").setAttribute("aria-valuenow", String(Math.round(part * 100)));
    }
    const seconds = (now - this.since) / 1000;
    const time = seconds > 0.5 && done > this.from ? ` · ${left((seconds * (total - done)) / (done - this.from))}` : "";
    if (stage === "weights") this.bytes = `${bytes(done)} of ${bytes(total)}`;
    const what = stage === "weights" ? this.bytes : stage === "kernels" ? `${done} of ${total} kernels` : "";
    $("load-detail").textContent = what + time;
  }
}
