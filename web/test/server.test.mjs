// The page's client of a server: requests, streamed answers, errors.
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { afterEach, test } from "node:test";
import { connect, events } from "../pages/server.js";

const MODELS = [
  { id: "rows", kind: "embeddings", context: 64 },
  { id: "talk", kind: "chat", context: 30, max_tokens: 20 },
  { id: "tales", kind: "text", context: 256, max_tokens: 20 },
];
const USAGE = { prompt_tokens: 12, completion_tokens: 5 };
const open = /** @type {import("node:http").Server[]} */ ([]);
afterEach(() => open.splice(0).forEach((server) => (server.closeAllConnections(), server.close())));

/** Starts a server that answers chats and completions with `answer`, and records its requests. */
async function start(answer = (/** @type {any} */ _response) => {}, models = MODELS) {
  const requests = /** @type {any[]} */ ([]);
  const server = createServer(async (request, response) => {
    let body = "";
    for await (const part of request) body += part;
    requests.push({ path: request.url, key: request.headers.authorization, body: body && JSON.parse(body) });
    if (request.url === "/under/v1/models") response.end(JSON.stringify({ data: models }));
    else answer(response);
  });
  open.push(server);
  await new Promise((ready) => server.listen(0, "127.0.0.1", () => ready(undefined)));
  return { requests, url: `http://127.0.0.1:${/** @type {any} */ (server.address()).port}/under/` };
}

/** @param {any} response @param {any[]} chunks @param {string} end */
const say = (response, chunks, end = "data: [DONE]\n\n") =>
  response.end(chunks.map((chunk) => `data: ${JSON.stringify(chunk)}\n\n`).join("") + end);
const said = (/** @type {string} */ content, finish_reason = null) => ({
  choices: [{ delta: { content }, finish_reason }],
  usage: null,
});
const all = async (/** @type {AsyncIterable<string>} */ stream) => {
  let text = "";
  for await (const piece of stream) text += piece;
  return text;
};

test("a chat sends its messages and streams the answer", async () => {
  const chunks = [said(""), said("Foxes "), said("dig."), said("", /** @type {any} */ ("stop"))];
  const { requests, url } = await start((response) => say(response, [...chunks, { choices: [], usage: USAGE }]));
  const server = await connect(url, { key: "secret" });
  assert.deepEqual([server.models.map(({ id }) => id), server.language], [
    ["talk", "tales"],
    { chat: true, context: 30, maxTokens: 20 },
  ]);
  const messages = [{ role: "user", content: "What do foxes do?" }];
  const stream = server.stream(messages, { temperature: 0.5, topK: 3, maxTokens: 100, seed: undefined });
  assert.equal(await all(stream), "Foxes dig.");
  const { promptTokens, tokens, finishReason, seed } = stream.generation;
  assert.deepEqual([promptTokens.length, tokens.length, finishReason], [12, 5, "stop"]);
  const { path, key, body } = requests[1];
  assert.deepEqual([path, key], ["/under/v1/chat/completions", "Bearer secret"]);
  assert.deepEqual(body, {
    model: "talk", messages, stream: true, stream_options: { include_usage: true }, max_tokens: 20, seed,
    temperature: 0.5, top_k: 3,
  });
});

test("a model without a chat template continues a text up to its context", async () => {
  const chunk = { choices: [{ text: " there was", finish_reason: "length" }], usage: null };
  const usage = { prompt_tokens: 250, completion_tokens: 7 };
  const { requests, url } = await start((response) => say(response, [chunk, { choices: [], usage }]));
  const server = await connect(url);
  server.model = server.models[1];
  const stream = server.stream("Once", { seed: 7 });
  assert.equal(await all(stream), " there was");
  assert.equal(stream.generation.finishReason, "context");
  const { path, key, body } = requests[1];
  assert.deepEqual([path, key, body.prompt, body.seed], ["/under/v1/completions", undefined, "Once", 7]);
});

test("events are complete however the bytes are cut", async () => {
  const bytes = new TextEncoder().encode('data: {"a":"ö"}\r\n\r\n: comment\n\ndata: 2\n\n');
  for (let cut = 1; cut < bytes.length; cut++) {
    const received = [];
    const body = new ReadableStream({
      start(out) {
        out.enqueue(bytes.slice(0, cut));
        out.enqueue(bytes.slice(cut));
        out.close();
      },
    });
    for await (const data of events(body)) received.push(data);
    assert.deepEqual(received, ['{"a":"ö"}', "2"]);
  }
});

test("cancel closes the connection and keeps the text", async () => {
  /** @type {() => void} */
  let onClose = () => {};
  const closed = new Promise((resolve) => (onClose = () => resolve(true)));
  const { url } = await start((response) => {
    response.on("close", onClose);
    response.write(`data: ${JSON.stringify(said("one"))}\n\n`);
  });
  const stream = (await connect(url)).stream("x");
  let text = "";
  for await (const piece of stream) {
    text += piece;
    stream.cancel();
  }
  assert.deepEqual([text, stream.generation.finishReason, await closed], ["one", "cancelled", true]);
});

/** @type {(status: number, error: any, headers?: any) => (response: any) => void} */
const refusal = (status, error, headers) => (response) =>
  response.writeHead(status, headers).end(typeof error === "string" ? error : JSON.stringify({ error }));
const broken = (/** @type {any} */ r) => (r.write("data: {"), setTimeout(() => r.destroy(), 20));
const late = { error: { code: "time_limit", message: "late" } };
for (const [name, answer, code, message] of /** @type {const} */ ([
  ["a wrong key", refusal(401, { message: "no" }), "BadKey", "no"],
  ["a full queue", refusal(429, { message: "try later" }, { "Retry-After": 7 }), "Busy", "try later (in 7 s)"],
  ["a proxy", refusal(502, "<html>"), "Unavailable", "the server returned status 502"],
  ["a prompt too long", refusal(400, { message: "send less" }), "InvalidInput", "send less"],
  ["an error in the stream", (/** @type {any} */ r) => say(r, [said("a"), late]), "TooLong", "late"],
  ["an incomplete answer", (/** @type {any} */ r) => say(r, [said("a")], ""), "NoServer", "the answer was interrupted"],
  ["a broken connection", broken, "NoServer", "the answer was interrupted"],
]))
  test(`${name} throws ${code}`, async () => {
    const { url } = await start(answer);
    const stream = (await connect(url)).stream([{ role: "user", content: "x" }]);
    await assert.rejects(all(stream), { code, message });
  });

test("a server that cannot be reached, or has no text model, throws", async () => {
  const { url } = await start(undefined, MODELS.slice(0, 1));
  await assert.rejects(connect(url), { code: "NoModel" });
  open.splice(0).forEach((server) => (server.closeAllConnections(), server.close()));
  await assert.rejects(connect(url), { code: "NoServer", message: `${new URL(url).host} does not answer` });
});
