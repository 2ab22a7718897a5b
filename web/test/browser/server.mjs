// A static server for tests that logs what it sends and fails on demand.
import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { extname, join, normalize } from "node:path";

const TYPES = {
  ".html": "text/html; charset=utf-8", ".js": "text/javascript", ".mjs": "text/javascript", ".css": "text/css",
  ".json": "application/json", ".txt": "text/plain", ".svg": "image/svg+xml", ".png": "image/png",
};

/**
 * Replaces a package's name in a module by its address, because workers have no import maps.
 * @param {Buffer} bytes @param {string} web @param {string} prefix of the address
 */
async function named(bytes, web, prefix) {
  const [text, name] = / from "(@[\w/]+)"/.exec(String(bytes)) ?? [];
  if (!name) return bytes;
  const { module } = JSON.parse(await readFile(join(web, "node_modules", name, "package.json"), "utf8"));
  return Buffer.from(String(bytes).replace(text, ` from "${prefix}node_modules/${join(name, module)}"`));
}

/**
 * Serves folders under prefixes, on this machine only. `/blank` is an empty page, `/cut` breaks held connections.
 * Forbids the browser's HTTP cache, so that `log` has every request.
 * @param {Record<string, string>} folders
 */
export async function serve(folders) {
  /** @type {{path: string, range: boolean, sent: number}[]} */
  const log = [];
  /** Faults by the end of a path: `corrupt`, `hold` after this share of the bytes, `status`. */
  const faults = new Map();
  const heldResponses = new Set();

  async function answer(request, response) {
    const pathname = decodeURIComponent(new URL(request.url, "http://host").pathname);
    if (pathname === "/blank")
      return void response.writeHead(200, { "content-type": TYPES[".html"] }).end("<!doctype html>");
    if (pathname === "/cut") {
      for (const response of heldResponses) response.destroy();
      return void response.end();
    }
    const prefix = Object.keys(folders).find((p) => pathname.startsWith(p));
    const path = pathname.endsWith("/") ? pathname + "index.html" : pathname;
    const file = prefix && join(folders[prefix], normalize(path.slice(prefix.length)));
    const fault = [...faults].find(([end]) => path.endsWith(end))?.[1] ?? {};
    let bytes = file && file.startsWith(folders[prefix]) ? await readFile(file).catch(() => null) : null;
    if (!bytes || fault.status) return void response.writeHead(fault.status ?? 404).end();
    if (/\/src\/\w+\.js$/.test(path)) bytes = await named(bytes, folders[prefix], prefix);
    const range = /^bytes=(\d+)-$/.exec(request.headers.range ?? "");
    const headers = { "content-type": TYPES[extname(file)] ?? "application/octet-stream", "cache-control": "no-store" };
    if (range) headers["content-range"] = `bytes ${range[1]}-${bytes.length - 1}/${bytes.length}`;
    if (fault.corrupt) bytes = Buffer.concat([bytes.subarray(0, -1), Buffer.of(bytes.at(-1) ^ 1)]);
    if (range) bytes = bytes.subarray(Number(range[1]));
    const entry = { path, range: Boolean(range), sent: 0 };
    log.push(entry);
    response.writeHead(range ? 206 : 200, { ...headers, "accept-ranges": "bytes", "content-length": bytes.length });
    const part = !fault.hold || range ? bytes : bytes.subarray(0, Math.floor(fault.hold * bytes.length));
    entry.sent = part.length;
    if (part === bytes) return void response.end(bytes);
    response.write(part);
    heldResponses.add(response);
  }

  const server = createServer((request, response) => {
    answer(request, response).catch((error) => response.destroy(error));
  });
  await new Promise((ready) => server.listen(0, "127.0.0.1", () => ready(undefined)));
  const { port } = server.address();
  return {
    port,
    url: `http://127.0.0.1:${port}`,
    log,
    faults,
    /** Counts requests and bytes of matching paths. */
    sent(/** @type {RegExp} */ pattern) {
      const matches = log.filter(({ path }) => pattern.test(path));
      const bytes = matches.reduce((sum, { sent }) => sum + sent, 0);
      return { requests: matches.length, bytes, ranges: matches.filter(({ range }) => range).length };
    },
    close() {
      for (const response of heldResponses) response.destroy();
      server.closeAllConnections();
      server.close();
    },
  };
}
