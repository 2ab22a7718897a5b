// Writes what a site is made of into src/ptegpu/site/files: bundled and minified modules, pages, licences.
// `node web/build.mjs` writes, `node web/build.mjs --check` only compares. Equal sources give equal bytes.
import { build } from "esbuild";
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { basename, dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

const web = dirname(fileURLToPath(import.meta.url));
const folder = resolve(web, "../src/ptegpu/site/files");
const VENDORED = ["tokenizers", "jinja"];
const LIMITS = { "ptegpu.js": [12_000, 5_000] }; // bytes minified, gzipped

/** @type {Map<string, Buffer>} */
const files = new Map();
/** Modules of src/ that become files of their own, because something loads them when it needs them. */
const later = new Set();
/** @type {Set<string>} */
let inCore = new Set();
let exported = new Set([""]);

/**
 * Bundles `entry` to the flat file `name`, without what it loads later. A part of the runner leaves out the core, too.
 * @param {string} name @param {string} entry path from web/ @param {boolean} part
 */
async function bundle(name, entry, part) {
  const plugin = {
    name: "apart",
    /** @param {import("esbuild").PluginBuild} build */
    setup(build) {
      build.onResolve({ filter: /^\.\.?\// }, ({ kind, path, resolveDir }) => {
        const full = resolve(resolveDir, path);
        if (kind === "dynamic-import") later.add(full);
        else if (!part || kind === "entry-point" || !inCore.has(full)) return undefined;
        return { path: "./" + (inCore.has(full) ? "ptegpu.js" : basename(full)), external: true };
      });
    },
  };
  const result = await build({
    absWorkingDir: web, entryPoints: ["./" + entry], outfile: name, plugins: [plugin], bundle: true,
    minify: true, write: false, metafile: true, format: "esm", target: "es2022", charset: "utf8", legalComments: "none",
  });
  files.set(name, Buffer.from(result.outputFiles[0].contents));
  for (const [, names] of result.outputFiles[0].text.matchAll(/import\{([^}]*)\}from"\.\/ptegpu\.js"/g))
    for (const one of names.split(",").map((part) => part.split(" as ")[0].trim()))
      if (!exported.has(one)) throw new Error(`${entry} needs ${one} of the core, which src/index.js does not export.`);
  return result.metafile;
}

/**
 * A page; throws unless its Content-Security-Policy allows the script in it, and nothing from other hosts.
 * @param {string} file @param {Buffer} bytes
 */
function checked(file, bytes) {
  const text = String(bytes);
  const [, policy] = /<meta http-equiv="Content-Security-Policy" content="([^"]*)">/.exec(text) ?? [];
  if (!policy?.startsWith("default-src 'none'; ")) throw new Error(`${file} has no Content-Security-Policy.`);
  for (const [, script] of text.matchAll(/<script>(.*?)<\/script>/gs)) {
    const source = `'sha256-${createHash("sha256").update(script).digest("base64")}'`;
    if (!policy.includes(source)) throw new Error(`${file}: script-src of its Content-Security-Policy lacks ${source}.`);
  }
  return bytes;
}

const core = await bundle("ptegpu.js", "src/index.js", true);
inCore = new Set(Object.keys(core.inputs).map((path) => join(web, path)));
exported = new Set(core.outputs["ptegpu.js"].exports);
later.add(join(web, "src", "worker.js"));
for (const path of later) if (!inCore.has(path)) await bundle(basename(path), "src/" + basename(path), true); // grows
for (const file of readdirSync(join(web, "pages")).sort()) {
  if (file.endsWith(".css")) await bundle(file, "pages/" + file, false);
  if (!file.endsWith(".html")) continue;
  files.set(file, checked(file, readFileSync(join(web, "pages", file))));
  await bundle(file.replace(".html", ".js"), "pages/" + file.replace(".html", ".js"), false);
}
const licences = ["..", ...VENDORED.map((name) => "node_modules/@huggingface/" + name)].map((at) => {
  const { name, version } = JSON.parse(readFileSync(join(web, at === ".." ? "." : at, "package.json"), "utf8"));
  return `${name} ${version}\n\n${readFileSync(join(web, at, "LICENSE"), "utf8").trim()}\n`;
});
files.set("LICENSES.txt", Buffer.from(licences.join("\n" + "-".repeat(80) + "\n\n")));

for (const [name, bytes] of files) {
  const sizes = [bytes.length, gzipSync(bytes, { level: 9 }).length];
  console.log(`${name.padEnd(16)} ${String(sizes[0]).padStart(7)} ${String(sizes[1]).padStart(7)} gz`);
  const limits = LIMITS[/** @type {keyof LIMITS} */ (name)];
  if (limits?.some((limit, k) => sizes[k] > limit))
    throw new Error(`${name} is larger than ${limits.join(" / ")} bytes.`);
}

const there = existsSync(folder) ? readdirSync(folder) : [];
if (process.argv.includes("--check")) {
  const current = (/** @type {string} */ name) =>
    there.includes(name) && files.get(name)?.equals(readFileSync(join(folder, name)));
  const wrong = [...new Set([...files.keys(), ...there])].filter((name) => !current(name));
  if (wrong.length) {
    console.error(`Not what web/ gives: ${wrong.join(", ")} in src/ptegpu/site/files. Run: node web/build.mjs`);
    process.exit(1);
  }
} else {
  mkdirSync(folder, { recursive: true });
  for (const name of there) if (!files.has(name)) rmSync(join(folder, name), { recursive: true });
  for (const [name, bytes] of files) writeFileSync(join(folder, name), bytes);
}
