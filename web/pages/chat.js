// The page of a language model: a conversation if it has a chat template, otherwise one text that it continues. The
// model runs in this page, or on the server that the page comes from.
import { $, announce, bytes, button, calm, copy, digits, fail, stored, make, open, ran, wake } from "./ui.js";
import { show } from "./markdown.js";
import { connect, Server } from "./server.js";

/**
 * @typedef {import("./ui.js").Remote | Server} Remote
 * @typedef {import("./ui.js").Site} Site
 * @typedef {import("./ui.js").Language} Language
 * @typedef {{role: string, content: string}} Message
 * @typedef {{you: boolean, text: string}} Part
 */

const main = $("main"),
  composer = $("composer"),
  send = $("send"),
  newest = $("newest"),
  settings = $("settings");
const prompt = /** @type {HTMLTextAreaElement} */ ($("prompt"));
const form = /** @type {HTMLFormElement} */ (settings.querySelector("form"));
const models = /** @type {HTMLSelectElement} */ ($("model"));
const unlock = /** @type {HTMLDialogElement} */ ($("unlock"));
const fields = /** @type {HTMLInputElement[]} */ ([...form.querySelectorAll("input, textarea")]);

/** @type {Remote | null} */
let remote = null;
/** The model that replaces one whose GPU was lost, or null. @type {Promise<Remote | null>} */
let next = Promise.resolve(null);
/** @type {{cancel(): void} | null} */
let stream = null;
let context = 0;
let waiting = false; // the typed text is sent when the model is ready
let density = 3; // characters per token, estimated from the last prompt

/** Returns the sampling options in the settings. @returns {Record<string, number | undefined>} */
function options() {
  const values = /** @type {Record<string, number | undefined>} */ ({});
  for (const { name, value, type, validity } of fields)
    if (type !== "textarea" && validity.valid) values[name] = value === "" ? undefined : Number(value);
  return values;
}

/**
 * Streams an answer and shows it in each frame. After a loss of the GPU, continues when the model is loaded again.
 * @param {string | Message[]} input @param {(text: string) => void} draw @param {HTMLElement} row below the text
 */
async function answer(input, draw, row) {
  if (!remote) throw new Error("no model");
  calm();
  busy(true);
  announce("Writing …");
  const length = typeof input === "string" ? input.length : input.reduce((n, m) => n + m.content.length + 12, 0);
  const settings = options();
  let running = remote.stream(input, settings);
  let stopped = false;
  stream = {
    cancel() {
      stopped = true;
      running.cancel();
    },
  };
  let text = "",
    failed = false,
    frame = 0,
    first = 0,
    before = 0;
  const reason = remote instanceof Server ? "The server is busy, or" : "The first words take longest: the model";
  const hint = make("span", { className: "note" }, `${reason} compiles its kernels.`);
  const hintTimer = setTimeout(() => row.append(hint), 3000);
  const paint = () => {
    frame = 0;
    draw(text);
    follow();
    const { promptTokens, tokens } = running.generation;
    showContext(promptTokens.length || length / density, tokens.length, !promptTokens.length);
    const seconds = (performance.now() - first) / 1000;
    if (seconds > 0.4) $("speed").textContent = digits((tokens.length - before) / seconds);
  };
  for (let model = /** @type {Remote | null} */ (remote); model; ) {
    try {
      for await (const piece of running) {
        if (!first) {
          first = performance.now();
          clearTimeout(hintTimer);
          hint.remove();
          before = running.generation.tokens.length;
        }
        text += piece;
        frame ||= requestAnimationFrame(paint);
      }
      ran();
      break;
    } catch (error) {
      failed = true;
      fail(error);
      if (/** @type {{code?: string}} */ (error).code !== "DeviceLost") break;
      clearTimeout(hintTimer);
      hint.textContent = "The browser lost access to the GPU. The model is loading again, then continues.";
      row.append(hint);
      await model.lost; // sets `next`
      model = await next;
      if (!model || stopped) break;
      const continues = /** @type {any} */ (running.generation); // only models in the page can lose the GPU
      running = /** @type {import("./ui.js").Remote} */ (model).stream(input, { ...settings, continues });
      failed = false;
      first = 0;
    }
  }
  clearTimeout(hintTimer);
  hint.remove();
  cancelAnimationFrame(frame);
  paint();
  stream = null;
  busy(false);
  const { promptTokens, tokens, seed, finishReason, timings } = running.generation;
  const { decodeTokens, decodeMs } = timings;
  if (promptTokens.length) density = Math.max(1, length / promptTokens.length);
  if (decodeMs) $("speed").textContent = digits((decodeTokens / decodeMs) * 1000);
  announce(text || "No answer.");
  const outcome = failed && !stopped ? "failed" : finishReason;
  return { text, reason: outcome, facts: `${tokens.length} tokens · seed ${seed}` };
}

