"""Folders of sentence-transformers: `modules.json` lists a transformer, its pooling, and the layers after it."""

from __future__ import annotations

import json
from pathlib import Path

from torch import nn

from ..errors import ExportError
from ..files import check_inside, read, read_object
from ..models.kinds import SENTENCES
from .backend import torch
from .checkpoint import TensorStore
from .hf_models import POOLINGS, Activation, SentencePooling

ACTIVATIONS: dict[str, Activation] = {"Tanh": torch.tanh, "Identity": lambda x: x, "ReLU": torch.relu}


def is_sentence_model(folder: Path) -> bool:
    return (folder / SENTENCES).is_file()


def transformer_folder(folder: Path) -> Path:
    """Return the folder of `config.json` and the weights."""
    if not is_sentence_model(folder):
        return folder
    (kind, path), *_ = modules(folder)
    if kind != "Transformer":
        raise ExportError(f"{folder / SENTENCES} starts with a {kind}, not with a Transformer")
    return path


def modules(folder: Path) -> list[tuple[str, Path]]:
    """Return the kind and the folder of each module."""
    file = folder / SENTENCES
    check_inside(file, folder, ExportError)
    try:
        rows = json.loads(read(file, ExportError, 1 << 20))
        kinds = [(str(row["type"]).rpartition(".")[2], folder / str(row["path"])) for row in rows]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ExportError(f"{file} is not a list of modules") from None
    if not kinds:
        raise ExportError(f"{file} lists no modules")
    for _, path in kinds:
        check_inside(path, folder, ExportError)
    return kinds


def read_pooling(folder: Path) -> SentencePooling:
    """Return the module that turns hidden states into vectors."""
    if not is_sentence_model(folder):
        return SentencePooling()
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
    return SentencePooling(pooling, normalize, dense)


def _pooling(path: Path) -> str:
    settings = read_object(path / "config.json", ExportError)
    mode = settings.get("pooling_mode")
    modes = [mode] if isinstance(mode, str) else []
    modes += [
        k.removeprefix("pooling_mode_") for k, on in settings.items() if k.startswith("pooling_mode_") and on is True
    ]
    names = {"cls_token": "cls", "mean_tokens": "mean", "max_tokens": "max"}
    poolings = [names.get(name, name) for name in modes]
    if len(poolings) != 1 or poolings[0] not in POOLINGS:
        raise ExportError(
            f"{path}: invalid pooling {', '.join(poolings) or 'without a name'}: expected one of {', '.join(POOLINGS)}"
        )
    return poolings[0]


def _dense(path: Path) -> tuple[nn.Linear, Activation]:
    settings = read_object(path / "config.json", ExportError)
    name = str(settings.get("activation_function", "torch.nn.modules.activation.Tanh")).rpartition(".")[2]
    if name not in ACTIVATIONS:
        raise ExportError(f"{path}: the activation {name} cannot be exported; {', '.join(ACTIVATIONS)} can")
    store = TensorStore(path)
    if "linear.weight" not in store.files:
        raise ExportError(f"{path}: linear.weight is missing")
    weight = store.tensor("linear.weight")
    layer = nn.Linear(weight.shape[1], weight.shape[0], "linear.bias" in store.files)
    layer.weight = nn.Parameter(weight, requires_grad=False)
    if "linear.bias" in store.files:
        layer.bias = nn.Parameter(store.tensor("linear.bias"), requires_grad=False)
    return layer, ACTIVATIONS[name]
