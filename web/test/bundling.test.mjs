// The package in a bundler: `ptegpu/worker` builds without the optional packages.
import assert from "node:assert/strict";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const PEERS = /^@huggingface\/(jinja|tokenizers)$/;

test("builds with Vite's stand-ins for the optional packages", async () => {
  const stubbed = new Set();
  const absent = {
    name: "absent",
    setup(build) {
      build.onResolve({ filter: PEERS }, ({ path }) => ({ path, namespace: "absent" }));
      build.onLoad({ filter: PEERS, namespace: "absent" }, ({ path }) => {
        stubbed.add(path);
        return { contents: `export default {}; throw new Error("Could not resolve ${path}");` };
      });
    },
  };
  const entry = fileURLToPath(new URL("../src/worker.js", import.meta.url));
  const options = { bundle: true, write: false, format: "esm", logLevel: "silent", plugins: [absent] };
  const { errors, warnings } = await build({ entryPoints: [entry], ...options });
  assert.deepEqual([errors, warnings], [[], []]);
  assert.deepEqual([...stubbed].sort(), ["@huggingface/jinja", "@huggingface/tokenizers"]);
});
