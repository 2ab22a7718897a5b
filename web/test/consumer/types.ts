// What the package's types allow, and what they do not.
import { IndexOutOfRange, InvalidInput, PtegpuError, Tensor, load, type Options, type Program } from "ptegpu";
import { loadLanguageModel, type Generation } from "ptegpu/llm";
import { connect, type Remote } from "ptegpu/worker";

export async function digits(url: string, gpu: GPU): Promise<number> {
  const onProgress: Options["onProgress"] = ({ stage, done, total }) => console.log(stage, done / total);
  const options: Options = { gpu, memory: 1e9, cache: null, onProgress };
  const program: Program = await load(url, options);
  const [scores] = await program.run([new Tensor("float32", [1, 8, 8], new Float32Array(64))], { method: "forward" });
  const { ok, error } = await program.selfcheck();
  program.dispose();
  return ok ? scores.data[0] : error;
}

export async function tale(url: string): Promise<Generation> {
  const model = await loadLanguageModel(url);
  const stream = model.stream("Once", { maxTokens: 8, temperature: 0.8, seed: 1 });
  for await (const piece of stream) console.log(piece.toUpperCase());
  return stream.generation;
}

export async function apart(url: string): Promise<Remote> {
  const remote = await connect(url, { onProgress: ({ done }) => done.toFixed() });
  for await (const piece of remote.stream("Once")) piece.trim();
  return remote;
}

export const known = (error: unknown): string => (error instanceof PtegpuError ? error.code : "");
export const kind: InvalidInput = new IndexOutOfRange("an index");

// @ts-expect-error there is no such option
load("site/", { colour: "red" });
// @ts-expect-error a seed is a number
tale("site/").then((generation) => generation.seed.trim());
// @ts-expect-error an address is needed
connect();
