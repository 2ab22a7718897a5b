import assert from "node:assert/strict";
import { afterEach, test } from "node:test";
import { MessageChannel } from "node:worker_threads";
import { connect } from "../src/client.js";
import { BadBundle, DeviceLost, ExecutionError, InvalidInput, PtegpuError } from "../src/errors.js";
import { serve } from "../src/worker.js";

const tick = (ms = 0) => new Promise((resolve) => setTimeout(resolve, ms));
const until = async (holds) => {
  for (let k = 0; k < 1000 && !holds(); k++) await tick(5);
};
let workers = [];
afterEach(() => {
  for (const worker of workers) worker.terminate();
  workers = [];
});

/** A worker that serves what `opens` gives, over a real channel: messages are cloned, and come later. */
function fakeWorker(opens) {
  const { port1, port2 } = new MessageChannel();
  serve(port2, opens);
  const worker = new EventTarget();
  worker.sent = [];
  worker.received = [];
  worker.terminated = 0;
  worker.postMessage = (message, moved) => {
    worker.sent.push(message);
    port1.postMessage(message, moved);
  };
  worker.terminate = () => {
    worker.terminated++;
    port1.close();
  };
  port1.on("message", (data) => {
    worker.received.push(data);
    worker.dispatchEvent(new MessageEvent("message", { data }));
  });
  workers.push(worker);
  return worker;
}

/** What the worker needs of a program. */
class Program {
  methods = ["forward", "other"];
  variant = { name: "browser" };
  adapter = { vendor: "none", architecture: "", description: "", software: true };
  bytes = { weights: 10, memory: 20 };
  site = { title: "A site" };
  done = [];
  lost = new Promise((resolve) => (this.lose = resolve));
  signature(name) {
    return { inputs: [{ name: `x of ${name}`, dtype: "float32", shape: [2], dynamic: false }], outputs: [] };
  }
  async run(inputs, { method, signal }) {
    this.done.push(inputs);
    if (method === "forever") await new Promise((_, reject) => (signal.onabort = () => reject(signal.reason)));
    if (method === "wrong") throw new InvalidInput("input 0 of wrong must be float32 [2]: give two values");
    if (method === "bug") return undefined.x;
    const twice = inputs[0].data ?? inputs[0];
    return [{ dtype: "float32", shape: [2], data: twice.map((x) => 2 * x) }, 7];
  }
  async prepare({ method, onProgress }) {
    for (let done = 1; done <= 100; done++) onProgress({ stage: "kernels", done, total: 100, method });
  }
  reset(method) {
    this.done.push(["reset", method]);
  }
  async selfcheck() {
    return { ok: true, error: 1e-7, tolerance: 1e-3 };
  }
}

/** What the worker needs of a language model. It gives words, one each `ms`. */
class Model {
  language = { vocabulary: 9, context: 32 };
  program = new Program();
  given = 0;
  constructor(ms = 0) {
    this.ms = ms;
  }
  reset() {
    this.program.done.push("emptied");
  }
  stream(prompt, { maxTokens = 5, signal, fails, continues = { text: "", tokens: [], logprobs: [] } }) {
    if (prompt === "") throw new InvalidInput("the prompt is empty: give at least one token");
    const model = this;
    const generation = {
      promptTokens: [1, 2],
      seed: 3,
      text: continues.text,
      tokens: [...continues.tokens],
      logprobs: [...continues.logprobs],
      finishReason: null,
      timings: { decodeTokens: 0 },
    };
    const stream = {
      generation,
      cancel: () => (stream.cancelled = true),
      async *[Symbol.asyncIterator]() {
        for (let k = continues.tokens.length; k < maxTokens; k++) {
          await tick(model.ms);
          signal.throwIfAborted();
          if (k === fails) throw new ExecutionError("the GPU failed: no");
          if (stream.cancelled) {
            generation.finishReason = "cancelled";
            return;
          }
          model.given++;
          generation.tokens.push(k);
          generation.logprobs.push(-k);
          generation.timings.decodeTokens = k;
          generation.text += `w${k} `;
          yield `w${k} `;
        }
        generation.finishReason = "length";
      },
    };
    return stream;
  }
}
const withModel = async (ms) => {
  const model = new Model(ms);
  const worker = fakeWorker(async () => ({ model, program: model.program }));
  return { model, worker, remote: await connect("http://site/", { worker }) };
};
const withProgram = async () => {
  const program = new Program();
  const worker = fakeWorker(async () => ({ program }));
  return { program, worker, remote: await connect("http://site/", { worker }) };
};