/** @param {boolean} on */
function busy(on) {
  document.body.ariaBusy = String(on);
  composer.classList.toggle("busy", on);
  $("new").toggleAttribute("disabled", on || talk.empty);
  $("check").toggleAttribute("disabled", on);
  models.disabled = on;
  talk.label(on);
}

/** Shows how full the context is. @param {number} read @param {number} [written] tokens @param {boolean} [estimated] */
function showContext(read, written = 0, estimated = false) {
  const tokens = Math.min(context, Math.round(read + written)); // the last token is not in the cache
  $("context").textContent = `${estimated ? "≈ " : ""}${tokens} of ${context}`;
  $("meter").style.setProperty("--part", String(Math.min(1, tokens / context)));
}

// The page scrolls with the new text until the reader scrolls up.
let pinned = true;
const end = () => main.scrollHeight - main.clientHeight;
const follow = () => pinned && (main.scrollTop = end());
main.addEventListener(
  "scroll",
  () => {
    pinned = end() - main.scrollTop < 48;
    newest.hidden = pinned;
  },
  { passive: true },
);
new ResizeObserver(follow).observe(main); // for a phone's keyboard
newest.onclick = () => {
  pinned = true;
  follow();
  prompt.focus();
};

/** A conversation with a chat model. */
class Conversation {
  /** @type {Message[]} */
  messages = [];
  list = $("turns");

  get empty() {
    return !this.messages.length;
  }

  /** @param {boolean} on */
  label(on) {
    send.textContent = on ? "Stop" : "Send";
  }

  /** @param {string} text */
  async say(text) {
    if (!text) return;
    this.messages.push({ role: "user", content: text });
    this.turn("you", "You").textContent = text;
    await this.reply();
  }

  async reply() {
    const content = this.turn("model", "Model");
    const turn = /** @type {HTMLElement} */ (content.closest("li"));
    const row = make("div", { className: "row" });
    content.after(row);
    content.classList.add("waiting");
    turn.classList.add("busy");
    const { text, reason, facts } = await answer(
      this.fitting(),
      (text) => {
        content.classList.toggle("waiting", !text);
        show(content, text);
      },
      row,
    );
    content.classList.remove("waiting");
    turn.classList.remove("busy");
    if (!text) {
      // no answer: the message returns to the text field
      turn.remove();
      this.list.lastElementChild?.remove();
      const words = this.messages.pop()?.content ?? "";
      prompt.value ||= words;
      return;
    }
    this.messages.push({ role: "assistant", content: text });
    this.list.querySelector(".again")?.remove();
    const copier = button("Copy", () => copy(copier, text), "bare");
    const again = button(
      "Try again",
      () => {
        if (stream) return;
        this.messages.pop();
        turn.remove();
        this.reply();
      },
      "bare again",
    );
    row.append(copier, again, make("span", { className: "note" }, facts + (NOTES[reason ?? ""] ?? "")));
    follow();
  }

  /** Returns the messages, without the oldest ones that do not fit into the context. */
  fitting() {
    const system = /** @type {HTMLTextAreaElement} */ ($("system")).value.trim();
    const head = system ? [{ role: "system", content: system }] : [];
    const room = (context - Math.min(options().maxTokens ?? 256, context / 2)) * density;
    let rest = this.messages;
    const size = () => rest.reduce((n, m) => n + m.content.length + 12, system.length);
    while (rest.length > 2 && size() > room) rest = rest.slice(2);
    if (rest !== this.messages) announce("The oldest messages no longer fit and are left out.");
    return [...head, ...rest];
  }

  /** @param {string} who @param {string} name */
  turn(who, name) {
    const content = make("div", { className: "said" });
    this.list.append(make("li", { className: `turn ${who}` }, make("h2", {}, name), make("div", {}, content)));
    this.list.hidden = false;
    $("intro").hidden = true;
    pinned = true;
    follow();
    return content;
  }

  clear() {
    this.messages = [];
    this.list.replaceChildren();
    this.list.hidden = true;
  }
}

const NOTES = /** @type {Record<string, string>} */ ({
  length: " · reached the maximum number of tokens",
  context: " · the context is full",
  cancelled: " · stopped by you",
  failed: " · interrupted",
});

/** A text that the model continues. */
class Tale {
  /** @type {Part[]} */
  parts = [];
  title = "";
  box = $("tale");

  /** @param {boolean} titled whether the first line is a title */
  constructor(titled) {
    this.titled = titled;
    this.heading = make("h2");
    this.text = make("div", { className: "text" });
    this.end = make("span", { className: "end", ariaHidden: "true" });
    this.row = make("div", { className: "row" });
    this.box.replaceChildren(this.heading, this.text, this.end, this.row);
  }

