// The functions that the browser job runs inside a page. Arrays are passed as {dtype, shape, data}, data a list.

const core = (site) => import(new URL("ptegpu.js", site).href);
const llm = (site) => import(new URL("llm.js", site).href);

/** Returns an error as data. */
const described = (error) => ({
  code: error instanceof DOMException ? error.name : (error?.code ?? "?"),
  message: String(error?.message ?? error),
});

/** Returns the error that `work` throws, or null. */
const thrown = (work) => work().then(() => null, described);

const plain = (value) =>
  value?.data ? { dtype: value.dtype, shape: [...value.shape], data: Array.from(value.data, Number) } : value;

const toTensor = (Tensor, value) => (value?.data ? new Tensor(value.dtype, value.shape, value.data) : value);

/** Runs calls in order and returns the outputs of each. */
export async function runs(site, calls, options = {}) {
  const { load, Tensor } = await core(site);
  const program = await load(site, options);
  try {
    const outputs = [];
    for (const { method, inputs, reset } of calls) {
      if (reset) program.reset();
      outputs.push((await program.run(inputs.map((v) => toTensor(Tensor, v)), { method })).map(plain));
    }
    const { methods, variant, adapter, bytes } = program;
    const check = program.site.check ? await program.selfcheck() : null;
    return { outputs, methods, variant: variant.name, adapter, bytes, check };
  } finally {
    program.dispose();
  }
}

/** Loads, records the stages and runs once. After `cutAt` bytes of weights, the server breaks held connections. */
export async function visit(site, call, { cutAt } = {}) {
  const { load, Tensor } = await core(site);
  const stages = [];
  const onProgress = (progress) => {
    stages.push(progress);
    if (progress.stage === "weights" && progress.done === cutAt) fetch("/cut");
  };
  const program = await load(site, { onProgress });
  await program.prepare();
  const outputs = (await program.run(call.inputs.map((v) => toTensor(Tensor, v)), { method: call.method })).map(plain);
  program.dispose();
  const weights = stages.filter(({ stage }) => stage === "weights");
  return { outputs, last: weights.at(-1) ?? null, order: [...new Set(stages.map(({ stage }) => stage))] };
}

/** Starts to load without awaiting it. */
export async function begin(site) {
  const { load } = await core(site);
  globalThis.loading = thrown(() => load(site));
}

/** Returns all cache entries of this origin. */
async function entries() {
  const all = await Promise.all((await caches.keys()).map((name) => caches.open(name)));
  return (await Promise.all(all.map(async (cache) => (await cache.keys()).map((key) => ({ cache, key }))))).flat();
}

/** Returns the number of cache entries. */
export const kept = async () => (await entries()).length;

/** Changes a byte of each cache entry and returns their number. */
export async function spoil() {
  const all = await entries();
  for (const { cache, key } of all) {
    const response = await cache.match(key);
    const bytes = new Uint8Array(await response.arrayBuffer());
    bytes[bytes.length >> 1] ^= 1;
    await cache.put(key, new Response(bytes, { headers: response.headers }));
  }
  return all.length;
}

/** Makes one operation of the cache fail: "open", "match" or "put". */
export function breakCache(operation) {
  const refuse = async () => { throw new DOMException("no room", "QuotaExceededError"); };
  if (operation === "open") CacheStorage.prototype.open = refuse;
  if (operation === "match") Cache.prototype.match = refuse;
  if (operation === "put") Cache.prototype.put = refuse;
}

/** Generates for every request; returns everything that the test compares. */
export async function generations(site, requests) {
  const { loadLanguageModel } = await llm(site);
  const model = await loadLanguageModel(site);
  try {
    const results = [];
    for (const { prompt, options, reset } of requests) {
      if (reset) model.reset();
      const stream = model.stream(prompt, options);
      let text = "";
      for await (const piece of stream) text += piece;
      const { tokens, logprobs, finishReason, timings, promptTokens } = stream.generation;
      results.push({ text, tokens: [...tokens], logprobs: [...logprobs], finishReason, timings, promptTokens });
    }
    return { found: results, check: await model.program.selfcheck() };
  } finally {
    model.dispose();
  }
}

