"""The weights of a Hugging Face checkpoint into a `Decoder`, quantized on the way, one tensor at a time."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ..errors import ExportError
from ..files import check_inside, check_regular, read_object
from .backend import SafetensorError, safe_open, torch
from .config import Config
from .decoder import Decoder, RMSNorm
from .layers import ByteLinear, GroupedEmbedding, GroupedLinear, GroupedWeight

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
PREFIX, OUTPUT = "model.", "lm_head.weight"
COMPUTED = re.compile(r"rotary_emb\.inv_freq$")  # what old files hold and every loader makes anew
SHOWN = 5  # names in a message
STEP = 32  # elements that the GPU's kernels for 4-bit embeddings take at a time

Progress = Callable[[str, int, int], object]  # (phase, done, of)


@dataclass(slots=True)
class Weights:
    """How weights are stored, and what came of it."""

    linear: str = "none"  # or 4bit, 8da4w, 8bit
    embedding: str = "float"  # or 4bit
    group: int = 32
    stored: dict[str, int] = field(default_factory=dict)  # matrices, by the way they are stored
    notes: list[str] = field(default_factory=list)

    def count(self, how: str) -> None:
        self.stored[how] = self.stored.get(how, 0) + 1


def load(decoder: Decoder, store: Store, weights: Weights, progress: Progress) -> int:
    """Loads all weights; how many parameters they are."""
    tied = decoder.config.tied
    modules = [(n, m) for n, m in decoder.named_modules() if isinstance(m, nn.Linear | nn.Embedding | RMSNorm)]
    parameters = 0
    for done, (name, module) in enumerate(modules):
        progress("Reading weights", done, len(modules))
        if f"{name}.weight" == OUTPUT and tied:
            new = _tied_output(decoder, store, weights)
        else:
            tensors = {n: store.read(f"{name}.{n}") for n, _ in module.named_parameters()}
            parameters += sum(t.numel() for t in tensors.values())
            new = _loaded(name, module, tensors["weight"], tensors.get("bias"), decoder, weights)
        parent, _, last = name.rpartition(".")
        setattr(decoder.get_submodule(parent), last, new)
    decoder.requires_grad_(False).eval()
    return parameters


def _loaded(
    name: str, module: nn.Module, weight: Tensor, bias: Tensor | None, decoder: Decoder, weights: Weights
) -> nn.Module:
    if isinstance(module, RMSNorm):
        return _with(module, weight + decoder.config.norm_offset, None)
    if isinstance(module, nn.Embedding):
        if weights.embedding == "4bit" and _fits(name, weight, weights, step=STEP):
            weights.count(f"4 bits in groups of {weights.group}")
            return GroupedEmbedding(GroupedWeight(weight, weights.group))
        weights.count("float")
        return _with(module, weight, None)
    if weights.linear == "8bit":
        weights.count("8 bits per row")
        return ByteLinear(weight, bias)
    if weights.linear != "none" and _fits(name, weight, weights):
        weights.count(f"4 bits in groups of {weights.group}")
        return GroupedLinear(GroupedWeight(weight, weights.group), bias, dynamic=weights.linear == "8da4w")
    weights.count("float")
    return _with(module, weight, bias)


def _fits(name: str, weight: Tensor, weights: Weights, step: int = 1) -> bool:
    columns = weight.shape[1]
    if columns % weights.group == 0 and columns % step == 0:
        return True
    divisor = weights.group if columns % weights.group else step
    weights.notes.append(f"{name} stays in floats: its {columns} columns are no multiple of {divisor}")
    return False


def _tied_output(decoder: Decoder, store: Store, weights: Weights) -> nn.Module:
    """The output layer that is the embedding: the same tensor where both are stored alike."""
    embedding, output = decoder.embed_tokens, decoder.lm_head
    if isinstance(embedding, GroupedEmbedding) and weights.linear in ("4bit", "8da4w"):
        return GroupedLinear(embedding.weight, dynamic=weights.linear == "8da4w")
    stays = weights.linear == "none" or (weights.linear != "8bit" and decoder.config.dim % weights.group)
    if isinstance(embedding, nn.Embedding) and stays:
        return _with(output, embedding.weight, None)
    weights.notes.append("embedding and output layer are one matrix in the checkpoint, stored in two ways here")
    return _loaded("lm_head", output, store.read("embed_tokens.weight"), None, decoder, weights)


def _with(module: nn.Module, weight: Tensor, bias: Tensor | None) -> nn.Module:
    module.weight = weight if isinstance(weight, nn.Parameter) else nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        module.bias = nn.Parameter(bias, requires_grad=False)
    return module


class Store:
    """Tensors by the decoder's names, from one safetensors file or several."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, tuple[Path, str, list[int]]] = {}  # file, name in it, shape
        for path in _weight_files(folder):
            with _open(path) as file:
                for key in file.keys():  # noqa: SIM118 (not a mapping)
                    if not COMPUTED.search(key):
                        self.files[key.removeprefix(PREFIX)] = path, key, list(file.get_slice(key).get_shape())

    @property
    def layers(self) -> int:
        return len({name.split(".")[1] for name in self.files if name.startswith("layers.")})

    def read(self, name: str) -> Tensor:
        """In float32."""
        path, key, _ = self.files[name]
        with _open(path) as file:
            tensor = file.get_tensor(key)
        if tensor.dtype not in FLOATS:
            wanted = ", ".join(str(d).removeprefix("torch.") for d in FLOATS)
            raise ExportError(f"{path}: {key} is {str(tensor.dtype).removeprefix('torch.')}; supported are {wanted}")
        return tensor.float()


