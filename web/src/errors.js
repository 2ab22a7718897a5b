// What can go wrong, one class each. A message is one line: what, where, what to do.

/** The base of all errors of ptegpu. `code` is the name of the class, also in minified code and across workers. */
export class PtegpuError extends Error {
  /** @returns {string} */
  get code() {
    return this.name;
  }
}
/** The browser has no WebGPU here. */
export class NoWebGPU extends PtegpuError {}
/** WebGPU has no adapter, or not one that gives a device. */
export class NoAdapter extends PtegpuError {}
/** No variant of the bundle runs on this adapter. */
export class MissingFeature extends PtegpuError {}
/** The model needs more memory than there is, or than it may use. */
export class OutOfMemory extends PtegpuError {}
/** The GPU was taken away. Load again. */
export class DeviceLost extends PtegpuError {}
/** A shard of the weights is not there, or not what the bundle says. */
export class BadShard extends PtegpuError {}
/** A file of the site is not there, or is not what it should be. */
export class BadBundle extends PtegpuError {}
/** Inputs that the method does not take. */
export class InvalidInput extends PtegpuError {}
/** An input that is an index and points outside of what it indexes. */
export class IndexOutOfRange extends InvalidInput {}
/** A program that this runner cannot run. */
export class UnsupportedProgram extends PtegpuError {}
/** A run that failed, or a use of what was disposed. */
export class ExecutionError extends PtegpuError {}

/** @type {Record<string, new (message?: string) => PtegpuError>} */
const kinds = {
  PtegpuError,
  NoWebGPU,
  NoAdapter,
  MissingFeature,
  OutOfMemory,
  DeviceLost,
  BadShard,
  BadBundle,
  InvalidInput,
  IndexOutOfRange,
  UnsupportedProgram,
  ExecutionError,
};
for (const name in kinds) kinds[name].prototype.name = name;

/**
 * The error that another thread told of. One that is not ours becomes a PtegpuError.
 * @param {{code: string, message: string}} told
 * @returns {PtegpuError}
 */
export const revive = ({ code, message }) => new (kinds[code] ?? PtegpuError)(message);
