"""Programs without weights: exported with ExecuTorch, small enough to copy, filled with weights on any machine.

    python -m benchmarks make FOLDER [--quick]

A network is a zip file: its `.pte` with zeros in place of the weights, and the offsets of each. The language model is a
`.pte` with external weights, which are random bytes (`llm.py`).
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from .harness import Bench, Missing

if TYPE_CHECKING:
    from torch import nn

SMALLEST = 64  # bytes of an omitted weight; shorter ones may match other bytes by chance
TIMESTAMP = (2026, 1, 1, 0, 0, 0)


def make(folder: Path, quick: bool) -> Iterator[Path]:
    """Write all programs, and yield the path of each."""
    from . import llm, models

    folder.mkdir(parents=True, exist_ok=True)
    for name in models.NETWORKS:
        for batch in models.network(name, quick).batches:
            yield make_network(folder, name, batch, quick)
    path = folder / llm.FILE
    path.write_bytes(llm.exported(llm.shape(quick)))
    yield path


def make_network(folder: Path, name: str, batch: int, quick: bool) -> Path:
    import torch

    from ptegpu.export import lower, trace

    from . import models

    network = models.network(name, quick)
    module = models.filled(network.module())
    inputs = tuple(torch.from_numpy(array) for array in network.inputs(batch))
    data, places = without_weights(lower(trace(module, inputs)).data, module)
    path = folder / f"{name}-{batch}.zip"
    with zipfile.ZipFile(path, "w") as file:
        for inner, content in (("program.pte", data), ("weights.json", json.dumps(places))):
            file.writestr(zipfile.ZipInfo(inner, TIMESTAMP), content, zipfile.ZIP_LZMA)
    return path


def without_weights(data: bytes, module: nn.Module) -> tuple[bytes, dict[str, list[int]]]:
    """Return a program with zeros in place of the module's weights, and the offsets of each weight."""
    bare, places = bytearray(data), {}
    for name, content in weights(module).items():
        offsets, offset = [], data.find(content)
        while offset >= 0:
            offsets.append(offset)
            bare[offset : offset + len(content)] = bytes(len(content))
            offset = data.find(content, offset + len(content))
        if offsets:
            places[name] = offsets
    return bytes(bare), places


def weights(module: nn.Module) -> dict[str, bytes]:
    """Return the weights of a module, including those of convolutions fused with the batch norms after them."""
    from torch import nn
    from torch.nn.utils.fusion import fuse_conv_bn_weights

    values = dict(module.state_dict())
    for name, inner in module.named_modules():
        if isinstance(inner, nn.Sequential):
            for conv, norm in zip(inner, [*inner][1:]):
                if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                    assert norm.running_mean is not None and norm.running_var is not None
                    statistics = norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
                    joined = fuse_conv_bn_weights(conv.weight, conv.bias, *statistics)
                    number = [*inner].index(conv)
                    values |= {f"{name}.{number} joined {kind}": w for kind, w in zip(("weight", "bias"), joined)}
    contents = {name: value.detach().contiguous().numpy().tobytes() for name, value in values.items()}
    return {name: content for name, content in contents.items() if len(content) >= SMALLEST}


def network_program(bench: Bench, name: str, batch: int, contents: Mapping[str, bytes]) -> bytes:
    """Return the program of a network with its weights."""
    with zipfile.ZipFile(path_of(bench, f"{name}-{batch}.zip")) as file:
        data, places = bytearray(file.read("program.pte")), json.loads(file.read("weights.json"))
    for weight, offsets in places.items():
        for offset in offsets:
            data[offset : offset + len(contents[weight])] = contents[weight]
    return bytes(data)


def path_of(bench: Bench, name: str) -> Path:
    """Return the path of a program, exporting it if it is missing and ExecuTorch is installed."""
    folder = bench.data or Path("build", "benchmarks", "quick" if bench.quick else "full")
    path = folder / name
    if not path.exists():
        try:
            import executorch  # noqa: F401
        except ImportError:
            raise Missing(
                f"no {path}: `python -m benchmarks make FOLDER` where ExecuTorch is, then --data FOLDER"
            ) from None
        bench.console.print(f"exporting {name} …")
        folder.mkdir(parents=True, exist_ok=True)
        stem, _, batch = path.stem.rpartition("-")
        if batch.isdigit():
            return make_network(folder, stem, int(batch), bench.quick)
        from . import llm

        path.write_bytes(llm.exported(llm.shape(bench.quick)))
    return path
