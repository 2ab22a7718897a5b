// Fake models for work on the pages: `?fake=tale|chat|digits|photo|any|task`, with `&fail=OutOfMemory` (an error while
// loading), `&lose=3000` (the GPU is lost after 3000 ms, each time), `&slow=5` (everything takes 5 times longer),
// `&words=900` (a text of 900 words), `&auto` (a small file, which loads without a click).
const query = new URLSearchParams(location.search);
const kind = query.get("fake") || "tale";
const slow = Number(query.get("slow") ?? 1);
/** @param {number} ms */
const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

const TALE = `There was once a King's son who had a fancy to travel about the world,
and took no one with him but a faithful servant.
One day he came to a great forest, and when evening overtook him he could find no shelter,
and knew not where to pass the night.
Then he saw a girl who was going towards a small house, and when he came nearer,
he saw that the maiden was young and beautiful.
He spoke to her, and said, "Dear child, can I and my servant find shelter for the night in the little
house?" `.replaceAll("\n", " ");
const ANSWER = `A GPU is a **throughput** machine: it hides the time that memory takes by having other work at hand.

1. Threads run in groups that share one program counter.
2. While one group waits for memory, another one runs.
3. Nothing is ever saved or restored: all registers stay where they are.

\`\`\`wgsl
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3u) {
  out[id.x] = a[id.x] * b[id.x];
}
\`\`\`

So *occupancy* matters more than the latency of a single load.
See the \`workgroup_size\` attribute for how many run together.`;

const tensor = (
  /** @type {string} */ name,
  /** @type {string} */ dtype,
  /** @type {number[]} */ shape,
  dynamic = false,
) => ({ name, dtype, shape, dynamic });
const LABELS = [
  "tabby cat",
  "tiger cat",
  "Egyptian cat",
  "lynx",
  "red fox",
  "kit fox",
  "sleeping bag",
  "laptop",
  "quilt",
  "window screen",
];

const sites = {
  tale: {
    title: "The tale-teller",
    description: "A small language model that continues a title with a tale in the manner of the Brothers Grimm.",
    model: { file: "tales.pte", bytes: 4294656 },
    page: "chat",
    language: {
      context: 256,
      chat: false,
      examples: ["The King's Daughter in the Forest\n", "The Wolf and the Tailor\n", "The Golden Key\n"],
    },
  },
  chat: {
    title: "Qwen2.5 0.5B Instruct",
    description: "A language model of half a billion parameters that answers in this page, on your own GPU.",
    model: { file: "qwen2.5-0.5b-4bit.pte", bytes: 398e6 },
    page: "chat",
    language: {
      context: 4096,
      chat: true,
      examples: [
        "How does a GPU hide the latency of memory?",
        "Write a haiku about shaders.",
        "Explain KV caches to a cook.",
      ],
    },
  },
  digits: {
    title: "Handwritten digits",
    description: "Draw a digit. A small network reads it as you draw.",
    model: { file: "digits.pte", bytes: 27e3 },
    page: "image",
    image: {
      shape: [1, 8, 8],
      channels: 1,
      height: 8,
      width: 8,
      scale: 1 / 255,
      mean: [0],
      std: [1],
      labels: [..."0123456789"],
      draw: true,
      softmax: false,
    },
  },
  photo: {
    title: "MobileNet v3",
    description: "Show it a picture: it recognizes a thousand kinds of things.",
    model: { file: "mobilenet_v3_small.pte", bytes: 10.2e6 },
    page: "image",
    image: {
      shape: [1, 3, 224, 224],
      channels: 3,
      height: 224,
      width: 224,
      scale: 1 / 255,
      mean: [0.485, 0.456, 0.406],
      std: [0.229, 0.224, 0.225],
      labels: LABELS.concat(Array.from({ length: 90 }, (_, k) => `thing ${k}`)),
      draw: false,
      softmax: true,
    },
  },
  any: {
    title: "An encoder",
    description: "A transformer encoder: enter tokens, see the vectors that it computes.",
    model: { file: "encoder.pte", bytes: 1.9e6 },
    page: "any",
  },
  task: {
    title: "Answers",
    description: "Ask it something about a text: it finds the answer in it.",
    model: { file: "answers.pte", bytes: 2.1e6 },
    page: "task",
    task: { task: "question-answering", result: "answer", context: true, text: { length: 512, batch: 8, types: true } },
  },
};
export const site = /** @type {any} */ ({
  method: "forward",
  check: { file: "fake.js", method: "", inputs: [] },
  ...sites[/** @type {keyof typeof sites} */ (kind)],
});

if (query.has("auto")) site.model.bytes = 4e7;
/** @type {HTMLElement} */ (document.getElementById("about")).textContent = site.description ?? "";

const signatures = {
  forward: {
    inputs: [
      tensor("tokens", "int64", [4, 64], true),
      tensor("mask", "bool", [4, 64], true),
      tensor("bias", "float32", [3, 4]),
      { name: "steps", dtype: null, shape: [], value: 3 },
    ],
    outputs: [
      tensor("scores", "float32", [4, 64], true),
      tensor("pooled", "float32", [4, 16]),
      tensor("classes", "int64", [4]),
      tensor("loss", "float32", []),
    ],
  },
  embed: { inputs: [tensor("x", "float32", [256])], outputs: [tensor("y", "float32", [256])] },
};

