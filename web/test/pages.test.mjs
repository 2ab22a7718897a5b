// The modules of the pages that run without a browser.
import assert from "node:assert/strict";
import { test } from "node:test";
import { blocks } from "../pages/markdown.js";
import { answer, batch, fitted, located, planes, scores, spoken, tokens, wave } from "../pages/media.js";
import { array, count, read, write } from "../pages/npy.js";
import { short, stats } from "../pages/plots.js";
import { advice, bytes, duration } from "../pages/ui.js";

test("write returns the same .npy file as NumPy", async () => {
  const file = new Uint8Array(
    await write({ dtype: "float32", shape: [2, 3], data: Float32Array.of(0, 1, 2, 3, 4, 5) }).arrayBuffer(),
  );
  const head = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
  assert.equal(file.length, 128 + 24);
  assert.deepEqual([...file.slice(0, 10)], [0x93, 78, 85, 77, 80, 89, 1, 0, 118, 0]);
  assert.equal(new TextDecoder().decode(file.slice(10, 128)), head.padEnd(117) + "\n");
  assert.deepEqual([...new Float32Array(file.buffer.slice(128))], [0, 1, 2, 3, 4, 5]);
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
    test(`read returns the ${dtype}[${shape}] that was written`, async () => {
      const data = array(dtype, 2, (k) => values[k]);
      const tensor = read(await write({ dtype, shape, data }).arrayBuffer(), dtype, []);
      assert.deepEqual(tensor, { dtype, shape, data });
    });

test("a .npy file of another dtype is converted", async () => {
  const file = await write({ dtype: "int64", shape: [3], data: BigInt64Array.of(1n, 2n, -3n) }).arrayBuffer();
  assert.deepEqual(read(file, "float32", []), { dtype: "float32", shape: [3], data: Float32Array.of(1, 2, -3) });
});

test("other files hold the elements' bytes", () => {
  assert.deepEqual(read(Int32Array.of(1, 2).buffer, "int32", [2]).data, Int32Array.of(1, 2));
  assert.throws(() => read(new ArrayBuffer(7), "float32", [2]), {
    code: "InvalidInput",
    message: "The file has 7 bytes; float32[2] needs 8.",
  });
});

test("the error of an unsupported file says what to do", () => {
  const text =
    "\x93NUMPY\x01\x00\x3f\x00" + "{'descr': '<c8', 'fortran_order': False, 'shape': (2,), }".padEnd(62) + "\n";
  const file = Uint8Array.from(text, (c) => c.charCodeAt(0)).buffer;
  assert.throws(() => read(file, "float32", [2]), {
    code: "InvalidInput",
    message: "The .npy file has dtype <c8: save it as float32 in C order.",
  });
});

test("text is split into blocks; code keeps its blank lines, also while incomplete", () => {
  assert.deepEqual(blocks("one\ntwo\n\nthree"), ["one\ntwo", "three"]);
  assert.deepEqual(blocks("a\n```js\nx\n\ny\n```\nb"), ["a", "```js\nx\n\ny\n```", "b"]);
  assert.deepEqual(blocks("a\n\n```js\nx\n\n"), ["a", "```js\nx\n\n"]);
  assert.deepEqual(blocks(""), []);
});

test("numbers, sizes and times are formatted", () => {
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

test("a picture is drawn as the processor resizes and crops it", () => {
  const size = { width: 224, height: 224 };
  assert.deepEqual(fitted(640, 480, { ...size, resize: [256, 256] }), [256, 256]);
  assert.deepEqual(fitted(640, 480, { ...size, shortest: 240 }), [320, 240]);
  assert.deepEqual(fitted(480, 960, size), [224, 448]);
});

test("pixels are normalized in planes", () => {
  const facts = { width: 2, height: 1, channels: 3, mean: [0.5, 0, 0], std: [0.5, 1, 2], scale: 1 / 255 };
  const pixels = planes(Uint8ClampedArray.of(255, 0, 255, 9, 0, 255, 0, 9), facts);
  assert.deepEqual([...pixels], [1, -1, 0, 1, 0.5, 0]);
  const grey = planes(Uint8ClampedArray.of(100, 100, 100, 9, 0, 0, 0, 9), { ...facts, channels: 1, scale: 1 });
  assert.ok(Math.abs(grey[0] - 199) < 1e-3);
});

test("a sound is normalized to mean 0 and variance 1, and padded or cut", () => {
  const facts = { rate: 16000, most: 4, least: 3, normalize: true };
  assert.deepEqual([...wave(Float32Array.of(1, 3), facts)].map(Math.round), [-1, 1, 0]);
  const plain = { ...facts, normalize: false };
  assert.deepEqual([...wave(Float32Array.of(1, 2, 3, 4, 5), plain)], [1, 2, 3, 4]);
  assert.deepEqual([...wave(Float32Array.of(1, 2, 3, 4, 5), { ...plain, step: 2 })], [1, 2, 3]); // whole frames
});

test("texts are cut and padded to one length", () => {
  const encoder = {
    encode: (/** @type {string} */ text) => ({ ids: [...text].map(Number), token_type_ids: [...text].map(() => 1) }),
  };
  const facts = { length: 4, batch: 8, types: true, pad: 7 };
  const texts = ["123459", "12"].map((text) => tokens(encoder, text, null, facts));
  const [ids, mask, types] = batch(texts, facts);
  assert.deepEqual([ids.shape, [...ids.data].map(Number)], [[2, 4], [1, 2, 3, 9, 1, 2, 7, 7]]);
  assert.deepEqual([...mask.data].map(Number), [1, 1, 1, 1, 1, 1, 0, 0]);
  assert.deepEqual([...types.data].map(Number), [1, 1, 1, 1, 1, 1, 0, 0]);
  const [fixed, all] = batch(texts.slice(1), { length: 3, batch: 8, fixed: true, masked: false });
  assert.deepEqual([[...fixed.data].map(Number), [...all.data].map(Number)], [[1, 2, 0], [1, 1, 1]]);
});

test("outputs become scores, texts and answers", () => {
  assert.deepEqual(scores([0, 0], {}), [0.5, 0.5]);
  assert.deepEqual(scores([0, 0], { many: true }), [0.5, 0.5]);
  assert.deepEqual(scores([2.681], { many: true, regression: true }), [2.681]);
  const facts = { task: "speech-recognition", labels: ["<pad>", "|", "A", "B"], blank: 0 };
  const frames = [2, 2, 0, 2, 1, 1, 3, 0].flatMap((best) => [0, 1, 2, 3].map((k) => Number(k === best)));
  assert.equal(spoken(frames, 4, facts), "AA B");
  const best = answer([9, 0, 5, 0, 0], [0, 5, 0, 5, 9], 1, 4);
  assert.deepEqual([best.start, best.end], [2, 3]);
  assert.ok(best.score > 0.4);
});

test("tokens are located in their text", () => {
  const text = "Angela Merkel,  Éric\u2019s Ⅳ ☃ STRASSE";
  const pieces = ["ange", "##la", "merkel", ",", "eric", "’", "s", "iv", "[UNK]", "stra", "##sse"];
  const parts = located(text, pieces).map(([start, end]) => text.slice(start, end).trim());
  assert.deepEqual(parts, ["Ange", "la", "Merkel", ",", "Éric", "’", "s", "Ⅳ", "☃", "STRA", "SSE"]);
  assert.deepEqual(located("a b", ["Ġb", "x"].map((t) => t.replace("Ġ", " "))), [[2, 3], [3, 3]]); // prettier-ignore
  assert.deepEqual(located("", ["a"]), [[0, 0]]);
});

test("only the person who runs a site gets the advice to upload it again", () => {
  for (const code of ["BadShard", "BadBundle"]) {
    for (const host of ["localhost", "127.0.0.1", "[::1]"]) assert.match(advice(code, host), /upload the whole folder/i);
    assert.doesNotMatch(advice(code, "example.org"), /upload|folder/i);
    assert.match(advice(code, "example.org"), /tell the person who runs/);
  }
  assert.equal(advice("NoWebGPU", "example.org"), "");
});
