/** The errors of a model that cannot run here; loaded only then. */

import { MissingFeature, NoAdapter, NoWebGPU, OutOfMemory } from "./index.js";

/** @type {(bytes: number) => string} */
const formatted = (bytes) => (bytes < 1e6 ? `${Math.ceil(bytes / 1e3)} kB` : `${(bytes / 1e6).toFixed(1)} MB`);

/** Returns the error for a missing adapter. @param {GPU} [gpu] */
export function noAdapter(gpu) {
  if (gpu) return new NoAdapter("no GPU is available: turn on hardware acceleration, or update the graphics driver");
  return new NoWebGPU(
    globalThis.isSecureContext === false
      ? "WebGPU needs a secure page: open it with https:// or on localhost"
      : "this browser has no WebGPU: use a current Chrome, Edge, Safari or Firefox",
  );
}

/**
 * Returns the error for an adapter that none of `variants` fits.
 * @param {GPUAdapter} adapter
 * @param {any[]} variants
 * @param {{variant?: string, memory?: number}} options
 */
export function noVariant({ limits, features, info }, variants, { variant, memory = Infinity }) {
  /** Lists the requirements that the adapter does not meet. @type {(variant: any) => string} */
  const missing = ({ limits: minimums, features: required, info: expected }) => {
    const low = Object.keys(minimums).filter((name) => /** @type {any} */ (limits)[name] < minimums[name]);
    const absent = required.filter((/** @type {string} */ name) => !features.has(name));
    const different = Object.keys(expected).filter((name) => /** @type {any} */ (info)[name] !== expected[name]);
    return [
      ...low.map((name) => `${name} of ${minimums[name]}`),
      ...absent,
      ...different.map((name) => `${name} ${expected[name]}`),
    ].join(", ");
  };
  if (!variants.length) return new MissingFeature(`the model has no variant ${variant}`);
  const tooLarge = variants.find((v) => !missing(v));
  if (tooLarge)
    return new OutOfMemory(
      `the model needs ${formatted(tooLarge.bytes.buffers)} of GPU memory, but its limit is ${formatted(memory)}: ` +
        "raise the option memory",
    );
  const list = variants.map((v) => `${v.name}: ${missing(v)}`).join("; ");
  return new MissingFeature(`this GPU lacks what the model needs (${list}): use another browser or device`);
}
