"""Folders of sentence-transformers: `modules.json` names a transformer, how it is pooled, and what follows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch import nn

from ..errors import ExportError
from ..files import check_inside, read, read_object
from ..models.kinds import SENTENCES
from .backend import torch
from .checkpoint import Store
from .hf_models import POOLINGS, Activation, Finish

ACTIVATIONS: dict[str, Activation] = {"Tanh": torch.tanh, "Identity": lambda x: x, "ReLU": torch.relu}


def is_sentence_model(folder: Path) -> bool:
    return (folder / SENTENCES).is_file()


def transformer_folder(folder: Path) -> Path:
    """Where `config.json` and the weights are."""
    if not is_sentence_model(folder):
        return folder
    (kind, path), *_ = modules(folder)
    if kind != "Transformer":
        raise ExportError(f"{folder / SENTENCES} begins with {kind}, not with a Transformer")
    return path


def modules(folder: Path) -> list[tuple[str, Path]]:
    """The kind of each module, and its folder."""
    file = folder / SENTENCES
    check_inside(file, folder, ExportError)
    try:
        listed = json.loads(read(file, ExportError, 1 << 20))
        found = [(str(m["type"]).rpartition(".")[2], folder / str(m["path"])) for m in listed]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ExportError(f"{file} is not a list of modules") from None
    if not found:
        raise ExportError(f"{file} names no module")
    for _, path in found:
        check_inside(path, folder, ExportError)
    return found


def finish_of(folder: Path) -> Finish:
    """What makes a vector of hidden states."""
    if not is_sentence_model(folder):
        return Finish()
    pooling, normalize = "mean", False
    dense: list[tuple[nn.Linear, Activation]] = []
    for kind, path in modules(folder)[1:]:
        if kind == "Pooling":
            pooling = _pooling(path)
        elif kind == "Dense":
            dense.append(_dense(path))
        elif kind == "Normalize":
            normalize = True
        else:
            raise ExportError(f"{folder / SENTENCES}: {kind} cannot be exported; Pooling, Dense and Normalize can")
    return Finish(pooling, normalize, dense)


def _pooling(path: Path) -> str:
    settings = read_object(path / "config.json", ExportError)
    given = settings.get("pooling_mode")
    modes = [given] if isinstance(given, str) else []
    modes += [k for k, on in settings.items() if k.startswith("pooling_mode_") and on is True]
    names = {"cls_token": "cls", "mean_tokens": "mean", "max_tokens": "max"}
    given_names = [m.removeprefix("pooling_mode_") for m in modes]
    found = [names.get(name, name) for name in given_names]
    if len(found) != 1 or found[0] not in POOLINGS:
        raise ExportError(
            f"{path}: pooling is {', '.join(map(str, found)) or 'not named'}; one of {', '.join(POOLINGS)}"
        )
    return found[0]


def _dense(path: Path) -> tuple[nn.Linear, Activation]:
    settings = read_object(path / "config.json", ExportError)
    name = str(settings.get("activation_function", "torch.nn.modules.activation.Tanh")).rpartition(".")[2]
    if name not in ACTIVATIONS:
        raise ExportError(f"{path}: the activation {name} cannot be exported; {', '.join(ACTIVATIONS)} can")
    store = Store(path)
    weight = _tensor(store, "linear.weight", path)
    bias = _tensor(store, "linear.bias", path) if "linear.bias" in store.files else None
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias is not None)
    layer.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias, requires_grad=False)
    return layer, ACTIVATIONS[name]


def _tensor(store: Store, name: str, path: Path) -> Any:
    if name not in store.files:
        raise ExportError(f"{path}: there is no {name}")
    return store.whole(name)
