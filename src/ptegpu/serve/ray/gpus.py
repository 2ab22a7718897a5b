"""The GPU that Ray assigned to a process, in CUDA_VISIBLE_DEVICES, which WebGPU ignores."""

from __future__ import annotations

import os

import ray

from ...errors import NoAdapter
from ...gpu import Device, Engine
from ...gpu.discovery import adapters


def assigned(device: str | int | Device = "auto", engine: Engine = "auto") -> str | int | Device:
    """Return the device to use: the caller's choice, else Ray's if it made one.

    Ray numbers the discrete GPUs of a machine, ptegpu all adapters, in the same order.
    """
    gpu_ids = ray.get_gpu_ids() if ray.is_initialized() else []
    if device != "auto" or not gpu_ids:
        return device
    name = engine if engine != "auto" else os.environ.get("PTEGPU_ENGINE")
    gpus = [a.index for a in adapters("dawn" if name == "dawn" else "wgpu") if a.type == "discrete"]
    number = str(gpu_ids[0])
    if not number.isdecimal() or int(number) >= len(gpus):
        raise NoAdapter(
            f"Ray gave this process GPU {number}, and ptegpu sees {len(gpus)} discrete GPUs here: "
            f"`ptegpu doctor` lists all adapters; name one with device=, or ask Ray for no GPU"
        )
    return gpus[int(number)]
