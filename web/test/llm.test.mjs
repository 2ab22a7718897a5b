// Language models without a GPU: settings, tokens, texts and templates equal Python's (llm.json, written by
// tests/web/llm_fixture.py); generation and the cache run on a fake program.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import * as jinja from "../src/jinja.js";
import { LanguageModel, loadLanguageModel } from "../src/llm.js";
import { Sampling } from "../src/sampling.js";
import { ChatTemplate, strftime } from "../src/template.js";
import { Detokenizer, StopStrings, Tokenizer } from "../src/text.js";

const read = (path) => readFileSync(new URL(path, import.meta.url), "utf8");
const python = JSON.parse(read("llm.json"));
const json = (name) => JSON.parse(demo(name));
const demo = (name) => read("../../src/ptegpu/demo/" + name);

const camelCase = (settings) =>
  Object.fromEntries(Object.entries(settings).map(([k, v]) => [k.replace(/_(.)/g, (_, c) => c.toUpperCase()), v]));
const refuses = (work, message) => assert.throws(work, { name: "InvalidInput", message });

test("settings become the same words as in Python", () => {
  for (const { given: settings, how: flags, words } of python.settings) {
    const sampling = new Sampling({ seed: 7, ...camelCase(settings) });
    assert.equal(sampling.flags, flags);
    assert.deepEqual([0, 300].map((step) => [...sampling.words(step)]), words, JSON.stringify(settings));
  }
});

test("invalid settings are refused", () => {
  refuses(() => new Sampling({ temperature: -1 }), "temperature must be at least 0, not -1");
  refuses(() => new Sampling({ temperature: NaN }), "temperature must be at least 0, not NaN");
  refuses(() => new Sampling({ topK: 1.5 }), "topK must be an integer of at least 0, not 1.5");
  refuses(() => new Sampling({ topP: 0 }), "topP must be above 0 and at most 1, not 0");
  refuses(() => new Sampling({ minP: 2 }), "minP must be at least 0 and at most 1, not 2");
  refuses(() => new Sampling({ repeatPenalty: 0 }), "repeatPenalty must be above 0, not 0");
  refuses(() => new Sampling({ seed: 2 ** 32 }), "seed must be an integer from 0 to 4294967295, not 4294967296");
  refuses(() => new Sampling({ temperature: "1" }), "temperature must be at least 0, not 1");
  const { seed } = new Sampling();
  assert.ok(Number.isInteger(seed) && seed !== new Sampling().seed);
});

const tales = await Tokenizer.open(json("tales.tokenizer.json"), json("tales.tokenizer_config.json"));

test("the demo's tokens are Python's", () => {
  const lines = demo("tales.heldout.txt").split("\n");
  python.tales.lines.forEach((ids, k) => assert.deepEqual(tales.encode(lines[k]), ids));
  for (const [text, ids] of python.tales.odd) assert.deepEqual(tales.encode(text), ids, text);
  assert.equal(tales.eos, python.tales.eos);
  assert.ok(python.tales.lines.flat().length > 4000);
  for (const line of lines) assert.equal(tales.decode(tales.encode(line)), line.replace(/<\|\w+\|>/g, ""));
  assert.equal(tales.decode([]), "");
  assert.equal(tales.decode([99999]), "");
});

test("the detokenizer returns complete characters at the same tokens as Python's", async () => {
  for (const [name, { json, texts }] of Object.entries(python.tokenizers)) {
    const tokenizer = await Tokenizer.open(json);
    for (const { text, tokens, pieces, cut } of texts) {
      assert.deepEqual(tokenizer.encode(text), tokens);
      const after = new Detokenizer(tokenizer, tokenizer.encode("Hello"));
      assert.deepEqual(tokens.map((t) => after.push(t)), pieces);
      const unprompted = new Detokenizer(tokenizer);
      const actual = [...tokens.slice(0, -1).map((t) => unprompted.push(t)), unprompted.finish()];
      // Python's tokenizer writes one U+FFFD for each byte of an incomplete character, this library one for all.
      const normalized = (pieces) => (name === "byte-fallback" ? pieces.join("").replace(/\ufffd+$/, "\ufffd") : pieces);
      assert.deepEqual(normalized(actual), normalized(cut));
    }
  }
});

