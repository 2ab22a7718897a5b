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

/** Returns a fake worker that serves the result of `opens` over a real channel: messages are cloned and asynchronous. */
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

/** A fake of what the worker uses of a program. */
class Program {
  methods = ["forward", "other"];
  variant = { name: "browser" };
  adapter = { vendor: "none", architecture: "", description: "", software: true };
  bytes = { weights: 10, memory: 20 };
  site = { title: "A site" };
  calls = [];
  lost = new Promise((resolve) => (this.lose = resolve));
  signature(name) {
    return { inputs: [{ name: `x of ${name}`, dtype: "float32", shape: [2], dynamic: false }], outputs: [] };
  }
  async run(inputs, { method, signal }) {
    this.calls.push(inputs);
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
    this.calls.push(["reset", method]);
  }
  async selfcheck() {
    return { ok: true, error: 1e-7, tolerance: 1e-3 };
  }
}

/** A fake of what the worker uses of a language model. It generates a word every `ms`. */
class Model {
  language = { vocabulary: 9, context: 32 };
  program = new Program();
  generated = 0;
  constructor(ms = 0) {
    this.ms = ms;
  }
  reset() {
    this.program.calls.push("emptied");
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
          model.generated++;
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

test("connect loads with the options, reports progress and returns site and info", async () => {
  const program = new Program();
  const opened = [];
  const worker = fakeWorker(async (url, { onProgress, signal, ...options }) => {
    opened.push(url, options);
    for (let done = 0; done <= 1000; done++) onProgress({ stage: "weights", done, total: 1000 });
    assert.equal(signal.aborted, false);
    return { program };
  });
  const reports = [];
  const onProgress = (progress) => reports.push(progress);
  const remote = await connect("http://site/here", { worker, onProgress, memory: 5, cache: null });
  assert.deepEqual(opened, ["http://site/here", { memory: 5, cache: null }]);
  assert.deepEqual(reports[0], { stage: "weights", done: 0, total: 1000 });
  assert.deepEqual(reports.at(-1), { stage: "weights", done: 1000, total: 1000 });
  assert.ok(reports.length < 100, `${reports.length} messages`);
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

test("run takes typed arrays, tensors and lists; the caller keeps them, and only the bytes in view are sent", async () => {
  const { program, remote } = await withProgram();
  const memory = new Float32Array(1000).fill(3);
  const inputs = [
    memory.subarray(10, 12),
    { dtype: "int64", shape: [1], data: BigInt64Array.of(5n) },
    [[1, 2]],
    4,
    null,
  ];
  const [tensor, number] = await remote.run(inputs);
  assert.deepEqual(tensor, { dtype: "float32", shape: [2], data: Float32Array.of(6, 6) });
  assert.equal(number, 7);
  assert.deepEqual(program.calls[0], [Float32Array.of(3, 3), inputs[1], [[1, 2]], 4, null]);
  assert.equal(program.calls[0][0].buffer.byteLength, 8);
  assert.equal(memory.length, 1000);
  assert.equal(inputs[1].data.length, 1);
});

test("concurrent calls each get their own answer", async () => {
  const { remote } = await withProgram();
  const runs = [1, 2, 3, 4].map((k) => remote.run([Float32Array.of(k, k)]));
  assert.deepEqual(
    (await Promise.all(runs)).map(([{ data }]) => data[0]),
    [2, 4, 6, 8],
  );
});

test("prepare, reset, selfcheck", async () => {
  const { program, remote } = await withProgram();
  const reports = [];
  await remote.prepare({ method: "forward", onProgress: (progress) => reports.push(progress) });
  assert.deepEqual(reports.at(-1), { stage: "kernels", done: 100, total: 100, method: "forward" });
  await remote.reset("other");
  assert.deepEqual(program.calls, [["reset", "other"]]);
  assert.deepEqual(await remote.selfcheck(), { ok: true, error: 1e-7, tolerance: 1e-3 });
});

test("errors of ptegpu keep their class; others become a PtegpuError with the class in the message", async () => {
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
  }, /this site has no language model: use run\(\)/);
  await assert.rejects(remote.run([() => 1]), { name: "DataCloneError" });
  assert.equal((await remote.run([[1, 2]]))[1], 7); // the connection still works
});

test("an abort immediately rejects with its reason, and ends the call in the worker", async () => {
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
  assert.equal(worker.received.at(-1).id, id); // the call was answered, so it ended there
  assert.equal((await remote.run([[1, 2]], { signal: new AbortController().signal }))[1], 7);
});

test("an abort or an error of connect terminates the worker", async () => {
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

test("connect rejects with BadBundle if the worker does not start", async () => {
  const worker = fakeWorker(() => new Promise(() => {}));
  const connecting = connect("http://site/", { worker });
  worker.dispatchEvent(new Event("error"));
  await assert.rejects(connecting, (error) => {
    assert.ok(error instanceof BadBundle);
    assert.equal(error.message, "the worker did not start: check that worker.js and ptegpu.js are in the same folder");
    return true;
  });
  assert.equal(worker.terminated, 1);
  await assert.rejects(connect("http://site/", { worker: "worker.js" }), (error) => {
    assert.ok(error instanceof BadBundle); // node has no web Worker
    assert.match(error.message, /^cannot start the worker \(.*\): serve worker\.js from the page's own origin$/);
    return true;
  });
});

test("a worker that fails later rejects open calls and resolves lost", async () => {
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
  program.lose(new DeviceLost("the GPU was lost (reset): load again"));
  const error = await remote.lost;
  assert.ok(error instanceof DeviceLost);
  assert.equal(error.message, "the GPU was lost (reset): load again");
});

test("after the loss of the GPU, open and later calls reject with DeviceLost", async () => {
  const { program, remote, worker } = await withProgram();
  const run = remote.run([], { method: "forever" });
  program.lose(new DeviceLost("the GPU was lost (reset): load again"));
  await assert.rejects(run, DeviceLost);
  await assert.rejects(remote.run([[1, 2]]), DeviceLost);
  assert.ok((await remote.lost) instanceof DeviceLost);
  assert.equal(worker.terminated, 1);
});

test("stream: continues an interrupted generation", async () => {
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

test("dispose terminates the worker once and rejects open calls, but does not resolve lost", async () => {
  const { remote, worker } = await withProgram();
  const run = remote.run([], { method: "forever" });
  remote.lost.then(() => assert.fail("lost resolved"));
  remote.dispose();
  remote.dispose();
  const says = { name: "ExecutionError", message: "the model was disposed" };
  await assert.rejects(run, says);
  await assert.rejects(remote.run([]), says);
  assert.equal(worker.terminated, 1);
  await tick(20);
});

test("stream: yields pieces, and its generation equals the model's", async () => {
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
  for await (const _ of stream) assert.fail("a stream that ended yielded again");
  await remote.reset();
  assert.deepEqual(model.program.calls, ["emptied"]);
});

test("stream: starts with the first iteration; a generation without pieces is complete, too", async () => {
  const { remote, worker } = await withModel();
  const before = worker.sent.length;
  const stream = remote.stream("hello", { maxTokens: 0 });
  await tick(10);
  assert.equal(worker.sent.length, before);
  for await (const _ of stream) assert.fail("a piece without tokens");
  assert.equal(stream.generation.finishReason, "length");
  assert.equal(stream.generation.seed, 3);
});

test("stream: a slow page gets larger pieces and does not slow the model down", async () => {
  const { model, remote, worker } = await withModel(1);
  const stream = remote.stream("hello", { maxTokens: 40 });
  const pieces = [];
  for await (const piece of stream) {
    pieces.push(piece);
    await until(() => model.generated === 40); // the model does not wait for this page
    assert.equal(model.generated, 40);
  }
  assert.ok(pieces.length < 10, `${pieces.length} pieces`);
  assert.equal(pieces.join(""), stream.generation.text);
  assert.equal(stream.generation.tokens.length, 40);
  const messages = worker.received.filter(({ news }) => news).length;
  assert.ok(messages < 12, `${messages} messages`);
});

test("stream: leaving the loop cancels and waits until the model is free", async () => {
  const { model, remote } = await withModel(2);
  const stream = remote.stream("hello", { maxTokens: 1000 });
  for await (const _ of stream) if (stream.generation.tokens.length >= 3) break;
  const { generated } = model;
  assert.ok(generated < 1000);
  assert.equal(stream.generation.finishReason, "cancelled");
  await tick(20);
  assert.equal(model.generated, generated);
  for await (const _ of remote.stream("again", { maxTokens: 2 }));
  assert.equal(model.generated, generated + 2);
});

test("stream: cancel ends the loop, also before it starts", async () => {
  const { remote, worker } = await withModel(2);
  const stream = remote.stream("hello", { maxTokens: 1000 });
  let pieces = 0;
  for await (const _ of stream) if (++pieces === 2) stream.cancel();
  assert.ok(pieces < 1000);
  assert.equal(stream.generation.finishReason, "cancelled");
  const never = remote.stream("hello");
  never.cancel();
  const before = worker.sent.length;
  for await (const _ of never) assert.fail("a piece of a cancelled stream");
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
  await until(() => worker.received.some((message) => message.id === id && message.error)); // it ended in the worker
  const { generated } = model;
  await tick(20);
  assert.equal(model.generated, generated);
});

test("stream: an error is thrown after the text before it; an invalid prompt is an error", async () => {
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

test("stream: two run concurrently", async () => {
  const { remote } = await withModel(1);
  const all = async (count) => {
    let text = "";
    for await (const piece of remote.stream("hello", { maxTokens: count })) text += piece;
    return text;
  };
  assert.deepEqual(await Promise.all([all(2), all(3)]), ["w0 w1 ", "w0 w1 w2 "]);
});
