// The self-check: how results are compared with a site's reference.
import assert from "node:assert/strict";
import { test } from "node:test";
import { check } from "../src/check.js";
import { ExecutionError, Tensor } from "../src/index.js";

const floats = (/** @type {number[]} */ ...values) => new Tensor("float32", [values.length], new Float32Array(values));
const BYTES = new Float32Array([1, 2, 3, 4, -8]).buffer;
const at = (/** @type {number} */ k, /** @type {number} */ n) => ({ dtype: "float32", shape: [n], at: 4 * k, length: 4 * n });
const reference = {
  file: "check.bin", method: "forward", inputs: [at(0, 2), 7, null], outputs: [null, at(3, 2), 5], tolerance: 1e-3,
};

/** Returns a program that returns `outputs` and records its calls. @param {any[]} outputs @param {any} [site] */
function program(outputs, site = { check: reference }) {
  /** @type {any[]} */
  const calls = [];
  const fake = {
    site, calls, reset: (/** @type {string} */ name) => calls.push(name),
    run: async (/** @type {any} */ ...args) => (calls.push(args), outputs),
  };
  return /** @type {any} */ (fake);
}

/** @param {any[]} outputs */
const checked = (outputs) => check(program(outputs), "https://example.org/", async () => new Response(BYTES));

test("runs the inputs of the file, with states reset before and after", async () => {
  const checkedProgram = program([null, floats(4, -8), 5]);
  const get = async (/** @type {string} */ url) => (assert.equal(url, "https://example.org/check.bin"), new Response(BYTES));
  assert.deepEqual(await check(checkedProgram, "https://example.org/", get), { ok: true, error: 0, tolerance: 1e-3 });
  const [before, [inputs, options], after] = checkedProgram.calls;
  assert.deepEqual([before, options, after], ["forward", { method: "forward" }, "forward"]);
  assert.deepEqual(inputs, [floats(1, 2), 7, null]);
});

test("errors are relative to the largest value of an output; null outputs are not compared", async () => {
  const near = await checked([floats(99), floats(4, -8.004), 5]);
  assert.ok(near.ok && Math.abs(near.error - 0.0005) < 1e-6);
  const far = await checked([floats(99), floats(4, -8.08), 5]);
  assert.ok(!far.ok && Math.abs(far.error - 0.01) < 1e-6);
  assert.deepEqual((await checked([0, floats(4, NaN), 5])).error, Infinity);
  assert.deepEqual((await checked([0, floats(4), 5])).error, Infinity);
  assert.deepEqual((await checked([0, floats(4, -8), 6])).ok, false);
});

test("a site without a reference is refused", async () => {
  for (const site of [null, {}])
    await assert.rejects(check(program([], site), "", async () => new Response()), (error) => error instanceof ExecutionError);
});
