// Writes what a site is made of into src/ptegpu/web/files: bundled and minified modules, pages, licences.
// `node web/build.mjs` writes, `node web/build.mjs --check` only compares. Equal sources give equal bytes.
import { build } from "esbuild";
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

const web = dirname(fileURLToPath(import.meta.url));
const folder = resolve(web, "../src/ptegpu/web/files");
const VENDORED = ["tokenizers", "jinja"];
const LIMITS = { "ptegpu.js": [12_000, 5_000] }; // bytes minified, gzipped

/** @type {Map<string, Buffer>} */
const files = new Map();

/**
 * Bundles `entry` to the flat file `name`. Modules that `apart` names go into other files: their imports stay.
 * @param {string} name @param {string} entry path from web/ @param {(path: string) => string | undefined} [apart]
 */
async function bundle(name, entry, apart = () => undefined) {
  const plugin = {
    name: "apart",
    /** @param {import("esbuild").PluginBuild} build */
    setup(build) {
      build.onResolve({ filter: /^\.\.?\// }, (args) => {
        const other = args.kind === "entry-point" ? undefined : apart(resolve(args.resolveDir, args.path));
        return other ? { path: "./" + other, external: true } : undefined;
      });
    },
  };
  const result = await build({
    absWorkingDir: web, entryPoints: ["./" + entry], outfile: name, plugins: [plugin], bundle: true, minify: true, write: false,
    metafile: true, format: "esm", target: "es2022", charset: "utf8", legalComments: "none", logLevel: "warning",
  });
  files.set(name, Buffer.from(result.outputFiles[0].contents));
  return result.metafile;
}

const source = (/** @type {string} */ path) => join(web, "src", path);
const core = await bundle("ptegpu.js", "src/index.js");
const inCore = new Set(Object.keys(core.inputs).map((path) => join(web, path)));
const exported = new Set(core.outputs["ptegpu.js"].exports);
/** @type {(path: string) => string | undefined} */
const apart = (path) => {
  if (inCore.has(path)) return "ptegpu.js";
  return ["llm.js", ...VENDORED.map((name) => name + ".js")].find((name) => path === source(name));
};
for (const name of ["llm.js", "worker.js"]) {
  await bundle(name, "src/" + name, apart);
  for (const [, names] of String(files.get(name)).matchAll(/import\{([^}]*)\}from"\.\/ptegpu\.js"/g))
    for (const one of names.split(",").map((part) => part.split(" as ")[0].trim()))
      if (!exported.has(one)) throw new Error(`src/${name} needs ${one} of the core, which src/index.js does not export.`);
}
for (const name of VENDORED) await bundle(name + ".js", `src/${name}.js`);
for (const file of readdirSync(join(web, "pages")).sort()) {
  if (file.endsWith(".html")) {
    files.set(file, readFileSync(join(web, "pages", file)));
    await bundle(file.replace(".html", ".js"), "pages/" + file.replace(".html", ".js"));
  } else if (file.endsWith(".css")) await bundle(file, "pages/" + file);
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
  if (limits?.some((limit, k) => sizes[k] > limit)) throw new Error(`${name} is larger than ${limits.join(" / ")} bytes.`);
}

const there = existsSync(folder) ? readdirSync(folder) : [];
if (process.argv.includes("--check")) {
  const stale = [...files].filter(([name, bytes]) => !there.includes(name) || !bytes.equals(readFileSync(join(folder, name))));
  const wrong = [...stale.map(([name]) => name), ...there.filter((name) => !files.has(name))];
  if (wrong.length) {
    console.error(`Not what web/ gives: ${wrong.join(", ")} in src/ptegpu/web/files. Run: node web/build.mjs`);
    process.exit(1);
  }
} else {
  mkdirSync(folder, { recursive: true });
  for (const name of there) if (!files.has(name)) rmSync(join(folder, name), { recursive: true });
  for (const [name, bytes] of files) writeFileSync(join(folder, name), bytes);
}
