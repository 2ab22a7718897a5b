"""WGSL: how bodies become modules (`wgsl`), and one file of kernels per operator family."""
