// Rows against Python: every operator, with negative operands, division by 0, and values up to 2⁵³.
// `python -m tests.web.rows` writes rows.json.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { evaluate } from "../src/rows.js";

const { rows, sizes, items, values } = JSON.parse(readFileSync(new URL("rows.json", import.meta.url), "utf8"));

test("every row has Python's value", () => {
  const actual = evaluate(rows, sizes.map((size, k) => size.length ? { shape: size, data: items[k] } : size));
  assert.equal(actual.length, values.length);
  const wrong = rows.flatMap(([name, a, b], k) =>
    actual[k] === values[k] ? [] : [`${name}(${actual[a]}, ${actual[b]}) = ${actual[k]}, Python ${values[k]}`]);
  assert.deepEqual(wrong, []);
});