test("special tokens come from tokenizer_config.json", async () => {
  const { json } = python.tokenizers["byte-level"];
  const config = { bos_token: { content: "<s>" }, eos_token: "</s>", pad_token: null, add_bos_token: true };
  const tokenizer = await Tokenizer.open(json, config);
  assert.deepEqual([tokenizer.bos, tokenizer.eos], [0, 1]);
  assert.equal(tokenizer.encode("fox")[0], 0);
  assert.deepEqual(tokenizer.encode(""), [0]);
  assert.equal(tokenizer.decode([...tokenizer.encode("fox"), 1]), "fox");
  assert.notEqual((await Tokenizer.open(json, { bos_token: "<s>" })).encode("fox")[0], 0);
  await assert.rejects(Tokenizer.open({}), { name: "InvalidInput" });
});

test("stop strings end the text however it is cut into pieces", () => {
  for (const { stops, given: pieces, shown, stopped } of python.stops) {
    const filter = new StopStrings(stops);
    const passed = pieces.map((piece) => filter.push(piece));
    assert.deepEqual([...passed, filter.finish()], shown, JSON.stringify([stops, pieces]));
    assert.equal(filter.stopped, stopped);
  }
});

/** Returns a conversation's text, or `{error}`, as `rendered` in the fixture. */
function rendered(source, messages, addGenerationPrompt = true) {
  try {
    return new ChatTemplate(source, python.special, jinja).render(messages, { addGenerationPrompt });
  } catch (error) {
    assert.equal(error.name, "InvalidInput");
    return { error: error.message };
  }
}

function assertSame(actual, expected, label) {
  // The libraries' own messages differ.
  const foreign = /: (list object has no element|'?[\w.]+'? is undefined).*|(?<=invalid:).*/;
  const own = (result) => result.error?.replace(foreign, "") ?? result;
  assert.deepEqual(own(actual), own(expected), label);
  assert.equal(typeof actual, typeof expected, label);
}

test("templates in the style of real models render as in Jinja2", () => {
  for (const [name, conversations] of Object.entries(python.templates)) {
    const source = read(`templates/${name}.jinja`);
    conversations.forEach((texts, k) =>
      texts.forEach((text, p) => assertSame(rendered(source, python.conversations[k], !p), text, `${name} ${k} ${p}`)),
    );
  }
  for (const [name, text] of Object.entries(python.parts))
    assertSame(rendered(read(`templates/${name}.jinja`), python.messages.parts), text, name);
  for (const [source, text] of python.snippets) assertSame(rendered(source, python.messages.snippets), text, source);
  for (const [source, error] of python.refused) assertSame(rendered(source, python.messages.refused), error, source);
});

test("a chat template comes from the config, a list or a file", async () => {
  const { json } = python.tokenizers["byte-level"];
  const messages = [{ role: "user", content: "fox" }];
  const template = "{{ bos_token }}{{ messages[0].content }}";
  const named = [{ name: "tools", template: "no" }, { name: "default", template }];
  const config = { bos_token: "<s>", chat_template: named, add_bos_token: true };
  const tokenizer = await Tokenizer.open(json, config);
  assert.deepEqual(tokenizer.encodeChat(messages), [0, ...tokenizer.encode("fox").slice(1)]);
  assert.deepEqual((await Tokenizer.open(json, config, "fox")).encodeChat([]), tokenizer.encode("fox").slice(1));
  const message = "this model cannot chat, because it has no chat template: pass a text to continue";
  refuses(() => tales.encodeChat(messages), message);
  refuses(() => new ChatTemplate({ a: 1 }, {}, jinja), "the chat template is neither a text nor a list of named texts");
});

