// Rows against Python: every operator, below 0, by 0, up to 2⁵³. `python -m tests.web.rows` writes the file.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { evaluate } from "../src/rows.js";

const { rows, sizes, items, values } = JSON.parse(readFileSync(new URL("rows.json", import.meta.url), "utf8"));

test("each row has Python's value", () => {
  const found = evaluate(rows, sizes.map((size, k) => size.length ? { shape: size, data: items[k] } : size));
  assert.equal(found.length, values.length);
  const wrong = rows.flatMap(([name, a, b], k) =>
    found[k] === values[k] ? [] : [`${name}(${found[a]}, ${found[b]}) = ${found[k]}, Python ${values[k]}`]);
  assert.deepEqual(wrong, []);
});
