/** Why a model does not run here. */

import { MissingFeature, NoAdapter, NoWebGPU, OutOfMemory } from "./index.js";

/** @type {(bytes: number) => string} */
const sized = (bytes) => (bytes < 1e6 ? `${Math.ceil(bytes / 1e3)} kB` : `${(bytes / 1e6).toFixed(1)} MB`);

/** There is no adapter. @param {GPU} [gpu] */
export function noAdapter(gpu) {
  if (gpu) return new NoAdapter("this page gets no GPU: turn on hardware acceleration, or update the driver");
  return new NoWebGPU(
    globalThis.isSecureContext === false
      ? "WebGPU needs a secure page: open it by https:// or on localhost"
      : "this browser has no WebGPU: use a current Chrome, Edge, Safari or Firefox",
  );
}

/**
 * There is no variant for this adapter.
 * @param {GPUAdapter} adapter
 * @param {any[]} variants those that were asked for
 * @param {{variant?: string, memory?: number}} options
 */
export function noVariant({ limits, features, info }, variants, { variant, memory = Infinity }) {
  /** What it lacks, in words. @type {(variant: any) => string} */
  const lacks = ({ limits: least, features: wanted, info: told }) => {
    const few = Object.keys(least).filter((name) => /** @type {any} */ (limits)[name] < least[name]);
    const found = few.map((name) => `${name} of ${least[name]}`);
    found.push(...wanted.filter((/** @type {string} */ name) => !features.has(name)));
    const other = Object.keys(told).filter((name) => /** @type {any} */ (info)[name] !== told[name]);
    found.push(...other.map((name) => `${name} ${told[name]}`));
    return found.join(", ");
  };
  if (!variants.length) return new MissingFeature(`the model has no variant ${variant}`);
  const fits = variants.find((v) => !lacks(v));
  if (fits)
    return new OutOfMemory(
      `the model takes ${sized(fits.bytes.buffers)} of GPU memory, the budget is ${sized(memory)}: raise it`,
    );
  const all = variants.map((v) => `${v.name}: ${lacks(v)}`).join("; ");
  return new MissingFeature(`this GPU lacks what the model needs (${all}): use another browser or device`);
}