test("a template that exceeds the limits is refused", () => {
  const long = "{% for a in range(2000) %}{% for b in range(2000) %}{{ a }}{% endfor %}{% endfor %}";
  const wide = "{% set n = namespace(x='abcdefgh') %}{% for a in range(40) %}{% set n.x = n.x ~ n.x %}{% endfor %}";
  const refused = "the chat template refuses this conversation: it ";
  for (const source of [long, "{% for a in range(1000000000) %}a{% endfor %}"])
    assert.deepEqual(rendered(source, []), { error: `${refused}takes too long` });
  assert.deepEqual(rendered(wide, []), { error: `${refused}makes a text that is too long` });
});

test("dates are formatted as in Python", () => {
  const date = new Date(2024, 1, 9, 13, 5, 7);
  assert.equal(strftime(date, "%d %b %Y|%B %-d, %y|%A %a|%H:%M:%S|%I %p|%j|%F|%T|%%|%q"),
    "09 Feb 2024|February 9, 24|Friday Fri|13:05:07|01 PM|040|2024-02-09|13:05:07|%|%q");
});

// A fake program. The next token is a weighted sum of the tokens in its cache, the seed and the step. It records its calls.
const VOCABULARY = 50, CONTEXT = 40;

class Fake {
  calls = [];
  live = 0; // results not yet awaited or discarded
  maxLive = 0;
  cache = [];
  bad = Infinity; // the position whose logits are not finite
  fails = false;
  runs = 0;

  constructor({ inOnePlan = true, chunk = 8, eos = [], vocabulary = VOCABULARY } = {}) {
    this.inOnePlan = inOnePlan;
    this.language = {
      method: "ptegpu.generate", vocabulary, context: CONTEXT, chunk, every: true, eos,
      tokens: "int64", position: "int32",
    };
    this.model = new LanguageModel(this, this.language, null);
  }

  method(name) {
    assert.equal(name, "ptegpu.generate");
    return this;
  }

  reset() {
    this.runs++;
    this.cache = [];
  }

  start(inputs) {
    assert.ok(this.inOnePlan);
    return this.#call(inputs);
  }

  run(inputs) {
    assert.ok(!this.inOnePlan);
    return this.#call(inputs).result();
  }

  #call([tokens, position, settings, penalised, flags, targets]) {
    this.runs++;
    assert.deepEqual([settings.shape, targets.shape, position.dtype], [[8], [1, 0], "int32"]);
    const resident = tokens.resident !== undefined, at = position.data[0];
    if (resident) assert.equal(tokens.run, this.runs - 1, "the tensor was overwritten");
    else assert.deepEqual([tokens.dtype, tokens.shape], ["int64", [1, tokens.data.length]]);
    const ids = resident ? [tokens.resident] : [...tokens.data].map(Number);
    assert.ok(ids.length <= this.language.chunk && at + ids.length <= CONTEXT, "too many tokens");
    assert.ok(at <= this.cache.length, "a hole in the cache");
    this.cache.splice(at, Infinity, ...ids);
    const bits = flags & 16 ? [...penalised.data].reduce((sum, word) => sum + (word >>> 0), 0) : 0;
    const sum = this.cache.reduce((all, token, k) => all + token * (k + 3), 0);
    const next = flags ? (sum + settings.data[6] * 7 + settings.data[7] + bits) % this.language.vocabulary : 0;
    const logprob = this.cache.length > this.bad ? NaN : -next / 8;
    this.calls.push({ at, count: ids.length, resident, flags, step: settings.data[7] });
    this.maxLive = Math.max(this.maxLive, ++this.live);
    return {
      resident: () => [{ resident: next, run: this.runs }],
      discard: () => void this.live--,
      result: async () => {
        await new Promise((resolve) => setTimeout(resolve));
        this.live--;
        if (this.fails) throw new Error("the GPU failed");
        return [{ data: [next] }, { data: [logprob] }, { data: [] }];
      },
    };
  }
}

/** Returns the tokens of a model without a cache. */
function expectedTokens(prompt, count, { seed = 7, vocabulary = VOCABULARY } = {}) {
  const tokens = [...prompt];
  for (let step = 0; step < count; step++)
    tokens.push((tokens.reduce((all, token, k) => all + token * (k + 3), 0) + seed * 7 + step) % vocabulary);
  return tokens.slice(prompt.length);
}

const PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8];
const SEED = { seed: 7, stopTokens: [] };

test("prompts of any length run in chunks, then several steps run ahead", async () => {
  for (const inOnePlan of [true, false])
    for (let n = 1; n <= PROMPT.length; n++) {
      const fake = new Fake({ inOnePlan });
      const result = await fake.model.generate(PROMPT.slice(0, n), { maxTokens: 12, ...SEED });
      assert.deepEqual(result.tokens, expectedTokens(PROMPT.slice(0, n), 12));
      assert.equal(result.finishReason, "length");
      assert.deepEqual(result.logprobs, result.tokens.map((t) => -t / 8));
      const prefill = Math.ceil(n / 8);
      assert.deepEqual(fake.calls.slice(0, prefill).map((c) => c.count).reduce((a, b) => a + b), n);
      assert.deepEqual(fake.calls.slice(prefill).map((c) => [c.count, c.resident]), Array(11).fill([1, inOnePlan]));
      assert.deepEqual(fake.calls.slice(prefill - 1).map((c) => c.step), [...Array(12).keys()]);
      assert.ok(inOnePlan ? fake.maxLive >= 3 : fake.maxLive <= 2, String(fake.maxLive));
      assert.equal(fake.live, 0);
      const { reusedTokens, prefillTokens, decodeTokens } = result.timings;
      assert.deepEqual([reusedTokens, prefillTokens, decodeTokens], [0, n, 11]);
    }
});

test("the number of steps ahead grows slowly", async () => {
  const fake = new Fake();
  const stream = fake.model.stream([1], { maxTokens: 20, ...SEED });
  /** @type {number[]} */
  const startedCalls = []; // the number of calls when each token arrived
  const { logprobs } = stream.generation;
  logprobs.push = (value) => (startedCalls.push(fake.calls.length), Array.prototype.push.call(logprobs, value));
  const pieces = stream[Symbol.asyncIterator]();
  assert.equal(fake.calls.length, 0); // nothing runs before the first iteration
  assert.ok((await pieces.next()).done);
  assert.deepEqual(startedCalls.slice(0, 2), [2, 4]);
  for (const [k, calls] of startedCalls.entries()) assert.ok(calls === 20 || k < 1 || (calls >= k + 3 && calls <= k + 9));
});

test("a cached prefix does not run again", async () => {
  const fake = new Fake();
  const first = await fake.model.generate(PROMPT, { maxTokens: 5, ...SEED });
  const turn = [...PROMPT, ...first.tokens, 11, 12];
  fake.calls.length = 0;
  const second = await fake.model.generate(turn, { maxTokens: 4, ...SEED });
  assert.deepEqual(second.tokens, expectedTokens(turn, 4));
  assert.deepEqual([fake.calls[0].at, fake.calls[0].count], [23, 3]);
  assert.equal(second.timings.reusedTokens, 23);
  const other = [...PROMPT.slice(0, 6), 40, 41];
  const third = await fake.model.generate(other, { maxTokens: 4, ...SEED });
  assert.deepEqual(third.tokens, expectedTokens(other, 4));
  assert.equal(third.timings.reusedTokens, 6);
  const again = await fake.model.generate(other, { maxTokens: 4, ...SEED });
  assert.deepEqual([again.tokens, again.timings.reusedTokens], [third.tokens, 7]);
  assert.deepEqual(fake.model.cached, [...other, ...again.tokens.slice(0, 3)]);
  await fake.model.reset();
  assert.deepEqual([fake.model.cached, fake.cache], [[], []]);
  assert.equal((await fake.model.generate(other, { maxTokens: 1, ...SEED })).timings.reusedTokens, 0);
  fake.reset(); // outside of the model, as a self-check does
  const last = await fake.model.generate(other, { maxTokens: 2, ...SEED });
  assert.deepEqual([last.tokens, last.timings.reusedTokens], [expectedTokens(other, 2), 0]);
});