  get empty() {
    return !this.title && !this.parts.length;
  }

  /** @param {boolean} on */
  label(on) {
    send.textContent = on ? "Stop" : this.empty ? "Begin" : "Continue";
    const placeholder = this.empty ? (this.titled ? "A title for a tale" : "How does it begin?") : "Add words, or just continue";
    prompt.placeholder = placeholder;
    $("prompt-label").textContent = placeholder;
  }

  /** @param {string} text */
  async say(text) {
    if (this.empty && !text) return;
    if (this.empty && this.titled) this.title = text;
    else if (text) this.parts.push({ you: true, text: this.parts.length ? ` ${text}` : text });
    await this.extend();
  }

  async extend() {
    const part = { you: false, text: "" };
    this.parts.push(part);
    const node = this.show();
    this.row.replaceChildren();
    this.end.textContent = "";
    this.box.classList.add("busy");
    pinned = true;
    follow();
    const prompt = this.prompt();
    const shortened = prompt.length < this.content().length ? " · uses the last lines only" : "";
    const { reason, facts } = await answer(prompt, (text) => node.appendData(text.slice(node.length)), this.row);
    part.text = node.data;
    this.box.classList.remove("busy");
    if (!part.text && reason !== "stop") return this.undo();
    if (reason === "stop") this.end.textContent = "■ ■ ■";
    const copier = button("Copy", () => copy(copier, this.content()), "bare");
    const again = button(
      "Tell it differently",
      () => {
        if (stream) return;
        this.parts.pop();
        this.extend();
      },
      "bare",
    );
    this.row.append(copier, again, make("span", { className: "note" }, facts + shortened));
    follow();
  }

  /** Shows all parts; returns the text node of the last one. */
  show() {
    this.box.hidden = this.empty;
    $("intro").hidden = !this.empty;
    this.heading.hidden = !this.title;
    this.heading.textContent = this.title;
    this.text.replaceChildren(
      ...this.parts.flatMap(
        ({ you, text }) =>
          /** @type {(Node | string)[]} */ (
            you ? [text.startsWith(" ") ? " " : "", make("mark", {}, text.trim())] : [new Text(text)]
          ),
      ),
    );
    return /** @type {Text} */ (this.text.lastChild);
  }

  /** Returns the visitor's words to the text field, after no answer. */
  undo() {
    this.parts.pop();
    const words = this.parts.at(-1)?.you ? (this.parts.pop()?.text.trim() ?? "") : "";
    prompt.value ||= words;
    if (!this.parts.length) {
      prompt.value ||= this.title;
      this.title = "";
    }
    this.show();
    this.label(false);
  }

  content() {
    return `${this.title}${this.titled ? "\n" : ""}${this.parts.map((part) => part.text).join("")}`;
  }

  /** Returns the text, or if it does not fit into the context, its title and last sentences. */
  prompt() {
    const text = this.content(),
      head = this.titled ? this.title.length + 1 : 0;
    const room = Math.floor(context * density * 0.6);
    if (text.length < context * density * 0.8) return text;
    const tail = text.slice(Math.max(head, text.length - room));
    const sentence = tail.search(/(?<=[.!?]["”’]?)\s/);
    return text.slice(0, head) + tail.slice(sentence < 0 ? 0 : sentence + 1);
  }

  clear() {
    this.parts = [];
    this.title = "";
    this.text.replaceChildren();
    this.row.replaceChildren();
    this.box.hidden = true;
  }
}

/** @type {Conversation | Tale} */
let talk = new Conversation();

/** Sends the text in the field, now or when the model is ready. */
async function submit() {
  if (stream) return;
  if (!remote) {
    waiting = !!prompt.value.trim();
    if (waiting) wake();
    send.textContent = waiting ? "Waiting" : "Send";
    announce("The text will be sent when the model is ready.");
    return;
  }
  const text = prompt.value.trim();
  prompt.value = "";
  await talk.say(text);
  talk.label(false);
}

function stop() {
  if (waiting) {
    waiting = false;
    talk.label(false);
  }
  stream?.cancel();
}

composer.onsubmit = (event) => {
  event.preventDefault();
  if (stream || waiting) stop();
  else submit();
};
prompt.onkeydown = (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (!stream && !waiting) submit();
};
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !(/** @type {HTMLDialogElement} */ (settings).open)) stop();
});

$("new").onclick = () => {
  if (stream) return;
  talk.clear();
  remote?.reset();
  calm();
  showContext(0);
  $("speed").textContent = "–";
  $("intro").hidden = false;
  busy(false);
  prompt.focus();
};

// Settings
const outputs = () =>
  form.querySelectorAll("output").forEach((output) => {
    output.value = /** @type {HTMLInputElement} */ ($(String(output.htmlFor))).value;
  });
