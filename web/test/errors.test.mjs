import assert from "node:assert/strict";
import { test } from "node:test";
import * as errors from "../src/errors.js";
import { revive } from "../src/packed.js";

test("name and code of an error are its class, also after a message between threads", () => {
  const kinds = Object.entries(errors);
  assert.equal(kinds.length, 12);
  for (const [name, kind] of kinds) {
    const error = new kind("what, where, what to do");
    assert.equal(error.code, name);
    assert.equal(String(error), `${name}: what, where, what to do`);
    assert.ok(error.stack.startsWith(String(error)));
    const revived = revive({ code: error.code, message: error.message });
    assert.equal(revived.constructor, kind);
    assert.equal(revived.message, error.message);
  }
  assert.ok(new errors.IndexOutOfRange("") instanceof errors.InvalidInput);
});

test("an error of another kind is revived as PtegpuError", () => {
  const error = revive({ code: "TypeError", message: "TypeError: x is undefined" });
  assert.equal(error.constructor, errors.PtegpuError);
  assert.equal(error.message, "TypeError: x is undefined");
});
