// A project that uses the package under node: SITE is the address of the digits, picture by picture on stdin.
import { readFileSync } from "node:fs";
import { InvalidInput, NoWebGPU, Tensor, load } from "ptegpu";
import { LanguageModel, loadLanguageModel } from "ptegpu/llm";
import { connect } from "ptegpu/worker";
import { create, globals } from "webgpu";

const [site] = process.argv.slice(2);
const missing = await load(site).catch((error) => error); // node has no WebGPU of its own
Object.assign(globalThis, globals);
const program = await load(site, { gpu: create([]) });
const pictures = JSON.parse(readFileSync(0, "utf8"));
const scores = [];
for (const picture of pictures) {
  const [output] = await program.run([new Tensor("float32", [1, 8, 8], picture)]);
  scores.push(Array.from(output.data));
}
const wrong = await program.run([1]).catch((error) => error);
const { adapter, methods } = program;
const check = await program.selfcheck();
program.dispose();
const exported = [load, loadLanguageModel, LanguageModel, connect].map((value) => typeof value);
const errors = [missing instanceof NoWebGPU, wrong instanceof InvalidInput];
console.log(JSON.stringify({ scores, adapter, methods, check, exported, errors }));
process.exit(0); // Dawn keeps node alive