test("connect loads with the options, tells of progress, and what there is", async () => {
  const program = new Program();
  const asked = [];
  const worker = fakeWorker(async (url, { onProgress, signal, ...options }) => {
    asked.push(url, options);
    for (let done = 0; done <= 1000; done++) onProgress({ stage: "weights", done, total: 1000 });
    assert.equal(signal.aborted, false);
    return { program };
  });
  const seen = [];
  const onProgress = (progress) => seen.push(progress);
  const remote = await connect("http://site/here", { worker, onProgress, memory: 5, cache: null });
  assert.deepEqual(asked, ["http://site/here", { memory: 5, cache: null }]);
  assert.deepEqual(seen[0], { stage: "weights", done: 0, total: 1000 });
  assert.deepEqual(seen.at(-1), { stage: "weights", done: 1000, total: 1000 });
  assert.ok(seen.length < 100, `${seen.length} messages`);
  assert.deepEqual(remote.site, { title: "A site" });
  assert.deepEqual(remote.info, {
    methods: ["forward", "other"],
    signatures: { forward: program.signature("forward"), other: program.signature("other") },
    variant: program.variant,
    adapter: program.adapter,
    bytes: program.bytes,
    language: undefined,
  });
});

test("run: typed arrays, tensors, lists; the caller keeps his, only the bytes in view travel", async () => {
  const { program, remote } = await withProgram();
  const whole = new Float32Array(1000).fill(3);
  const inputs = [
    whole.subarray(10, 12),
    { dtype: "int64", shape: [1], data: BigInt64Array.of(5n) },
    [[1, 2]],
    4,
    null,
  ];
  const [tensor, number] = await remote.run(inputs);
  assert.deepEqual(tensor, { dtype: "float32", shape: [2], data: Float32Array.of(6, 6) });
  assert.equal(number, 7);
  assert.deepEqual(program.done[0], [Float32Array.of(3, 3), inputs[1], [[1, 2]], 4, null]);
  assert.equal(program.done[0][0].buffer.byteLength, 8);
  assert.equal(whole.length, 1000);
  assert.equal(inputs[1].data.length, 1);
});

test("calls overlap; each gets its own answer", async () => {
  const { remote } = await withProgram();
  const given = [1, 2, 3, 4].map((k) => remote.run([Float32Array.of(k, k)]));
  assert.deepEqual(
    (await Promise.all(given)).map(([{ data }]) => data[0]),
    [2, 4, 6, 8],
  );
});

test("prepare, reset, selfcheck", async () => {
  const { program, remote } = await withProgram();
  const seen = [];
  await remote.prepare({ method: "forward", onProgress: (progress) => seen.push(progress) });
  assert.deepEqual(seen.at(-1), { stage: "kernels", done: 100, total: 100, method: "forward" });
  await remote.reset("other");
  assert.deepEqual(program.done, [["reset", "other"]]);
  assert.deepEqual(await remote.selfcheck(), { ok: true, error: 1e-7, tolerance: 1e-3 });
});

test("errors keep their class; what is none of ours says what it was", async () => {
  const { remote } = await withProgram();
  await assert.rejects(remote.run([[1]], { method: "wrong" }), (error) => {
    assert.ok(error instanceof InvalidInput);
    assert.equal(error.message, "input 0 of wrong must be float32 [2]: give two values");
    return true;
  });
  await assert.rejects(remote.run([[1]], { method: "bug" }), (error) => {
    assert.equal(error.constructor, PtegpuError);
    assert.match(error.message, /^TypeError: /);
    return true;
  });
  await assert.rejects(async () => {
    for await (const _ of remote.stream("hello"));
  }, /this site has no language model; use run\(\)/);
  await assert.rejects(remote.run([() => 1]), { name: "DataCloneError" });
  assert.equal((await remote.run([[1, 2]]))[1], 7); // and it goes on
});

test("an abort rejects with its reason, at once, and ends the call in the worker", async () => {
  const { remote, worker } = await withProgram();
  const reason = new Error("enough");
  await assert.rejects(remote.run([], { signal: AbortSignal.abort(reason) }), reason);
  const stop = new AbortController();
  const run = remote.run([[1]], { method: "forever", signal: stop.signal });
  await tick(20);
  stop.abort(reason);
  await assert.rejects(run, reason);
  const { id } = worker.sent.at(-1);
  assert.equal(worker.sent.at(-1).name, "abort");
  await until(() => worker.received.at(-1).id === id);
  assert.equal(worker.received.at(-1).id, id); // answered: nothing is left there
  assert.equal((await remote.run([[1, 2]], { signal: new AbortController().signal }))[1], 7);
});

