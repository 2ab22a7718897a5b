// Checks of pages: accessible names, headings, contrast, sizes, focus, console messages.
//   node web/test/pages.check.mjs [FOLDER for screenshots]      checks all pages with fake models in all states
import { fileURLToPath } from "node:url";

const PHONE = { width: 360, height: 740 },
  DESK = { width: 1280, height: 800 };

/**
 * Returns the problems of an open page in its current state, such as idle, busy, or showing an error.
 * @param {import("playwright-core").Page} page
 * @returns {Promise<string[]>} one line for each problem
 */
export async function audit(page) {
  const before = page.viewportSize() ?? DESK;
  const problems = new Set();
  for (const size of [DESK, PHONE]) {
    await page.setViewportSize(size);
    for (const colorScheme of /** @type {const} */ (["light", "dark"])) {
      await page.emulateMedia({ colorScheme, reducedMotion: "reduce" });
      for (const problem of await page.evaluate(inspect, size.width === PHONE.width))
        problems.add(`${size.width} ${colorScheme}: ${problem}`);
    }
  }
  await page.emulateMedia({ colorScheme: null, reducedMotion: null });
  await page.setViewportSize(before);
  return [...problems];
}

/**
 * Reloads the page and audits it when it is ready. Also checks console errors, other hosts, and focus by the Tab key.
 * @param {import("playwright-core").Page} page
 * @returns {Promise<string[]>} one line for each problem
 */
export async function check(page) {
  /** @type {string[]} */
  const problems = [];
  const host = new URL(page.url()).host;
  const onConsole = (/** @type {import("playwright-core").ConsoleMessage} */ m) =>
    m.type() === "error" && problems.push(`console: ${m.text()}`);
  const onError = (/** @type {Error} */ error) => problems.push(`thrown: ${error.message}`);
  const onRequest = (/** @type {import("playwright-core").Request} */ r) =>
    /^http/.test(r.url()) && new URL(r.url()).host !== host && problems.push(`another host: ${r.url()}`);
  page.on("console", onConsole).on("pageerror", onError).on("request", onRequest);
  await page.reload();
  await page.waitForFunction(
    () => ["ready", "idle", "error"].includes(document.body.dataset.state ?? "") && document.body.ariaBusy !== "true",
    null,
    { timeout: 240_000 },
  );
  problems.push(...(await audit(page)), ...(await auditFocus(page)));
  page.off("console", onConsole).off("pageerror", onError).off("request", onRequest);
  return problems;
}

/**
 * Checks the Tab order: a link that skips to the content comes first, and every element shows its focus.
 * @param {import("playwright-core").Page} page
 */
async function auditFocus(page) {
  const problems = [];
  const skips = await page.evaluate(() => {
    const first = /** @type {HTMLAnchorElement | null} */ (
      document.querySelector("a[href], button, input, select, textarea")
    );
    first?.focus();
    return !!first?.hash && !!document.querySelector(first.hash);
  });
  if (!skips) problems.push("focus: the first link does not skip to the content");
  const visited = new Set();
  for (let k = 0; k < 40; k++) {
    await page.keyboard.press("Tab");
    const at = await page.evaluate(() => {
      const element = document.activeElement;
      if (!element || element === document.body) return null;
      let shown = false;
      for (let e = /** @type {Element | null} */ (element), up = 0; e && up < 3; e = e.parentElement, up++) {
        const style = getComputedStyle(e);
        shown ||=
          (style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2) ||
          (up > 0 && style.boxShadow !== "none");
      }
      return {
        name: `${element.localName}#${element.id}`,
        shown,
        key: [...document.querySelectorAll("*")].indexOf(element),
      };
    });
    if (!at || visited.has(at.key)) break;
    visited.add(at.key);
    if (!at.shown) problems.push(`focus: not visible on ${at.name}`);
  }
  if (visited.size < 3) problems.push(`focus: Tab reaches only ${visited.size} elements`);
  return problems;
}

