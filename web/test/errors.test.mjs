import assert from "node:assert/strict";
import { test } from "node:test";
import * as errors from "../src/errors.js";
import { revive } from "../src/packed.js";

test("an error says its class by name and code, also when it is revived", () => {
  const kinds = Object.entries(errors);
  assert.equal(kinds.length, 12);
  for (const [name, kind] of kinds) {
    const error = new kind("what, where, what to do");
    assert.equal(error.code, name);
    assert.equal(String(error), `${name}: what, where, what to do`);
    assert.ok(error.stack.startsWith(String(error)));
    const again = revive({ code: error.code, message: error.message });
    assert.equal(again.constructor, kind);
    assert.equal(again.message, error.message);
  }
  assert.ok(new errors.IndexOutOfRange("") instanceof errors.InvalidInput);
});

test("an error of another kind is revived as PtegpuError", () => {
  const error = revive({ code: "TypeError", message: "TypeError: x is undefined" });
  assert.equal(error.constructor, errors.PtegpuError);
  assert.equal(error.message, "TypeError: x is undefined");
});