test("concurrent streams take turns", async () => {
  const fake = new Fake();
  const prompts = [PROMPT.slice(0, 9), PROMPT.slice(3, 7)];
  const results = await Promise.all(prompts.map((p) => fake.model.generate(p, { maxTokens: 6, ...SEED })));
  assert.deepEqual(results.map((r) => r.tokens), prompts.map((p) => expectedTokens(p, 6)));
});

test("with a penalty, no step runs ahead", async () => {
  const fake = new Fake();
  const result = await fake.model.generate(PROMPT, { maxTokens: 8, repeatPenalty: 1.2, ...SEED });
  const expected = [0, 0, ...Array(8).fill(17)].map((flags) => [false, flags]);
  assert.deepEqual(fake.calls.map((c) => [c.resident, c.flags]), expected);
  const tokens = [...PROMPT];
  result.tokens.forEach((token, step) => {
    const words = [0, 0];
    for (const t of tokens) words[t >> 5] |= 1 << (t & 31);
    const bits = words.reduce((sum, word) => sum + (word >>> 0), 0);
    assert.equal(token, (tokens.reduce((all, t, k) => all + t * (k + 3), 0) + 49 + step + bits) % VOCABULARY);
    tokens.push(token);
  });
});

test("stop tokens, maxTokens and a full context end the text", async () => {
  const all = expectedTokens(PROMPT, CONTEXT - PROMPT.length + 1);
  const end = all[4], before = all.slice(0, all.indexOf(end));
  const stopped = await new Fake({ eos: [end] }).model.generate(PROMPT, { seed: 7 });
  assert.deepEqual([stopped.tokens, stopped.finishReason], [before, "stop"]);
  const replaced = await new Fake({ eos: [all[0]] }).model.generate(PROMPT, { seed: 7, stopTokens: [end] });
  assert.deepEqual([replaced.tokens, replaced.finishReason], [before, "stop"]);
  const full = new Fake();
  const result = await full.model.generate(PROMPT, { maxTokens: 1000, ...SEED });
  assert.deepEqual([result.tokens, result.finishReason], [all, "context"]);
  assert.equal(full.live, 0);
  const none = await new Fake().model.generate(PROMPT, { maxTokens: 0 });
  assert.deepEqual([none.tokens, none.finishReason], [[], "length"]);
});

test("a stream can be cancelled, aborted or left", async () => {
  const words = { decode: (tokens) => tokens.map((t) => `<${t}>`).join(""), eos: null };
  const begin = (options) => {
    const fake = new Fake();
    fake.model.tokenizer = words;
    return [fake, fake.model.stream([1, 2], { ...SEED, ...options })];
  };
  const [fake, stream] = begin();
  const pieces = [];
  for await (const piece of stream) if (pieces.push(piece) === 3) stream.cancel();
  assert.deepEqual(pieces, expectedTokens([1, 2], 3).map((t) => `<${t}>`));
  assert.deepEqual([stream.generation.finishReason, stream.generation.text], ["cancelled", pieces.join("")]);
  assert.equal(fake.live, 0);
  const controller = new AbortController();
  const [aborted, second] = begin({ signal: controller.signal });
  await assert.rejects(async () => {
    for await (const _ of second) controller.abort();
  }, { name: "AbortError" });
  const { finishReason, tokens } = second.generation;
  assert.deepEqual([finishReason, tokens.length, aborted.live], ["cancelled", 1, 0]);
  const [left, third] = begin();
  for await (const _ of third) break;
  assert.deepEqual([third.generation.finishReason, left.live], ["cancelled", 0]);
  const after = await left.model.generate([1, 2], { maxTokens: 3, ...SEED });
  assert.deepEqual(after.tokens, expectedTokens([1, 2], 3));
  const [prefilling, fourth] = begin();
  const long = prefilling.model.stream(PROMPT, SEED);
  const waiting = long[Symbol.asyncIterator]().next();
  await null; // the first chunk runs
  long.cancel();
  assert.ok((await waiting).done);
  assert.deepEqual([long.generation.finishReason, long.generation.tokens, prefilling.live], ["cancelled", [], 0]);
  assert.ok(prefilling.calls.length < 3 && fourth.generation.finishReason === null);
});

