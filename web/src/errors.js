// What can go wrong, one class each. A message is one line: what, where, what to do.

/** The base of all errors of ptegpu. */
export class PtegpuError extends Error {
  /** The name of the class, also in minified code and across workers. @returns {string} */
  get code() {
    return this.name;
  }
}
PtegpuError.prototype.name = "PtegpuError";

/** @param {string} name */
function kind(name, Of = PtegpuError) {
  const made = class extends Of {};
  made.prototype.name = name;
  return made;
}

/** The browser has no WebGPU here. */
export const NoWebGPU = kind("NoWebGPU");
/** WebGPU has no adapter, or not one that gives a device. */
export const NoAdapter = kind("NoAdapter");
/** No variant of the bundle runs on this adapter. */
export const MissingFeature = kind("MissingFeature");
/** The model needs more memory than there is, or than it may use. */
export const OutOfMemory = kind("OutOfMemory");
/** The GPU was taken away. Load again. */
export const DeviceLost = kind("DeviceLost");
/** A shard of the weights is not there, or not what the bundle says. */
export const BadShard = kind("BadShard");
/** A file of the site is not there, or is not what it should be. */
export const BadBundle = kind("BadBundle");
/** Inputs that the method does not take. */
export const InvalidInput = kind("InvalidInput");
/** An input that is an index and points outside of what it indexes. */
export const IndexOutOfRange = kind("IndexOutOfRange", InvalidInput);
/** A program that this runner cannot run. */
export const UnsupportedProgram = kind("UnsupportedProgram");
/** A run that failed, or a use of what was disposed. */
export const ExecutionError = kind("ExecutionError");

// Types of the same names.
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
