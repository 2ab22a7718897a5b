"""WGSL kernels, one file per operator family; `wgsl` assembles modules from their bodies."""
