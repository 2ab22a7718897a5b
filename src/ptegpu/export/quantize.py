"""Linear layers of any module with weights of 8 or 4 bits, in forms that the partitioner has operators for.

| name | weights | activations |
|---|---|---|
| `8bit` | 8 bits, a scale for each row | |
| `4bit` | 4 bits in groups | |
| `8da4w` | 4 bits in groups | 8 bits, a scale for each row of each call |
"""

from __future__ import annotations

import copy

from torch import nn

from ..errors import ExportError
from .backend import quiet, torch
from .layers import ByteLinear

NONE = "none"
QUANTIZATIONS = (NONE, "8bit", "4bit", "8da4w")
GROUPED = ("4bit", "8da4w")
GROUP = 32  # weights that share a scale
ROWS = 4  # of which ExecuTorch packs weights in groups


def check_quantization(form: str, delegate: bool) -> None:
    """Raise ExportError unless there is such a way, with or without partitions."""
    if form not in QUANTIZATIONS:
        raise ExportError(f"quantize is {form!r}; choose from {', '.join(QUANTIZATIONS)}")
    if form in GROUPED and not delegate:
        raise ExportError(
            f"quantize is {form!r}, whose operators partitions alone have: choose 8bit, or leave out --no-delegate "
            "(delegate=False)"
        )


def quantized(module: nn.Module, form: str) -> tuple[nn.Module, list[str]]:
    """Return the module with its linear layers quantized, and notes; the one that is given stays as it is."""
    linears = {name: m for name, m in module.named_modules() if type(m) is nn.Linear}
    odd = [name or "the module" for name, m in linears.items() if form != "8bit" and not _has_groups(m)]
    if not has_linear(module):
        raise ExportError(f"quantize is {form!r}, but the module has no linear layers (torch.nn.Linear): leave it out")
    for name, layer in linears.items():
        if layer.weight.dtype is not torch.float32:
            raise ExportError(
                f"quantize is {form!r}, but {name or 'the module'} has weights of {layer.weight.dtype}: call "
                "module.float() first"
            )
    shared = {id(t): t for t in (*module.parameters(), *module.buffers())}
    made = copy.deepcopy(module, shared)  # a copy of the structure alone
    made = _in_bytes(made) if form == "8bit" else _in_groups(made, form)
    why = f"their columns do not divide into groups of {GROUP}, or their rows by {ROWS}"
    return made, [f"linear layers that stay in floats, as {why}: {', '.join(odd)}"] if odd else []


def has_linear(module: nn.Module) -> bool:
    """Return whether there is something to quantize."""
    return any(type(m) is nn.Linear for m in module.modules())


def _has_groups(layer: nn.Linear) -> bool:
    return layer.in_features % GROUP == 0 and layer.out_features % ROWS == 0


def _in_bytes(module: nn.Module) -> nn.Module:
    for name, layer in list(module.named_modules()):
        if type(layer) is nn.Linear:
            made = ByteLinear(layer.weight.detach(), None if layer.bias is None else layer.bias.detach())
            if not name:
                return made
            module.set_submodule(name, made)
    return module


def _in_groups(module: nn.Module, form: str) -> nn.Module:
    from torchao.quantization import (
        Int8DynamicActivationIntxWeightConfig,
        IntxWeightOnlyConfig,
        PerGroup,
        quantize_,
    )

    configs = {
        "4bit": lambda: IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(GROUP)),
        "8da4w": lambda: Int8DynamicActivationIntxWeightConfig(
            weight_dtype=torch.int4, weight_granularity=PerGroup(GROUP)
        ),
    }

    def fits(layer: nn.Module, name: str) -> bool:
        return type(layer) is nn.Linear and _has_groups(layer)

    with quiet():
        quantize_(module, configs[form](), filter_fn=fits)
    return module