test("the text is that of the tokens, up to a stop string", async () => {
  const fake = new Fake({ vocabulary: 4096 });
  fake.model.tokenizer = tales;
  const plain = await fake.model.generate([5, 6], { maxTokens: 10, ...SEED });
  assert.deepEqual(plain.tokens, expectedTokens([5, 6], 10, { vocabulary: 4096 }));
  assert.equal(plain.text, tales.decode([5, 6, ...plain.tokens]).slice(tales.decode([5, 6]).length));
  const stop = plain.text.slice(7, 9), at = plain.text.indexOf(stop);
  const cut = await fake.model.generate([5, 6], { maxTokens: 10, stop, ...SEED });
  assert.deepEqual([cut.text, cut.finishReason], [plain.text.slice(0, at), "stop"]);
  assert.ok(cut.tokens.length < 10);
});

test("an error is thrown, and empties the cache", async () => {
  const fake = new Fake();
  fake.bad = 4;
  const stream = fake.model.stream([1, 2, 3], SEED);
  await assert.rejects(async () => { for await (const _ of stream); }, {
    name: "ExecutionError", message: "the model's logits at position 4 are not finite numbers",
  });
  assert.deepEqual(stream.generation.tokens, expectedTokens([1, 2, 3], 2));
  assert.equal(fake.live, 0);
  fake.bad = Infinity;
  fake.fails = true;
  await assert.rejects(fake.model.generate([1, 2, 3], SEED), { message: "the GPU failed" });
  assert.deepEqual(fake.model.cached, []);
  fake.fails = false;
  assert.deepEqual((await fake.model.generate([1, 2, 3], { maxTokens: 2, ...SEED })).tokens, expectedTokens([1, 2, 3], 2));
});

test("an interrupted generation continues as if it had not been interrupted, at any token", async () => {
  const tokenizer = tales;
  for (const options of [{ stop: [] }, { repeatPenalty: 1.2 }]) {
    const settings = { maxTokens: 10, stopTokens: [], seed: 7, ...options };
    const open = () => Object.assign(new Fake({ vocabulary: 4096 }).model, { tokenizer });
    const complete = await open().generate([5, 6], settings);
    for (let count = 0; count <= 10; count++) {
      const { tokens, logprobs } = complete;
      const continues = { ...complete, tokens: tokens.slice(0, count), logprobs: logprobs.slice(0, count) };
      const stream = open().stream([5, 6], { ...settings, seed: undefined, continues });
      const before = stream.generation.text;
      let text = "";
      for await (const piece of stream) text += piece;
      const { timings, ...result } = stream.generation;
      assert.deepEqual({ ...result, timings: null }, { ...complete, timings: null });
      assert.equal(before + text, complete.text);
      assert.deepEqual([timings.prefillTokens, timings.decodeTokens], count < 10 ? [2 + count, 9 - count] : [0, 0]);
    }
  }
});

test("invalid prompts are refused", () => {
  const { model } = new Fake();
  refuses(() => model.encode([]), "the prompt is empty: give at least one token");
  refuses(() => model.encode([1, 50]), "token 50 is not in the model's vocabulary of 50");
  refuses(() => model.encode([1.5]), "token 1.5 is not in the model's vocabulary of 50");
  refuses(() => model.encode(Array(41).fill(1)), "the prompt has 41 tokens, but the model's context holds 40");
  refuses(() => model.encode("x"), "the model has no tokenizer: pass tokens, or load it with a tokenizer");
  refuses(() => model.stream([1], { maxTokens: -1 }), "maxTokens must be at least 0, not -1");
});

test("a site without a language model is refused before anything else is fetched", async () => {
  const urls = [];
  const fetch = async (url) => (urls.push(String(url)), new Response('{"title": "digits"}'));
  const message = 'http://site/a/ is not a language model: its site.json has no entry "language"';
  await assert.rejects(loadLanguageModel("http://site/a", { fetch }), { name: "InvalidInput", message });
  assert.deepEqual(urls, ["http://site/a/site.json"]);
});
