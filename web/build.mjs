// Writes the files of a site into src/ptegpu/site/files: bundled and minified modules, pages, licences.
// `node web/build.mjs` writes, `node web/build.mjs --check` only compares. Equal sources produce equal bytes.
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
/** Modules of src/ that become separate files, because they are imported dynamically. */
const dynamicModules = new Set();
/** @type {Set<string>} */
let inCore = new Set();
let exported = new Set([""]);

/**
 * Bundles `entry` into the file `name`, without its dynamic imports and, for a part of the runner, without the core.
 * @param {string} name @param {string} entry path from web/ @param {boolean} isPart
 */
async function bundle(name, entry, isPart) {
  const plugin = {
    name: "apart",
    /** @param {import("esbuild").PluginBuild} build */
    setup(build) {
      build.onResolve({ filter: /^\.\.?\// }, ({ kind, path, resolveDir }) => {
        const full = resolve(resolveDir, path);
        if (kind === "dynamic-import") dynamicModules.add(full);
        else if (!isPart || kind === "entry-point" || !inCore.has(full)) return undefined;
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
    for (const imported of names.split(",").map((part) => part.split(" as ")[0].trim()))
      if (!exported.has(imported)) throw new Error(`${entry} imports ${imported}, which src/index.js does not export.`);
  return result.metafile;
}

/**
 * Returns a page; throws unless its Content-Security-Policy allows the script in it, and nothing from other hosts.
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
dynamicModules.add(join(web, "src", "worker.js"));
for (const path of dynamicModules) // bundling may add more
  if (!inCore.has(path)) await bundle(basename(path), "src/" + basename(path), true);
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
    throw new Error(`${name} exceeds its limit of ${limits.join(" / ")} bytes, minified / gzipped.`);
}

const existing = existsSync(folder) ? readdirSync(folder) : [];
if (process.argv.includes("--check")) {
  const current = (/** @type {string} */ name) =>
    existing.includes(name) && files.get(name)?.equals(readFileSync(join(folder, name)));
  const outdated = [...new Set([...files.keys(), ...existing])].filter((name) => !current(name));
  if (outdated.length) {
    console.error(`out of date in src/ptegpu/site/files: ${outdated.join(", ")}. Run: node web/build.mjs`);
    process.exit(1);
  }
} else {
  mkdirSync(folder, { recursive: true });
  for (const name of existing) if (!files.has(name)) rmSync(join(folder, name), { recursive: true });
  for (const [name, bytes] of files) writeFileSync(join(folder, name), bytes);
}
