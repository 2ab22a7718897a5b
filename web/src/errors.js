// Error classes. A message is one line: what is wrong, where, and what to do.

/** The base class of all errors of ptegpu. */
export class PtegpuError extends Error {
  /** The name of the class, stable in minified code and across workers. @returns {string} */
  get code() {
    return this.name;
  }
}
PtegpuError.prototype.name = "PtegpuError";

/** @param {string} name */
function kind(name, Base = PtegpuError) {
  const Kind = class extends Base {};
  Kind.prototype.name = name;
  return Kind;
}

/** The browser has no WebGPU, or not on this page. */
export const NoWebGPU = kind("NoWebGPU");
/** WebGPU returned no adapter. */
export const NoAdapter = kind("NoAdapter");
/** No variant of the bundle runs on this adapter. */
export const MissingFeature = kind("MissingFeature");
/** The model needs more GPU memory than is available, or than `memory` allows. */
export const OutOfMemory = kind("OutOfMemory");
/** The GPU was lost. Load again. */
export const DeviceLost = kind("DeviceLost");
/** A shard of the weights is missing, or has the wrong hash. */
export const BadShard = kind("BadShard");
/** A file of the site is missing or invalid. */
export const BadBundle = kind("BadBundle");
/** An argument or input is invalid. */
export const InvalidInput = kind("InvalidInput");
/** An index in the inputs is out of range. */
export const IndexOutOfRange = kind("IndexOutOfRange", InvalidInput);
/** The program needs operators that only Python can run. */
export const UnsupportedProgram = kind("UnsupportedProgram");
/** A run failed, or the program was disposed. */
export const ExecutionError = kind("ExecutionError");

// The instance types, under the same names.
/** @typedef {InstanceType<typeof NoWebGPU>} NoWebGPU */
/** @typedef {InstanceType<typeof NoAdapter>} NoAdapter */
/** @typedef {InstanceType<typeof MissingFeature>} MissingFeature */
/** @typedef {InstanceType<typeof OutOfMemory>} OutOfMemory */
/** @typedef {InstanceType<typeof DeviceLost>} DeviceLost */
/** @typedef {InstanceType<typeof BadShard>} BadShard */
/** @typedef {InstanceType<typeof BadBundle>} BadBundle */
/** @typedef {InstanceType<typeof InvalidInput>} InvalidInput */
/** @typedef {InstanceType<typeof IndexOutOfRange>} IndexOutOfRange */
/** @typedef {InstanceType<typeof UnsupportedProgram>} UnsupportedProgram */
/** @typedef {InstanceType<typeof ExecutionError>} ExecutionError */
