// The parts of the pages that need no page.
import assert from "node:assert/strict";
import { test } from "node:test";
import { blocks } from "../pages/markdown.js";
import { array, count, read, write } from "../pages/npy.js";
import { short, stats } from "../pages/plots.js";
import { bytes, duration } from "../pages/ui.js";

test("a .npy file is what NumPy writes", async () => {
  const made = new Uint8Array(
    await write({ dtype: "float32", shape: [2, 3], data: Float32Array.of(0, 1, 2, 3, 4, 5) }).arrayBuffer(),
  );
  const head = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
  assert.equal(made.length, 128 + 24);
  assert.deepEqual([...made.slice(0, 10)], [0x93, 78, 85, 77, 80, 89, 1, 0, 118, 0]);
  assert.equal(new TextDecoder().decode(made.slice(10, 128)), head.padEnd(117) + "\n");
  assert.deepEqual([...new Float32Array(made.buffer.slice(128))], [0, 1, 2, 3, 4, 5]);
});

for (const [dtype, values] of Object.entries({
  float32: [1.5, -2],
  float64: [1e300, 0],
  int64: [3, -4],
  int32: [5, 6],
  int16: [-7, 8],
  int8: [-1, 1],
  uint8: [0, 255],
  bool: [1, 0],
}))
  for (const shape of [[2], [1, 2], [2, 1, 1]])
    test(`${dtype} of [${shape}] is read as it was written`, async () => {
      const data = array(dtype, 2, (k) => values[k]);
      const found = read(await write({ dtype, shape, data }).arrayBuffer(), dtype, []);
      assert.deepEqual(found, { dtype, shape, data });
    });

test("a .npy file of another dtype is converted", async () => {
  const file = await write({ dtype: "int64", shape: [3], data: BigInt64Array.of(1n, 2n, -3n) }).arrayBuffer();
  assert.deepEqual(read(file, "float32", []), { dtype: "float32", shape: [3], data: Float32Array.of(1, 2, -3) });
});

test("other files are the elements, and have as many bytes", () => {
  assert.deepEqual(read(Int32Array.of(1, 2).buffer, "int32", [2]).data, Int32Array.of(1, 2));
  assert.throws(() => read(new ArrayBuffer(7), "float32", [2]), {
    code: "InvalidInput",
    message: "The file has 7 bytes; float32[2] has 8.",
  });
});

test("what cannot be read says what to do", () => {
  const text =
    "\x93NUMPY\x01\x00\x3f\x00" + "{'descr': '<c8', 'fortran_order': False, 'shape': (2,), }".padEnd(62) + "\n";
  const file = Uint8Array.from(text, (c) => c.charCodeAt(0)).buffer;
  assert.throws(() => read(file, "float32", [2]), {
    code: "InvalidInput",
    message: "The .npy file has <c8: save it as float32 in C order.",
  });
});

test("text is cut into blocks; code keeps its blank lines, also while it is written", () => {
  assert.deepEqual(blocks("one\ntwo\n\nthree"), ["one\ntwo", "three"]);
  assert.deepEqual(blocks("a\n```js\nx\n\ny\n```\nb"), ["a", "```js\nx\n\ny\n```", "b"]);
  assert.deepEqual(blocks("a\n\n```js\nx\n\n"), ["a", "```js\nx\n\n"]);
  assert.deepEqual(blocks(""), []);
});

test("numbers are short", () => {
  assert.deepEqual([0, -2, 1234567, 0.123456, 1e-5, -1.5].map(short), [
    "0",
    "−2",
    "1.23e+6",
    "0.1235",
    "1.00e−5",
    "−1.5",
  ]);
  assert.deepEqual([12, 4294656, 398e6, 1.2e9].map(bytes), ["12 B", "4.3 MB", "398 MB", "1.2 GB"]);
  assert.deepEqual([1.234, 250, 3249].map(duration), ["1.23 ms", "250 ms", "3.25 s"]);
  assert.deepEqual(stats([1, 3, NaN]), { low: 1, high: 3, mean: 2, odd: 1 });
  assert.equal(count([]), 1);
});