const remember = () =>
  stored("settings" + location.pathname, JSON.stringify(Object.fromEntries(fields.map((f) => [f.name, f.value]))));
for (const [name, value] of Object.entries(JSON.parse(stored("settings" + location.pathname) ?? "{}"))) {
  const field = fields.find((f) => f.name === name);
  if (field) field.value = String(value);
}
outputs();
form.oninput = () => (outputs(), remember());
$("settings-open").onclick = () => /** @type {HTMLDialogElement} */ (settings).showModal();
settings.onclick = (event) => {
  if (event.target === settings) /** @type {HTMLDialogElement} */ (settings).close(); // a click outside of the dialog
};
$("settings-reset").onclick = () => (form.reset(), outputs(), stored("settings" + location.pathname, ""));

/** Sets the page up for a model; keeps the text if the model can continue it. @param {Language} language */
function begin({ chat = false, examples = [], maxTokens, ...language }) {
  context = language.context;
  const titled = examples.length > 0 && examples.every((e) => e.endsWith("\n"));
  const fits = chat ? talk instanceof Conversation : talk instanceof Tale && talk.titled === titled;
  if (!fits) {
    talk.clear();
    talk = chat ? new Conversation() : new Tale(titled);
    $("intro").hidden = false;
  }
  prompt.placeholder = $("prompt-label").textContent = chat ? "Write a message" : "";
  $("system-field").hidden = !chat;
  $("examples").hidden = !examples.length;
  const tries = examples.map((example) =>
    button(example.trim(), () => {
      prompt.value = example.trim();
      submit();
    }),
  );
  $("examples")
    .querySelector("ul")
    ?.replaceChildren(...tries.map((example) => make("li", {}, example)));
  $("context").style.setProperty("--wide", `${2 * String(context).length + 4}ch`); // fits every number
  /** @type {HTMLInputElement} */ ($("maxTokens")).max = String(maxTokens ?? context);
  if (matchMedia("(hover: hover)").matches) prompt.focus();
  showContext(0);
  busy(false);
}

const field = /** @type {HTMLInputElement} */ ($("key"));
$("unlock-cancel").onclick = () => unlock.close();

/** Asks the visitor for a key; returns "" if the dialog is cancelled. @param {string} note */
async function newKey(note) {
  $("unlock-note").textContent = note;
  field.value = unlock.returnValue = "";
  unlock.showModal();
  await new Promise((done) => unlock.addEventListener("close", done, { once: true }));
  return unlock.returnValue ? field.value.trim() : "";
}

/** Opens the server that this page comes from. @type {NonNullable<import("./ui.js").Page["attach"]>} */
async function attach({ server }, base, { signal }) {
  const storageKey = `ptegpu-key ${base.href}`; // stored for this tab and this address only
  /** @type {HTMLElement} */ ($("memory").parentElement).hidden = $("load-bar").hidden = true;
  let key = sessionStorage.getItem(storageKey) ?? "";
  let note = "The key stays in this tab and is forgotten when you close it.";
  for (;;) {
    if (server?.keys && !key) key = await newKey(note);
    if (server?.keys && !key) throw Object.assign(new Error("no key was entered"), { code: "BadKey" });
    try {
      const opened = await connect(base, { key, signal });
      if (key) sessionStorage.setItem(storageKey, key);
      choose(opened, server?.examples);
      return opened;
    } catch (error) {
      if (!key || /** @type {{code?: string}} */ (error).code !== "BadKey") throw error;
      note = "The server does not know this key. Check that it is complete.";
      key = "";
    }
  }
}

/** Selects one of the server's models. @param {Server} server @param {NonNullable<Site["server"]>["examples"]} [examples] */
function choose(server, examples) {
  const lastId = stored("model" + location.pathname);
  server.model = server.models.find(({ id }) => id === lastId) ?? server.model;
  models.replaceChildren(...server.models.map(({ id }) => make("option", { selected: id === server.model.id }, id)));
  models.hidden = server.models.length < 2;
  $("title").classList.toggle("quiet", !models.hidden);
  models.onchange = () => {
    stored("model" + location.pathname, models.value);
    choose(server, examples);
  };
  const { id } = server.model;
  document.title = $("title").textContent = $("foot-model").textContent = id;
  const prompts = examples?.models?.[id] ?? examples?.[server.language.chat ? "chat" : "text"];
  begin({ ...server.language, examples: prompts });
}

open({
  site({ language }) {
    if (language) begin(language);
  },
  attach,
  ready(opened) {
    remote = opened;
    if (opened.info.bytes) $("memory").textContent = bytes(opened.info.bytes.memory);
    if (waiting) submit();
    waiting = false;
  },
  failed() {
    waiting = false;
    talk.label(false);
  },
  lost(replacement) {
    remote = null;
    next = replacement;
  },
});