def _open(path: Path) -> Any:
    try:
        check_regular(path, ExportError)
        return safe_open(path, "pt")
    except FileNotFoundError:
        raise ExportError(f"{path} is missing") from None
    except (SafetensorError, OSError, ValueError) as e:
        if isinstance(e, ExportError):
            raise
        raise ExportError(f"{path}: not a safetensors file: {e}") from None


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.exists():
        names = read_object(index, ExportError).get("weight_map")
        if not isinstance(names, dict) or not names:
            raise ExportError(f"{index} has no weight_map")
        for name in names.values():
            if not isinstance(name, str) or not name.endswith(".safetensors") or Path(name).name != name:
                raise ExportError(f"{index} names {name!r}, which is no *.safetensors file of its folder")
        return _inside(folder, [folder / name for name in dict.fromkeys(names.values())])
    found = _inside(folder, sorted(folder.glob("*.safetensors")))
    if not found:
        others = sorted(p.name for p in folder.glob("*.bin"))
        hint = f"; {others[0]} is of an older kind, convert it first" if others else ""
        raise ExportError(f"{folder}: there are no *.safetensors files{hint}")
    return found


def _inside(folder: Path, paths: list[Path]) -> list[Path]:
    for path in paths:
        check_inside(path, folder, ExportError)
    return paths


def check(config: Config, store: Store) -> None:
    """That the weights are those that config.json asks for, all of them; takes no memory, whatever it asks for."""
    layers = config.layers[: store.layers + 1]  # one that is missing is enough
    with torch.device("meta"):
        sketch = Decoder(replace(config, layers=layers), 1)
    check_names(sketch, store, {OUTPUT} if config.tied else set())


def check_names(sketch: nn.Module, store: Store, ignored: set[str]) -> None:
    """That the weights are those of a module, by name and shape, but for those that are ignored."""
    shapes = {name: list(p.shape) for name, p in sketch.named_parameters()}
    wanted, found = set(shapes) - ignored, set(store.files) - ignored
    problems = [
        f"{kind} {', '.join(sorted(names)[:SHOWN])}{f' and {len(names) - SHOWN} more' * (len(names) > SHOWN)}"
        for kind, names in (("missing are", wanted - found), ("unexpected are", found - wanted))
        if names
    ]
    if problems:
        raise ExportError(f"{store.folder}: the weights are not those of config.json: {'; '.join(problems)}")
    for name in sorted(wanted):
        path, key, shape = store.files[name]
        if shape != shapes[name]:
            raise ExportError(f"{path}: {key} has the shape {shape}; config.json asks for {shapes[name]}")