/** Returns problems; runs in the page. @param {boolean} phone @returns {string[]} */
function inspect(phone) {
  /** @type {string[]} */
  const problems = [];
  const all = [...document.body.querySelectorAll("*")];
  const named = (/** @type {Element} */ e) =>
    e.localName +
    (e.id ? `#${e.id}` : e.className && typeof e.className === "string" ? `.${e.className}` : "") +
    ` “${(e.textContent ?? "").trim().slice(0, 24)}”`;
  const box = (/** @type {Element} */ e) => e.getBoundingClientRect();
  const visible = (/** @type {Element} */ e) =>
    e.checkVisibility({ visibilityProperty: true }) && box(e).width > 1 && box(e).height > 1;
  const shownText = (/** @type {string} */ ids) =>
    ids
      .split(" ")
      .map((id) => document.getElementById(id)?.textContent?.trim() ?? "")
      .join(" ")
      .trim();

  if (!document.documentElement.lang) problems.push("html has no lang");
  if (!document.title.trim() || /\{\{/.test(document.title)) problems.push("the page has no title");
  const ids = all.map((e) => e.id).filter(Boolean);
  for (const id of new Set(ids))
    if (ids.filter((other) => other === id).length > 1) problems.push(`the id ${id} occurs twice`);
  for (const e of all) {
    for (const name of ["aria-labelledby", "aria-describedby", "aria-controls"])
      for (const id of e.getAttribute(name)?.split(" ") ?? [])
        if (!document.getElementById(id)) problems.push(`${named(e)}: ${name} names ${id}, which does not exist`);
    if (e instanceof HTMLLabelElement && !e.control) problems.push(`${named(e)}: a label without a control`);
  }

  const headings = all.filter((e) => /^h[1-6]$/.test(e.localName) && e.checkVisibility());
  if (headings.filter((e) => e.localName === "h1").length !== 1) problems.push("the page must have exactly one h1");
  headings.reduce((level, e) => {
    const own = Number(e.localName[1]);
    if (own > level + 1) problems.push(`${named(e)}: follows a heading of level ${level}`);
    return own;
  }, 0);
  for (const tag of ["main", "header", "footer"])
    if (document.querySelectorAll(`body > ${tag}`).length !== 1) problems.push(`the page must have exactly one ${tag}`);
  if (!document.querySelector("[role=status], [aria-live]")) problems.push("no live region for screen readers");

  const NAMED =
    "button, a[href], input, select, textarea, [tabindex='0'], [role=progressbar], [role=img], img, dialog[open]";
  const controls = all.filter((e) => e.matches(NAMED) && e.checkVisibility());
  for (const e of controls) {
    const labels = [.../** @type {HTMLInputElement} */ (e.labels ?? [])].map((l) => l.textContent?.trim()).join(" ");
    const text = e.matches("button, a, pre") ? e.textContent?.trim() : "";
    if (!(
      e.getAttribute("aria-label")?.trim() ||
      shownText(e.getAttribute("aria-labelledby") ?? "") ||
      labels ||
      text ||
      e.getAttribute("alt")
    ))
      problems.push(`${named(e)}: has no name`);
  }
  for (const e of all)
    if (e.matches("canvas, svg, img") && e.checkVisibility() && !e.matches("[aria-hidden=true], [role=img], [alt]"))
      problems.push(`${named(e)}: neither hidden nor named`);

  // Contrast of colours with their background.
  const probe = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  if (!probe) return ["no canvas to measure with"];
  /** @type {(colour: string) => number[]} red, green, blue, opacity */
  const rgba = (colour) => {
    probe.clearRect(0, 0, 1, 1);
    probe.fillStyle = colour;
    probe.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = probe.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  /** @type {(top: number[], under: number[]) => number[]} */
  const over = ([r, g, b, a], under) => [r, g, b].map((c, k) => c * a + under[k] * (1 - a));
  const behind = (/** @type {Element | null} */ e) => {
    const layers = [];
    for (; e; e = e.parentElement) {
      const layer = rgba(getComputedStyle(e).backgroundColor);
      if (layer[3]) layers.push(layer);
      if (layer[3] === 1) break;
    }
    return layers.reverse().reduce((under, layer) => over(layer, under), [255, 255, 255]);
  };
  const light = (/** @type {number[]} */ rgb) => {
    const [r, g, b] = rgb.map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (/** @type {Element} */ e, /** @type {CSSStyleDeclaration} */ style, /** @type {string} */ what) => {
    const under = behind(e),
      [r, g, b, a] = rgba(style.color);
    let opacity = a;
    for (let up = /** @type {Element | null} */ (e); up; up = up.parentElement)
      opacity *= Number(getComputedStyle(up).opacity);
    const [x, y] = [light(over([r, g, b, opacity], under)), light(under)].sort((p, q) => q - p);
    const ratio = (x + 0.05) / (y + 0.05),
      size = parseFloat(style.fontSize);
    const needed = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700) ? 3 : 4.5;
    if (ratio < needed) problems.push(`${named(e)}: contrast of ${what} is ${ratio.toFixed(2)}, below ${needed}`);
  };
  for (const e of all) {
    if (!visible(e) || e.closest("button:disabled, .quiet, noscript")) continue; // disabled controls may be faint
    const style = getComputedStyle(e);
    if ([...e.childNodes].some((n) => n.nodeType === Node.TEXT_NODE && n.nodeValue?.trim())) contrast(e, style, "text");
    if (e.matches("input:not([type=range], [type=radio], [type=checkbox]), select, textarea"))
      contrast(e, style, "value");
    if (e.getAttribute("placeholder")) contrast(e, getComputedStyle(e, "::placeholder"), "placeholder");
  }

  // Width and targets
  const root = document.documentElement;
  if (root.scrollWidth > root.clientWidth) problems.push(`scrolls sideways: ${root.scrollWidth} in ${root.clientWidth}`);
  for (const e of all) {
    if (!visible(e) || e.closest(".quiet, .skip")) continue;
    let scrolls = false;
    for (let up = e.parentElement; up && up !== document.body; up = up.parentElement)
      scrolls ||= /auto|scroll|hidden/.test(getComputedStyle(up).overflowX) && up.localName !== "main";
    if (!scrolls && (box(e).right > innerWidth + 1 || box(e).left < -1))
      problems.push(`${named(e)}: sticks out of the page`);
  }
  if (phone)
    for (const e of all) {
      if (
        !e.matches("button, a[href], input, select, textarea, summary") ||
        !visible(e) ||
        e.matches(".skip, p a, .said a")
      )
        continue;
      const { width, height } = box(e.closest("label") ?? e);
      if (Math.min(width, height) < 31.9)
        problems.push(`${named(e)}: a target of ${Math.round(width)} × ${Math.round(height)}`);
    }
  return problems;
}

/** A word piece tokenizer in the style of BERT's. */
const TOKENIZER = {
  added_tokens: ["[PAD]", "[UNK]", "[CLS]", "[SEP]"].map((content, id) => ({ id, content, special: true })),
  normalizer: { type: "BertNormalizer", clean_text: true, handle_chinese_chars: true, strip_accents: null, lowercase: true },
  pre_tokenizer: { type: "BertPreTokenizer" },
  post_processor: { type: "BertProcessing", sep: ["[SEP]", 3], cls: ["[CLS]", 2] },
  decoder: { type: "WordPiece", prefix: "##", cleanup: true },
  model: {
    type: "WordPiece", unk_token: "[UNK]", continuing_subword_prefix: "##", max_input_chars_per_word: 100,
    vocab: Object.fromEntries(
      "[PAD] [UNK] [CLS] [SEP] who is she ? ange ##la merkel governs .".split(" ").map((token, id) => [token, id]),
    ),
  },
};

/**
 * Pages with fake models: a name, an address, the state to wait for, and actions.
 * @type {[name: string, address: string, state: string,
 *   act?: (page: import("playwright-core").Page) => Promise<void>][]}
 */
const STATES = [
  ["tale-loading", "chat.html?fake=tale&slow=20", "loading"],
  ["tale-stopped", "chat.html?fake=tale&slow=100", "stopped", (page) => page.click("#load-button")],
  ["tale-ready", "chat.html?fake=tale", "ready"],
  [
    "tale-busy",
    "chat.html?fake=tale&words=900",
    "ready",
    async (page) => {
      await page.click("#examples button");
      await grown(page, 300);
    },
  ],
  [
    "tale-done",
    "chat.html?fake=tale",
    "ready",
    async (page) => {
      await page.fill("#prompt", "The Wolf");
      await page.press("#prompt", "Enter");
      await grown(page, 20);
      await page.keyboard.press("Escape");
      await page.waitForSelector("#tale .row button");
      await page.fill("#prompt", "But the wolf had other plans.");
      await page.press("#prompt", "Enter");
      await grown(page, 200);
      await page.keyboard.press("Escape");
      await page.waitForSelector("#tale .row button");
    },
  ],
  ["tale-lost", "chat.html?fake=tale&lose=100", "error"],
  [
    "tale-sent-in-error",
    "chat.html?fake=tale&fail=OutOfMemory",
    "error",
    async (page) => {
      await page.fill("#prompt", "The Wolf");
      await page.press("#prompt", "Enter");
      await grown(page, 20);
    },
  ],
  ["chat-idle", "chat.html?fake=chat", "idle"],
  ["chat-settings", "chat.html?fake=chat", "idle", (page) => page.click("#settings-open")],
  [
    "chat-busy",
    "chat.html?fake=chat&auto",
    "ready",
    async (page) => {
      await page.click("#examples button");
      await page.waitForSelector(".said ul");
    },
  ],
  [
    "chat-done",
    "chat.html?fake=chat&auto",
    "ready",
    async (page) => {
      await page.click("#settings-open");
      await page.fill("#system", "Be brief.");
      await page.click("dialog .main");
      await page.waitForSelector("dialog:not([open])", { state: "attached" });
      await page.click("#examples button");
      await page.waitForSelector(".turn .row button");
    },
  ],
  ["digits-loading", "image.html?fake=digits&slow=20", "loading"],
  ["digits-ready", "image.html?fake=digits", "ready"],
  ["digits-drawn", "image.html?fake=digits", "ready", draw],
  ["photo-ready", "image.html?fake=photo", "ready"],
  [
    "photo-no-camera",
    "image.html?fake=photo",
    "ready",
    async (page) => {
      await page.check("[value=camera]", { force: true });
      await page.waitForSelector("#error:not([hidden])");
    },
  ],
  [
    "photo-no-picture",
    "image.html?fake=photo",
    "ready",
    async (page) => {
      await page.evaluate(() => {
        const dataTransfer = new DataTransfer();
        dataTransfer.items.add(new File(["words"], "notes.txt", { type: "text/plain" }));
        document.dispatchEvent(new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true }));
      });
      await page.waitForFunction(() => document.getElementById("error")?.textContent?.includes("cannot read notes.txt as a picture"));
    },
  ],
  ["task-loading", "task.html?fake=task&slow=20", "loading"],
  [
    "task-ready",
    "task.html?fake=task",
    "ready",
    async (page) => {
      await page.click("#run");
      await page.waitForFunction(() => document.getElementById("speed")?.textContent === "Add an input first.");
    },
  ],
  [
    "task-answered",
    "task.html?fake=task",
    "ready",
    async (page) => {
      /** @type {() => void} */
      let send = () => {};
      const sent = new Promise((done) => (send = () => done(undefined)));
      await page.route("**/tokenizer.json", async (route) => (await sent, route.fulfill({ json: TOKENIZER })));
      await page.fill("#text", "Who is she?");
      await page.fill("#passage", "Angela Merkel governs.");
      await page.click("#run");
      await page.waitForFunction(() => document.getElementById("speed")?.textContent === "Running …");
      send();
      await page.waitForFunction(() => document.querySelector("#answer .said")?.textContent?.startsWith("la Merkel "));
      for (const id of ["#text", "#passage"]) // both are aligned to the left
        await page.waitForFunction((id) => getComputedStyle(/** @type {Element} */ (document.querySelector(id))).textAlign === "start", id); // prettier-ignore
    },
  ],
  ["any-loading", "any.html?fake=any&slow=20", "loading"],
  ["any-ready", "any.html?fake=any", "ready", async (page) => void (await page.waitForSelector("#outputs h3"))],
  [
    "any-tables",
    "any.html?fake=any",
    "ready",
    async (page) => {
      await page.waitForSelector("#outputs h3");
      for (const radio of await page.$$("[value=Table]")) await radio.check({ force: true });
    },
  ],
  [
    "any-lines",
    "any.html?fake=any",
    "ready",
    async (page) => {
      await page.waitForSelector("#outputs h3");
      await page.check("[name=view-0][value=Line]", { force: true });
      await page.check("[name=view-1][value=Histogram]", { force: true });
    },
  ],
  ...["NoWebGPU", "NoAdapter", "MissingFeature", "OutOfMemory", "BadShard", "BadBundle", "TypeError"].map(
    (code) => /** @type {[string, string, string]} */ ([`error-${code}`, `any.html?fake=any&fail=${code}`, "error"]),
  ),
];

/** Waits until the text is longer than `length`. @param {import("playwright-core").Page} page @param {number} length */
const grown = (page, length) =>
  page.waitForFunction((n) => (document.querySelector("#tale .text")?.textContent ?? "").length > n, length);

/** Draws a seven. @param {import("playwright-core").Page} page */
export async function draw(page) {
  const { x, y, width, height } = /** @type {{x: number, y: number, width: number, height: number}} */ (
    await page.locator("#view").boundingBox()
  );
  await page.mouse.move(x + 0.3 * width, y + 0.25 * height);
  await page.mouse.down();
  for (const [u, v] of [
    [0.7, 0.25],
    [0.6, 0.5],
    [0.48, 0.82],
  ])
    await page.mouse.move(x + u * width, y + v * height, { steps: 5 });
  await page.mouse.up();
  await page.waitForFunction(() => document.querySelector("#best-label")?.textContent !== "");
}

/**
 * Returns the problems of all states, or of the states whose name `only` matches, by name.
 * @param {import("playwright-core").Browser} browser
 * @param {string} pages the address of web/pages
 * @param {{only?: RegExp, shots?: string}} [options] `shots` is a folder for screenshots
 */
export async function states(browser, pages, { only = /./, shots } = {}) {
  /** @type {Record<string, string[]>} */
  const problems = {};
  for (const [name, address, state, act] of STATES) {
    if (!only.test(name)) continue;
    const context = await browser.newContext({ viewport: DESK });
    const page = await context.newPage();
    page.setDefaultTimeout(60_000);
    const pageProblems = /** @type {string[]} */ ([]);
    page
      .on("console", (m) => m.type() === "error" && pageProblems.push(`console: ${m.text()}`))
      .on("pageerror", (e) => pageProblems.push(`thrown: ${e.message}`));
    await page.goto(pages + address);
    try {
      if (state !== "stopped") await page.waitForFunction((state) => document.body.dataset.state === state, state);
      if (state === "loading")
        await page.waitForFunction(() => /MB|kB/.test(document.getElementById("load-detail")?.textContent ?? ""));
      await act?.(page);
      pageProblems.push(...(await audit(page)));
      if (["tale-ready", "digits-ready", "any-ready"].includes(name)) pageProblems.push(...(await check(page)));
      if (shots) await shoot(page, `${shots}/${name}`);
    } catch (error) {
      pageProblems.push(String(error).split("\n")[0]);
    }
    problems[name] = pageProblems;
    await context.close();
  }
  return problems;
}

/** Takes screenshots, light and dark, of desktop and phone size. @param {import("playwright-core").Page} page @param {string} path */
export async function shoot(page, path) {
  for (const colorScheme of /** @type {const} */ (["light", "dark"]))
    for (const viewport of [DESK, { width: 390, height: 844 }]) {
      await page.emulateMedia({ colorScheme });
      await page.setViewportSize(viewport);
      await page.waitForTimeout(250); // transitions of colours
      await page.screenshot({ path: `${path}-${colorScheme}-${viewport.width}.png` });
    }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { chromium } = await import("playwright-core");
  const { serve } = await import("./browser/server.mjs");
  const [, , shots, only] = process.argv;
  const server = await serve({ "/": fileURLToPath(new URL("..", import.meta.url)) });
  const browser = await chromium.launch({
    executablePath: process.env.PTEGPU_CHROMIUM || "/usr/bin/chromium",
    args: ["--headless=new", "--no-sandbox"],
    ignoreDefaultArgs: ["--headless"],
    timeout: 30_000,
  });
  const problems = await states(browser, `${server.url}/pages/`, { shots, only: RegExp(only ?? "") });
  for (const [name, list] of Object.entries(problems))
    console.log(`${name}: ${list.length ? `\n  ${list.join("\n  ")}` : "good"}`);
  await browser.close();
  server.close();
  process.exitCode = Object.values(problems).some((list) => list.length) ? 1 : 0;
}
