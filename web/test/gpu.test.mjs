// The choice of a variant, and the errors if none fits. No GPU.
import assert from "node:assert/strict";
import { test } from "node:test";
import { MissingFeature, NoAdapter, NoWebGPU, OutOfMemory, folderOf, load } from "../src/index.js";
import { chooseVariant } from "../src/gpu.js";

const variant = (name, more = {}) => ({
  name, software: false, limits: { maxBufferSize: 100 }, features: [], info: {}, bytes: { buffers: 1000 }, ...more,
});
const adapter = (more = {}) => ({
  limits: { maxBufferSize: 200 }, features: new Set(["subgroups"]), info: { isFallbackAdapter: false, subgroupMinSize: 32 }, ...more,
});
const all = [
  variant("halves", { features: ["shader-f16"] }),
  variant("wide", { features: ["subgroups"], info: { subgroupMinSize: 64 } }),
  variant("software", { software: true }),
  variant("generic"),
];

test("the first variant that the adapter can run; a software adapter prefers software variants", async () => {
  const chosen = async (from, options = {}) => (await chooseVariant(from, all, options)).name;
  assert.equal(await chosen(adapter()), "generic");
  assert.equal(await chosen(adapter({ features: new Set(["shader-f16"]) })), "halves");
  assert.equal(await chosen(adapter({ info: { isFallbackAdapter: true } })), "software");
  assert.equal(await chosen(adapter(), { variant: "software" }), "software");
  assert.equal(await chosen(adapter(), { memory: 1000 }), "generic");
});

test("if no variant fits, the error says why", async () => {
  const refuses = (Kind, message, ...args) => assert.rejects(chooseVariant(...args), (error) => {
    assert.ok(error instanceof Kind);
    assert.equal(error.message, message);
    return true;
  });
  const lacks = "this GPU lacks what the model needs (halves: maxBufferSize of 100, shader-f16; wide: maxBufferSize of 100, " +
    "subgroupMinSize 64): use another browser or device";
  await refuses(MissingFeature, lacks, adapter({ limits: { maxBufferSize: 99 } }), all.slice(0, 2), {});
  await refuses(MissingFeature, "the model has no variant none", adapter(), all, { variant: "none" });
  const tooLarge = "the model needs 1 kB of GPU memory, but its limit is 1 kB: raise the option memory";
  await refuses(OutOfMemory, tooLarge, adapter(), all, { memory: 999 });
});

test("without WebGPU or an adapter, nothing is fetched", async () => {
  const fetch = () => assert.fail("nothing is fetched");
  await assert.rejects(load("http://host/site", { gpu: { requestAdapter: async () => null }, fetch }), NoAdapter);
  if (!globalThis.navigator?.gpu) await assert.rejects(load("http://host/site", { fetch }), NoWebGPU);
});

test("a folder is given by its URL or by that of a file in it", () => {
  for (const url of ["http://host/site", "http://host/site/", "http://host/site/bundle.json"])
    assert.equal(folderOf(url), "http://host/site/");
  assert.equal(folderOf("http://host"), "http://host/");
});