test("connect: an abort and an error end the worker", async () => {
  const reason = new Error("enough");
  const stop = new AbortController();
  let inWorker;
  const slow = fakeWorker((url, { signal }) => new Promise(() => (inWorker = signal)));
  const connecting = connect("http://site/", { worker: slow, signal: stop.signal });
  await until(() => inWorker);
  assert.equal(inWorker.aborted, false);
  stop.abort(reason);
  await assert.rejects(connecting, reason);
  assert.equal(slow.terminated, 1);

  const bad = fakeWorker(async () => {
    throw new BadBundle("http://site/bundle.json: status 404. A file of the site is missing.");
  });
  await assert.rejects(connect("http://site/", { worker: bad }), BadBundle);
  assert.equal(bad.terminated, 1);
  const unused = fakeWorker();
  await assert.rejects(connect("http://site/", { worker: unused, signal: AbortSignal.abort(reason) }), reason);
  assert.equal(unused.sent.length, 0);
});

test("a worker that does not start is an error that says so", async () => {
  const worker = fakeWorker(() => new Promise(() => {}));
  const connecting = connect("http://site/", { worker });
  worker.dispatchEvent(new Event("error"));
  await assert.rejects(connecting, (error) => {
    assert.ok(error instanceof BadBundle);
    assert.equal(error.message, "the worker did not start: are worker.js and ptegpu.js there, next to each other?");
    return true;
  });
  assert.equal(worker.terminated, 1);
  await assert.rejects(connect("http://site/", { worker: "worker.js" }), (error) => {
    assert.ok(error instanceof BadBundle); // node has no Worker of the web
    assert.match(error.message, /^the worker cannot start \(.*\): serve worker\.js from the page's own origin$/);
    return true;
  });
});

test("a worker that fails later rejects what waits, and says so by lost", async () => {
  const { remote, worker } = await withProgram();
  const run = remote.run([], { method: "forever" });
  const event = new Event("error");
  event.message = "Uncaught Error: oh";
  worker.dispatchEvent(event);
  const says = { name: "ExecutionError", message: "the worker failed (Uncaught Error: oh): load again" };
  await assert.rejects(run, says);
  await assert.rejects(remote.run([]), says);
  assert.equal((await remote.lost).message, says.message);
});

test("lost resolves with a DeviceLost", async () => {
  const { program, remote } = await withProgram();
  program.lose(new DeviceLost("the GPU is gone (reset): load again"));
  const error = await remote.lost;
  assert.ok(error instanceof DeviceLost);
  assert.equal(error.message, "the GPU is gone (reset): load again");
});

test("a GPU that is lost while something runs rejects that, and what comes after, with why", async () => {
  const { program, remote, worker } = await withProgram();
  const run = remote.run([], { method: "forever" });
  program.lose(new DeviceLost("the GPU is gone (reset): load again"));
  await assert.rejects(run, DeviceLost);
  await assert.rejects(remote.run([[1, 2]]), DeviceLost);
  assert.ok((await remote.lost) instanceof DeviceLost);
  assert.equal(worker.terminated, 1);
});

test("stream: goes on where another one broke off", async () => {
  const { remote } = await withModel();
  const broken = remote.stream("hello", { maxTokens: 5, fails: 2 });
  await assert.rejects(async () => {
    for await (const _ of broken);
  });
  const stream = remote.stream("hello", { maxTokens: 5, continues: broken.generation });
  let text = "";
  for await (const piece of stream) text += piece;
  assert.equal(text, "w2 w3 w4 ");
  assert.equal(stream.generation.text, "w0 w1 w2 w3 w4 ");
  assert.deepEqual(stream.generation.tokens, [0, 1, 2, 3, 4]);
  assert.deepEqual(stream.generation.logprobs, [-0, -1, -2, -3, -4]);
});

test("dispose ends the worker once, rejects what waits, and is no loss", async () => {
  const { remote, worker } = await withProgram();
  const run = remote.run([], { method: "forever" });
  remote.lost.then(() => assert.fail("disposed is not lost"));
  remote.dispose();
  remote.dispose();
  const says = { name: "ExecutionError", message: "the model was disposed" };
  await assert.rejects(run, says);
  await assert.rejects(remote.run([]), says);
  assert.equal(worker.terminated, 1);
  await tick(20);
});

test("stream: pieces, and a generation as the model's own", async () => {
  const { model, remote } = await withModel();
  assert.deepEqual(remote.info.language, model.language);
  const stream = remote.stream([{ role: "user", content: "hello" }], { maxTokens: 4 });
  let text = "";
  for await (const piece of stream) {
    text += piece;
    assert.deepEqual(stream.generation.promptTokens, [1, 2]);
    assert.ok(stream.generation.text.startsWith(text));
  }
  assert.equal(text, "w0 w1 w2 w3 ");
  assert.deepEqual(stream.generation, {
    promptTokens: [1, 2],
    seed: 3,
    text,
    tokens: [0, 1, 2, 3],
    logprobs: [-0, -1, -2, -3],
    finishReason: "length",
    timings: { decodeTokens: 3 },
  });
  for await (const _ of stream) assert.fail("it is over");
  await remote.reset();
  assert.deepEqual(model.program.done, ["emptied"]);
});

test("stream: begins when it is iterated; without a piece there is still a generation", async () => {
  const { remote, worker } = await withModel();
  const before = worker.sent.length;
  const stream = remote.stream("hello", { maxTokens: 0 });
  await tick(10);
  assert.equal(worker.sent.length, before);
  for await (const _ of stream) assert.fail("nothing comes");
  assert.equal(stream.generation.finishReason, "length");
  assert.equal(stream.generation.seed, 3);
});

test("stream: a slow page gets larger pieces, and holds nothing up", async () => {
  const { model, remote, worker } = await withModel(1);
  const stream = remote.stream("hello", { maxTokens: 40 });
  const pieces = [];
  for await (const piece of stream) {
    pieces.push(piece);
    await until(() => model.given === 40); // nothing waits for this page
    assert.equal(model.given, 40);
  }
  assert.ok(pieces.length < 10, `${pieces.length} pieces`);
  assert.equal(pieces.join(""), stream.generation.text);
  assert.equal(stream.generation.tokens.length, 40);
  const waiting = worker.received.filter(({ news }) => news).length;
  assert.ok(waiting < 12, `${waiting} messages`);
});

test("stream: leaving the loop cancels, and waits until the model is free", async () => {
  const { model, remote } = await withModel(2);
  const stream = remote.stream("hello", { maxTokens: 1000 });
  for await (const _ of stream) if (stream.generation.tokens.length >= 3) break;
  const { given } = model;
  assert.ok(given < 1000);
  assert.equal(stream.generation.finishReason, "cancelled");
  await tick(20);
  assert.equal(model.given, given);
  for await (const _ of remote.stream("again", { maxTokens: 2 }));
  assert.equal(model.given, given + 2);
});

test("stream: cancel ends the loop, also before it begins", async () => {
  const { remote, worker } = await withModel(2);
  const stream = remote.stream("hello", { maxTokens: 1000 });
  let pieces = 0;
  for await (const _ of stream) if (++pieces === 2) stream.cancel();
  assert.ok(pieces < 1000);
  assert.equal(stream.generation.finishReason, "cancelled");
  const never = remote.stream("hello");
  never.cancel();
  const before = worker.sent.length;
  for await (const _ of never) assert.fail("nothing comes");
  assert.equal(never.generation.finishReason, "cancelled");
  assert.equal(worker.sent.length, before);
});

test("stream: an abort throws its reason", async () => {
  const { model, remote, worker } = await withModel(2);
  const reason = new Error("enough");
  const stop = new AbortController();
  const stream = remote.stream("hello", { maxTokens: 1000, signal: stop.signal });
  const after = [];
  await assert.rejects(async () => {
    for await (const piece of stream) {
      if (stop.signal.aborted) after.push(piece);
      if (stream.generation.tokens.length >= 3) stop.abort(reason);
    }
  }, reason);
  assert.deepEqual(after, []);
  assert.equal(stream.generation.finishReason, "cancelled");
  const { id } = worker.sent.at(-1);
  await until(() => worker.received.some((message) => message.id === id && message.error)); // it ended there, too
  const { given } = model;
  await tick(20);
  assert.equal(model.given, given);
});

test("stream: an error comes after the text before it; a bad prompt is one", async () => {
  const { remote } = await withModel();
  const stream = remote.stream("hello", { maxTokens: 9, fails: 2 });
  let text = "";
  await assert.rejects(
    async () => {
      for await (const piece of stream) text += piece;
    },
    { name: "ExecutionError", message: "the GPU failed: no" },
  );
  assert.equal(text, "w0 w1 ");
  assert.equal(stream.generation.finishReason, "cancelled");
  await assert.rejects(
    async () => {
      for await (const _ of remote.stream(""));
    },
    { name: "InvalidInput", message: "the prompt is empty: give at least one token" },
  );
});

test("stream: two at once", async () => {
  const { remote } = await withModel(1);
  const all = async (count) => {
    let text = "";
    for await (const piece of remote.stream("hello", { maxTokens: count })) text += piece;
    return text;
  };
  assert.deepEqual(await Promise.all([all(2), all(3)]), ["w0 w1 ", "w0 w1 w2 "]);
});