/** A stand-in for `connect` of ../src/client.js. @param {string} _url @param {any} options @returns {Promise<any>} */
export async function connect(_url, { signal, onProgress }) {
  const total = site.model.bytes;
  const aborted = new Promise((done) => signal.addEventListener("abort", done));
  const step = async () => (await Promise.race([sleep(60 * slow), aborted]), signal.throwIfAborted());
  const failure = query.get("fail");
  const raise = () => {
    if (!failure) return;
    query.delete("fail");
    const code = failure === "TypeError" ? {} : { code: failure };
    throw Object.assign(
      new Error(query.get("message") ?? "buffer of 398.1 MB: the GPU has 256.0 MB for this page"),
      { name: failure },
      code,
    );
  };
  onProgress({ stage: "plan", done: 0, total: 1 });
  await step();
  if (failure !== "BadShard" && failure !== "TypeError") raise();
  for (let k = 0; k <= 20; k++) {
    onProgress({ stage: "weights", done: (total * k) / 20, total, bytes: (total * k) / 20 });
    await step();
    if (k === 12) raise();
  }
  for (let k = 5; k <= 35; k += 5) (await step(), onProgress({ stage: "kernels", done: k, total: 35 }));
  return new Fake();
}

class Fake {
  site = site;
  info = {
    methods: Object.keys(signatures),
    signatures,
    variant: { name: "generic" },
    bytes: { weights: site.model.bytes, memory: site.model.bytes * 1.4 },
    adapter: { vendor: "nvidia", architecture: "ada", description: "", software: false },
  };
  /** @type {Error | null} */
  lossError = null;
  lost = new Promise(
    (lose) =>
      query.has("lose") &&
      setTimeout(
        () => lose((this.lossError = Object.assign(new Error("the GPU device was lost"), { code: "DeviceLost" }))),
        Number(query.get("lose")),
      ),
  );

  /** @param {any} prompt @param {any} options */
  stream(prompt, { maxTokens = 200, continues = { tokens: [] } }) {
    const words = (kind === "chat" ? ANSWER : TALE.repeat(20)).match(/\s*\S+|\s+/g) ?? [];
    const tokens = /** @type {number[]} */ ([...continues.tokens]);
    const throwIfLost = () => {
      if (this.lossError) throw this.lossError;
    };
    let cancelled = false;
    const generation = {
      promptTokens: Array(Math.ceil(JSON.stringify(prompt).length / 3.4)).fill(0),
      tokens,
      seed: 5,
      finishReason: "",
      timings: { decodeTokens: 0, decodeMs: 0 },
    };
    async function* pieces() {
      const started = performance.now();
      await sleep(250 * slow);
      for (const word of words.slice(tokens.length, Number(query.get("words") ?? maxTokens))) {
        throwIfLost();
        if (cancelled) break;
        tokens.push(1);
        yield word;
        await sleep(24 * slow);
      }
      generation.timings = { decodeTokens: tokens.length, decodeMs: performance.now() - started };
      generation.finishReason = cancelled ? "cancelled" : tokens.length >= maxTokens ? "length" : "stop";
    }
    return { generation, cancel: () => (cancelled = true), [Symbol.asyncIterator]: pieces };
  }

  /** @param {any[]} inputs @param {any} options */
  async run(inputs, { method } = {}) {
    await sleep(20 * slow);
    if (this.lossError) throw this.lossError;
    if (site.image) {
      const classes = site.image.labels.length;
      const pixels = inputs[0].data ?? inputs[0];
      const checksum = pixels.reduce(
        (/** @type {number} */ sum, /** @type {number} */ x, /** @type {number} */ k) => sum + x * (1 + (k % 7)),
        0,
      );
      const raw = Array.from({ length: classes }, (_, k) => Math.exp(3.2 * Math.sin(checksum * 0.7 + k * 1.9)));
      const sum = raw.reduce((a, b) => a + b);
      return [
        {
          dtype: "float32",
          shape: [1, classes],
          data: Float32Array.from(raw, (x) => (site.image.softmax ? Math.log(x) * 3 : x / sum)),
        },
      ];
    }
    if (site.task) {
      const [, t] = inputs[0].shape; // the answer is the second and third token of four
      const peak = (/** @type {number} */ at) => Float32Array.from({ length: t }, (_, k) => (k === at ? 9 : 0));
      return [t - 5, t - 4].map((at) => ({ dtype: "float32", shape: [1, t], data: peak(at) }));
    }
    if (method === "embed")
      return [
        {
          dtype: "float32",
          shape: [256],
          data: Float32Array.from({ length: 256 }, (_, k) => Math.sin(k / 12) + Math.sin(k / 3) / 3),
        },
      ];
    const [n, t] = inputs[0].shape ?? [4, 64];
    return [
      {
        dtype: "float32",
        shape: [n, t],
        data: Float32Array.from({ length: n * t }, (_, k) => Math.sin(k / 5) * Math.cos((k % t) / 9)),
      },
      {
        dtype: "float32",
        shape: [n, 16],
        data: Float32Array.from({ length: n * 16 }, (_, k) => Math.cos(k * 1.7) / 2),
      },
      { dtype: "int64", shape: [n], data: BigInt64Array.from({ length: n }, (_, k) => BigInt((k * 7) % 5)) },
      { dtype: "float32", shape: [], data: Float32Array.of(0.6931472) },
    ];
  }

  async selfcheck() {
    await sleep(400);
    return { ok: true, error: 3.1e-7 };
  }

  async prepare() {}
  async reset() {}
  async dispose() {}
}
