// The Markdown that language models write, as elements: paragraphs, headings, lists, quotes, code, emphasis, links.
import { make } from "./ui.js";

const INLINE = /`([^`]+)`|\*\*([^*]+)\*\*|\*([^*\s][^*]*)\*|\[([^\]]+)\]\((https?:\/\/[^\s)]+)\)/g;

/** @param {string} text @returns {(Node | string)[]} */
function inline(text) {
  const found = [];
  let at = 0;
  for (const match of text.matchAll(INLINE)) {
    const [all, code, strong, emphasis, label, href] = match;
    found.push(text.slice(at, match.index));
    found.push(
      code
        ? make("code", {}, code)
        : strong
          ? make("strong", {}, ...inline(strong))
          : emphasis
            ? make("em", {}, emphasis)
            : make("a", { href, rel: "noreferrer" }, label),
    );
    at = match.index + all.length;
  }
  return [...found, text.slice(at)];
}

/** The text cut at blank lines and around code. @param {string} text @returns {string[]} */
export function blocks(text) {
  /** @type {string[]} */
  const found = [];
  let code = false,
    open = false; // in a fence; in a block that goes on
  for (const line of text.split("\n")) {
    const fence = line.trimStart().startsWith("```");
    if (!code && !fence && !line.trim()) open = false;
    else if (open && (code || !fence)) found[found.length - 1] += `\n${line}`;
    else (found.push(line), (open = true));
    if (fence) ((code = !code), (open = code));
  }
  return found;
}

/** @param {string} block @returns {HTMLElement} */
function element(block) {
  const fence = block.match(/^\s*```.*(?:\n([^]*?))?(?:\n\s*```\s*)?$/);
  if (fence) return make("pre", { tabIndex: 0 }, make("code", {}, fence[1] ?? ""));
  const heading = block.match(/^#{1,6} +(.*)/);
  if (heading && !block.includes("\n")) return make("h3", {}, ...inline(heading[1]));
  if (/^> ?/.test(block)) return make("blockquote", {}, ...inline(block.replace(/^> ?/gm, "")));
  const lines = block.split("\n");
  if (/^\s*([-*+]|\d+[.)]) /.test(lines[0])) {
    const list = make("ul");
    for (const line of lines) {
      const item = line.match(/^(\s*)([-*+]|\d+[.)]) +(.*)/);
      if (!item) list.lastElementChild?.append(" ", ...inline(line.trim()));
      else {
        const [, indent, mark, rest] = item;
        const made = make("li", {}, make("i", { ariaHidden: "true" }, /\d/.test(mark) ? mark : "–"), ...inline(rest));
        made.style.marginLeft = `${Math.min(indent.length, 8) / 2}rem`;
        list.append(made);
      }
    }
    return list;
  }
  const paragraph = make("p");
  lines.forEach((line, k) => paragraph.append(...(k ? [make("br")] : []), ...inline(line)));
  return paragraph;
}

/** Makes `into` show the text; blocks that did not change stay. @param {HTMLElement} into @param {string} text */
export function show(into, text) {
  const wanted = blocks(text);
  const had = /** @type {{raw?: string}[]} */ (/** @type {unknown} */ ([...into.children]));
  wanted.forEach((raw, k) => {
    if (had[k]?.raw === raw) return;
    const made = Object.assign(element(raw), { raw });
    if (had[k]) into.children[k].replaceWith(made);
    else into.append(made);
  });
  while (into.children.length > wanted.length) into.lastElementChild?.remove();
}