/** Causes every error and returns them by cause. */
export async function errors(sites, calls) {
  const { load, Tensor } = await core(sites.digits);
  const byCause = {};
  const opened = (site, options) => thrown(() => load(site, options));
  const { requestAdapter } = GPU.prototype;
  GPU.prototype.requestAdapter = async () => null;
  byCause.NoAdapter = await opened(sites.digits);
  GPU.prototype.requestAdapter = requestAdapter;
  byCause.MissingFeature = await opened(sites.halves);
  byCause.OutOfMemory = await opened(sites.digits, { memory: 1000 });
  byCause.UnsupportedProgram = await opened(sites.hosted);
  byCause.BadBundle = await opened(sites.nowhere);
  byCause["BadBundle, no JSON"] = await opened(sites.html);
  byCause["BadBundle, changed"] = await opened(sites.changed);
  byCause.BadShard = await opened(sites.corrupt, { cache: null });
  const stop = new AbortController();
  stop.abort();
  byCause.AbortError = await opened(sites.digits, { signal: stop.signal });

  const adapter = await navigator.gpu.requestAdapter();
  const device = await adapter.requestDevice();
  const lost = await load(sites.digits, { adapter, device });
  const inputs = (call) => call.inputs.map((v) => toTensor(Tensor, v));
  await lost.run(inputs(calls.digits));
  const running = thrown(() => lost.run(inputs(calls.digits)));
  device.destroy();
  byCause["DeviceLost, running"] = await running;
  byCause["DeviceLost, lost"] = described(await lost.lost);
  byCause.DeviceLost = await thrown(() => lost.run(inputs(calls.digits)));
  lost.dispose();

  const digits = await load(sites.digits);
  byCause.InvalidInput = await thrown(() => digits.run([]));
  byCause["InvalidInput, shape"] = await thrown(() => digits.run([new Tensor("float32", [3], [1, 2, 3])]));
  byCause["InvalidInput, method"] = await thrown(() => digits.run(inputs(calls.digits), { method: "backward" }));
  byCause["still runs"] = await thrown(() => digits.run(inputs(calls.digits)));
  digits.dispose();
  byCause.ExecutionError = await thrown(() => digits.run(inputs(calls.digits)));

  const encoder = await load(sites.encoder);
  const [ids, mask] = inputs(calls.encoder);
  const outside = new Tensor("int64", ids.shape, Array.from(ids.data, () => 50n));
  byCause.IndexOutOfRange = await thrown(() => encoder.run([outside, mask]));
  byCause["encoder still runs"] = await thrown(() => encoder.run([ids, mask]));
  encoder.dispose();
  return byCause;
}

/** Returns the error of a page without WebGPU. */
export const withoutGpu = async (site) => thrown(async () => (await core(site)).load(site));

/** Counts live buffers and devices from now on. */
function counted() {
  const alive = { buffers: 0, bytes: 0, devices: 0 };
  const { createBuffer, destroy: leave } = GPUDevice.prototype;
  const { destroy } = GPUBuffer.prototype;
  const { requestDevice } = GPUAdapter.prototype;
  const buffers = new Set();
  GPUAdapter.prototype.requestDevice = async function (...args) {
    alive.devices++;
    return requestDevice.apply(this, args);
  };
  GPUDevice.prototype.destroy = function () {
    alive.devices--;
    return leave.call(this);
  };
  GPUDevice.prototype.createBuffer = function (descriptor) {
    const buffer = createBuffer.call(this, descriptor);
    buffers.add(buffer);
    alive.buffers++;
    alive.bytes += buffer.size;
    return buffer;
  };
  GPUBuffer.prototype.destroy = function () {
    if (buffers.delete(this)) {
      alive.buffers--;
      alive.bytes -= this.size;
    }
    return destroy.call(this);
  };
  return alive;
}

/** Loads, runs and disposes repeatedly; returns what is alive afterwards. */
export async function rounds(site, call, count) {
  const { load, Tensor } = await core(site);
  globalThis.alive ??= counted();
  const left = [];
  for (let k = 0; k < count; k++) {
    const program = await load(site, { methods: [call.method] });
    await program.run(call.inputs.map((v) => toTensor(Tensor, v)), { method: call.method });
    program.dispose();
    left.push({ ...globalThis.alive });
  }
  return { left: left.at(-1), most: Math.max(...left.map(({ bytes }) => bytes)) };
}

/** Measures the page's frames during `work`: duration, frames per second, and the longest gap in ms. */
async function frames(work) {
  let going = true;
  const times = [];
  const tick = (now) => {
    times.push(now);
    if (going) requestAnimationFrame(tick);
  };
  requestAnimationFrame(tick);
  const begun = performance.now();
  const result = await work();
  const seconds = (performance.now() - begun) / 1000;
  going = false;
  const moments = [begun, ...times, begun + 1000 * seconds];
  const gaps = moments.slice(1).map((t, k) => t - moments[k]);
  return { result, milliseconds: 1000 * seconds, fps: times.length / seconds, longest: Math.max(...gaps) };
}

/** The worker: frames while it loads and generates, the same tokens, errors by class, cancelling. */
export async function worker(client, site, request, wrong) {
  const { connect } = await import(client);
  const url = new URL("worker.js", site).href;
  const stages = new Set();
  const loading = await frames(() => connect(site, { worker: url, onProgress: ({ stage }) => stages.add(stage) }));
  const remote = loading.result;
  const generating = await frames(async () => {
    const stream = remote.stream(request.prompt, request.options);
    let pieces = 0;
    for await (const _ of stream) pieces++;
    return { pieces, tokens: [...stream.generation.tokens] };
  });
  const cut = remote.stream(request.prompt, { ...request.options, maxTokens: 100 });
  let heard = 0;
  for await (const _ of cut) if (++heard === 2) break;
  const again = remote.stream(request.prompt, request.options);
  for await (const _ of again);
  const failed = await thrown(() => connect(wrong, { worker: url }));
  const refused = await thrown(() => remote.run([], { method: "backward" }));
  await remote.dispose();
  return {
    loading: { ...loading, result: undefined }, stages: [...stages], generating: { ...generating, result: undefined },
    ...generating.result, heard, again: [...again.generation.tokens], failed, refused, info: Object.keys(remote.info),
  };
}
