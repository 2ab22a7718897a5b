// Serves the unbuilt pages and modules of web/ with the model of a site, to try a change without building.
//   ptegpu web demo -o site && node web/serve.mjs site
import { readFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { serve } from "./test/browser/server.mjs";

const site = resolve(process.argv[2] ?? ".");
const { page } = JSON.parse(readFileSync(join(site, "site.json"), "utf8"));
const { url } = await serve({ "/site/": site, "/web/": fileURLToPath(new URL(".", import.meta.url)) });
console.log(`${url}/web/pages/${page}.html?site=/site/`);
