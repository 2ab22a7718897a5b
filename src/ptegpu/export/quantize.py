"""Linear layers of any module with weights of 8 or 4 bits, in forms that the partitioner has operators for.

| name | weights | activations |
|---|---|---|
| `8bit` | 8 bits, a scale for each row | |
| `4bit` | 4 bits in groups | |
| `8da4w` | 4 bits in groups | 8 bits, a scale for each row of each call |
"""

from __future__ import annotations

import copy
from collections.abc import Iterable

from torch import nn

from ..errors import ExportError
from .backend import quiet, torch
from .layers import ByteLinear

NONE = "none"
GROUPED = ("4bit", "8da4w")
QUANTIZATIONS = (NONE, *GROUPED, "8bit")
DTYPES = ("float32", "float16")
GROUP = 32  # weights that share a scale
ROWS = 4  # in a block of weights that ExecuTorch packs


def check_choice(name: str, value: object, choices: Iterable[object]) -> None:
    """Raise ExportError unless the value of an option is one of the choices."""
    choices = tuple(choices)
    if value not in choices:
        raise ExportError(f"invalid {name} {value!r}: expected one of {', '.join(map(str, choices))}")


def check_quantization(form: str, delegate: bool) -> None:
    """Raise ExportError unless the form exists and, without partitions, needs no operators that only they have."""
    check_choice("quantize", form, QUANTIZATIONS)
    if form in GROUPED and not delegate:
        raise ExportError(
            f"quantize is {form!r}, whose operators exist only in partitions: choose 8bit, or leave out --no-delegate "
            "(delegate=False)"
        )


def quantized(module: nn.Module, form: str) -> tuple[nn.Module, list[str]]:
    """Return a copy of the module with quantized linear layers, and notes."""
    linears = {name: m for name, m in module.named_modules() if type(m) is nn.Linear}
    odd = [name or "the module" for name, m in linears.items() if form != "8bit" and not _has_groups(m)]
    if not linears:
        raise ExportError(f"quantize is {form!r}, but the module has no linear layers (torch.nn.Linear): leave it out")
    for name, layer in linears.items():
        if layer.weight.dtype is not torch.float32:
            raise ExportError(
                f"quantize is {form!r}, but {name or 'the module'} has weights of {layer.weight.dtype}: call "
                "module.float() first"
            )
    shared = {id(t): t for t in (*module.parameters(), *module.buffers())}
    copied = copy.deepcopy(module, shared)  # the structure, not the tensors
    result = _in_bytes(copied) if form == "8bit" else _in_groups(copied, form)
    why = f"their columns do not divide into groups of {GROUP}, or their rows by {ROWS}"
    return result, [f"linear layers that stay in floats, because {why}: {', '.join(odd)}"] if odd else []


def has_linear(module: nn.Module) -> bool:
    """Return whether there is a layer to quantize."""
    return any(type(m) is nn.Linear for m in module.modules())


def _has_groups(layer: nn.Linear) -> bool:
    return layer.in_features % GROUP == 0 and layer.out_features % ROWS == 0


def _in_bytes(module: nn.Module) -> nn.Module:
    for name, layer in list(module.named_modules()):
        if type(layer) is nn.Linear:
            replacement = ByteLinear(layer.weight.detach(), None if layer.bias is None else layer.bias.detach())
            if not name:
                return replacement
            module.set_submodule(name, replacement)
    return module


def _in_groups(module: nn.Module, form: str) -> nn.Module:
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig, IntxWeightOnlyConfig, PerGroup, quantize_

    groups, bits = PerGroup(GROUP), torch.int4
    if form == "4bit":
        config = IntxWeightOnlyConfig(weight_dtype=bits, granularity=groups)
    else:
        config = Int8DynamicActivationIntxWeightConfig(weight_dtype=bits, weight_granularity=groups)
    with quiet():
        quantize_(module, config, filter_fn=lambda layer, name: type(layer) is nn.Linear and _has_groups(layer))
    return module
