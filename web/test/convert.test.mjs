import assert from "node:assert/strict";
import { test } from "node:test";
import { accept, cast, fromDevice } from "../src/convert.js";
import { InvalidInput, Tensor } from "../src/index.js";

const says = (message) => (error) => {
  assert.ok(error instanceof InvalidInput);
  assert.equal(error.message, message);
  return true;
};

test("a cast returns a copy in whole words; a value out of range is an error", () => {
  const bytes = Uint8Array.of(1, 2, 3, 4, 5);
  const copy = cast("uint8", bytes);
  bytes.fill(9);
  assert.deepEqual([...copy, copy.buffer.byteLength], [1, 2, 3, 4, 5, 8]);
  assert.deepEqual(cast("int64", [1, 2n, true, -3]), BigInt64Array.of(1n, 2n, 1n, -3n));
  assert.deepEqual([...cast("float32", [NaN, -Infinity, 0.5])], [NaN, -Infinity, 0.5]);
  assert.deepEqual([...cast("int32", BigInt64Array.of(-5n, 2n ** 31n - 1n))], [-5, 2 ** 31 - 1]);
  assert.deepEqual([...cast("bool", [true, false])], [1, 0]);
  const bad = [["int32", 2 ** 31], ["int64", 1.5], ["int64", 2n ** 63n], ["uint8", -1], ["int8", 0.5], ["float32", 1e300],
    ["float32", "x"], ["int64", "x"], ["float64", undefined], ["int16", NaN]];
  for (const [dtype, value] of bad) assert.throws(() => cast(dtype, [value]), says(`${value} does not fit ${dtype}`));
});

test("bfloat16 rounds to nearest, ties to even; other dtypes keep their values", () => {
  const bits = (...values) => new Float32Array(Uint32Array.from(values).buffer);
  const rounded = fromDevice("bfloat16", bits(0x3f808000, 0x3f818000, 0x3f808001, 0x3f807fff, 0x7f800000, 0xbf808001));
  assert.deepEqual(rounded, bits(0x3f800000, 0x3f820000, 0x3f810000, 0x3f800000, 0x7f800000, 0xbf810000));
  assert.ok(Number.isNaN(fromDevice("bfloat16", bits(0x7fffffff))[0]));
  assert.deepEqual(fromDevice("int16", Int32Array.of(70000, -1)), Int16Array.of(4464, -1)); // wraps, as in PyTorch
  assert.deepEqual(fromDevice("float64", Float32Array.of(0.5)), Float64Array.of(0.5));
});

const fixed = { name: "x", dtype: "float32", device: "float32", shape: [2, 2], dynamic: false };
const ids = { name: "ids", dtype: "int64", device: "int32", shape: [1, 4], dynamic: true };
const int = { name: "n", dtype: null, shape: [], dynamic: false };
const accepted = (spec, input, onGpu = true) => accept("forward", [input], [spec], onGpu)[0];

test("inputs may be tensors, typed arrays, flat and nested lists, numbers", () => {
  for (const input of [[[1, 2], [3, 4]], [1, 2, 3, 4], Float32Array.of(1, 2, 3, 4), new Tensor("float32", [2, 2], [1, 2, 3, 4])])
    assert.deepEqual(accepted(fixed, input), { dtype: "float32", shape: [2, 2], data: Float32Array.of(1, 2, 3, 4) });
  assert.deepEqual(accepted(ids, [[7, 8]]).data, Int32Array.of(7, 8));
  assert.deepEqual(accepted(ids, new Tensor("int64", [1, 1], Int32Array.of(7))).data, Int32Array.of(7));
  assert.deepEqual(accepted(ids, [[7, 8]], false).data, BigInt64Array.of(7n, 8n));
  assert.deepEqual(accepted({ ...fixed, shape: [] }, 3).data, Float32Array.of(3));
  assert.equal(accepted(int, 3n), 3);
  assert.equal(accepted({ ...int, value: null }, undefined), undefined);
  assert.equal(accepted({ ...int, value: 5 }, 5), 5);
  const resident = { gpuBuffer: {}, dtype: "int32", shape: [1, 1] };
  assert.equal(accepted(ids, resident), resident);
});

test("the error of an invalid input says what was expected and what was passed", () => {
  const float = "input 0 of forward must be float32 [2, 2]: ";
  const long = "input 0 of forward must be int64 [≤1, ≤4]: ";
  const cases = [
    [fixed, [1, 2, 3], float + "got shape [3]"],
    [fixed, [[1, 2], [3]], float + "its lists have different lengths"],
    [fixed, [[[1], [2]], [[3], [4]]], float + "got shape [2, 2, 1]"],
    [fixed, new Tensor("float64", [2, 2], new Float64Array(4)), float + "got float64"],
    [fixed, new Tensor("float32", [2, 2], [1]), float + "got 1 values"],
    [fixed, { gpuBuffer: {}, dtype: "int32", shape: [2, 2] }, float + "got int32"],
    [fixed, null, float + "got shape [1]"],
    [fixed, [1, 2, 3, "four"], float + "four does not fit float32"],
    [ids, new Tensor("int64", [1, 5], new BigInt64Array(5)), long + "got shape [1, 5]"],
    [ids, BigInt64Array.of(1n, 2n ** 31n, 3n, 4n), long + "2147483648 does not fit int32, which the GPU computes with"],
    [int, 1.5, "input 0 of forward must be an int: got 1.5"],
    [int, new Tensor("int32", [1], [1]), "input 0 of forward must be an int: got a tensor"],
    [{ ...int, value: 5 }, 6, "input 0 of forward must be 5, the value it was exported with: got 6"],
  ];
  for (const [spec, input, message] of cases) assert.throws(() => accepted(spec, input), says(message));
  assert.throws(() => accept("forward", [], [fixed], true), says("forward takes 1 inputs, not 0"));
});
