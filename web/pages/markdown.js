// Renders the Markdown of language models: paragraphs, headings, lists, quotes, code, emphasis, links.
import { make } from "./ui.js";

const INLINE = /`([^`]+)`|\*\*([^*]+)\*\*|\*([^*\s][^*]*)\*|\[([^\]]+)\]\((https?:\/\/[^\s)]+)\)/g;

/** @param {string} text @returns {(Node | string)[]} */
function inline(text) {
  const nodes = [];
  let at = 0;
  for (const match of text.matchAll(INLINE)) {
    const [all, code, strong, emphasis, label, href] = match;
    nodes.push(text.slice(at, match.index));
    nodes.push(
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
  return [...nodes, text.slice(at)];
}

/** Splits text at blank lines and around code. @param {string} text @returns {string[]} */
export function blocks(text) {
  /** @type {string[]} */
  const list = [];
  let code = false,
    open = false; // inside a fence; inside a block
  for (const line of text.split("\n")) {
    const fence = line.trimStart().startsWith("```");
    if (!code && !fence && !line.trim()) open = false;
    else if (open && (code || !fence)) list[list.length - 1] += `\n${line}`;
    else (list.push(line), (open = true));
    if (fence) ((code = !code), (open = code));
  }
  return list;
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
        const entry = make("li", {}, make("i", { ariaHidden: "true" }, /\d/.test(mark) ? mark : "–"), ...inline(rest));
        entry.style.marginLeft = `${Math.min(indent.length, 8) / 2}rem`;
        list.append(entry);
      }
    }
    return list;
  }
  const paragraph = make("p");
  lines.forEach((line, k) => paragraph.append(...(k ? [make("br")] : []), ...inline(line)));
  return paragraph;
}

/** Shows the text in `into`; elements of unchanged blocks stay. @param {HTMLElement} into @param {string} text */
export function show(into, text) {
  const newBlocks = blocks(text);
  const current = /** @type {{raw?: string}[]} */ (/** @type {unknown} */ ([...into.children]));
  newBlocks.forEach((raw, k) => {
    if (current[k]?.raw === raw) return;
    const replacement = Object.assign(element(raw), { raw });
    if (current[k]) into.children[k].replaceWith(replacement);
    else into.append(replacement);
  });
  while (into.children.length > newBlocks.length) into.lastElementChild?.remove();
}
