"""The weights of a Hugging Face checkpoint into a `Decoder`, quantized on the way, one tensor at a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor, nn

from ..errors import ExportError
from ..files import check_inside, check_regular, read_object
from ..progress import Progress
from .backend import SafetensorError, safe_open, torch
from .config import Config
from .decoder import Decoder, Norm, Positions, Router
from .experts import ByteExperts, Experts, GroupedExperts
from .families import FAMILIES
from .family import NAMES
from .layers import ByteLinear, GroupedEmbedding, GroupedLinear, GroupedWeight

M = TypeVar("M", bound=nn.Module)
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
PREFIXES = re.compile(r"^(model|transformer|gpt_neox)\.")  # of names in checkpoints
COMPUTED = re.compile(r"\.(rotary_emb\.inv_freq|(attn|attention)\.(masked_)?bias)$")  # every loader makes it anew
SHOWN = 5  # names in a message
OUTPUT = "lm_head"
LOADED = nn.Linear | nn.Embedding | Norm | Positions | Experts  # modules with weights of their own
STEP = 32  # elements that the GPU's kernels for 4-bit embeddings take at a time


@dataclass(slots=True)
class Weights:
    """How weights are stored, and what came of it."""

    linear: str = "none"  # or 4bit, 8da4w, 8bit
    embedding: str = "float"  # or 4bit
    group: int = 32
    stored: dict[str, int] = field(default_factory=dict)  # matrices, by the way they are stored
    notes: list[str] = field(default_factory=list)

    def count(self, form: str) -> None:
        self.stored[form] = self.stored.get(form, 0) + 1


def load(decoder: Decoder, store: Store, weights: Weights, progress: Progress) -> int:
    """Loads all weights; how many parameters they are."""
    config = decoder.config
    modules = [(n, m) for n, m in decoder.named_modules() if isinstance(m, LOADED)]
    parameters = 0
    for done, (name, module) in enumerate(modules):
        progress("Reading weights", done, len(modules))
        wanted = {n: store.source(config, f"{name}.{n}", p.shape) for n, p in module.named_parameters()}
        if config.tied and name == OUTPUT:
            new = _tied_output(decoder, store, weights)
        else:
            parameters += sum(prod(source.shape) for source in wanted.values())
            new = _loaded(name, module, store, wanted, decoder, weights)
        parent, _, last = name.rpartition(".")
        setattr(decoder.get_submodule(parent), last, new)
    decoder.requires_grad_(False).eval()
    return parameters


def _loaded(
    name: str, module: nn.Module, store: Store, wanted: Mapping[str, Source], decoder: Decoder, weights: Weights
) -> nn.Module:
    if isinstance(module, Experts):
        return _loaded_experts(name, module, store, wanted["weight"], weights)
    weight = store.read(wanted["weight"])
    bias = store.read(wanted["bias"]) if "bias" in wanted else None
    if isinstance(module, Norm):
        return _with(module, weight + decoder.config.norm_offset, bias)
    if isinstance(module, Positions):
        return _with(module, weight[: module.context].clone(), None)
    if isinstance(module, nn.Embedding):
        if weights.embedding == "4bit" and _fits(name, weight.shape[1], weights, step=STEP):
            weights.count(f"4 bits in groups of {weights.group}")
            return GroupedEmbedding(GroupedWeight(weight, weights.group))
        weights.count("float")
        return _with(module, weight, None)
    if isinstance(module, Router):
        weights.count("float")
        return _with(module, weight, bias)
    if weights.linear == "8bit":
        weights.count("8 bits per row")
        return ByteLinear(weight, bias)
    if weights.linear != "none" and _fits(name, weight.shape[1], weights):
        weights.count(f"4 bits in groups of {weights.group}")
        return GroupedLinear(GroupedWeight(weight, weights.group), bias, dynamic=weights.linear == "8da4w")
    weights.count("float")
    return _with(module, weight, bias)


def _loaded_experts(name: str, module: Experts, store: Store, source: Source, weights: Weights) -> nn.Module:
    """One expert at a time."""
    columns = source.shape[1]
    if weights.linear == "8bit" and columns % 4 == 0:
        weights.count("8 bits per row")
        return ByteExperts(store.parts(source))
    if weights.linear in ("4bit", "8da4w") and _fits(name, columns, weights):
        weights.count(f"4 bits in groups of {weights.group}")
        return GroupedExperts(store.parts(source), weights.group)
    weights.count("float")
    return _with(module, store.read(source), None)


def _fits(name: str, columns: int, weights: Weights, step: int = 1) -> bool:
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
    wanted = {"weight": store.source(decoder.config, "embed_tokens.weight", output.weight.shape)}
    return _loaded(OUTPUT, output, store, wanted, decoder, weights)


def _with(module: nn.Module, weight: Tensor, bias: Tensor | None) -> nn.Module:
    module.weight = weight if isinstance(weight, nn.Parameter) else nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        module.bias = nn.Parameter(bias, requires_grad=False)
    return module


@dataclass(frozen=True, slots=True)
class Source:
    """Where a weight of the decoder is in a checkpoint: all of some tensors, one after the other, or rows of one."""

    names: tuple[str, ...]
    stored: tuple[int, ...]  # the shape of each of them
    shape: tuple[int, ...]  # of the weight
    total: int = 0  # rows in all, where some are taken
    rows: Callable[[], Tensor] | None = None  # which, None: all
    transposed: bool = False


class Store:
    """Tensors by their names without prefix, from one safetensors file or several."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._opened: tuple[Path, Any] | None = None  # the file that was read last
        self.files: dict[str, tuple[Path, str, list[int]]] = {}  # file, name in it, shape
        for path in _weight_files(folder):
            with _open(path) as file:
                for key in file.keys():  # noqa: SIM118 (not a mapping)
                    if not COMPUTED.search(key):
                        self.files[PREFIXES.sub("", key)] = path, key, list(file.get_slice(key).get_shape())

    def part(self, prefix: str, *others: str) -> Store:
        """Of the tensors whose names begin with it, without it, and of some others."""
        made = copy(self)
        found = {n.removeprefix(prefix): f for n, f in self.files.items() if n.startswith(prefix)}
        made.files = found | {n: self.files[n] for n in others if n in self.files}
        return made

    def depth(self, config: Config) -> int:
        """How many layers there are."""
        prefix = str(FAMILIES[config.family].names.get("layers", "layers")) + "."
        return len({name.split(".")[1] for name in self.files if name.startswith(prefix)})

    def read(self, source: Source) -> Tensor:
        """In float32."""
        if len(source.names) == 1:
            return next(self.parts(source)).reshape(source.shape)
        whole = torch.empty((len(source.names), prod(source.shape) // len(source.names)))
        for row, part in zip(whole, self.parts(source)):
            row.copy_(part.flatten())
        return whole.reshape(source.shape)

    def parts(self, source: Source) -> Iterator[Tensor]:
        """The tensors that it consists of, one at a time, in float32."""
        for name in source.names:
            path, key, _ = self.files[name]
            tensor = self._file(path).get_tensor(key)
            if tensor.dtype not in FLOATS:
                wanted = ", ".join(str(d).removeprefix("torch.") for d in FLOATS)
                given = str(tensor.dtype).removeprefix("torch.")
                raise ExportError(f"{path}: {key} is {given}; supported are {wanted}")
            tensor = tensor.t() if source.transposed else tensor
            if source.rows is not None:
                tensor = tensor.reshape(source.total, -1)[source.rows()]
            yield tensor.float().contiguous()

    def _file(self, path: Path) -> Any:
        """Opened once for the tensors that follow each other in it."""
        if self._opened is None or self._opened[0] != path:
            self._opened = path, _open(path)
        return self._opened[1]

    def whole(self, name: str) -> Tensor:
        """A tensor by its name, in float32."""
        shape = tuple(self.files[name][2])
        return self.read(Source((name,), shape, shape))

    def source(self, config: Config, name: str, shape: Sequence[int]) -> Source:
        """Of a weight of the decoder, which has this shape."""
        family = FAMILIES[config.family]
        module, _, leaf = name.rpartition(".")
        at, inner = "", module
        if module.startswith("layers."):
            _, number, inner = module.split(".", 2)
            at = f"{family.names.get('layers', 'layers')}.{number}."
        theirs = family.names.get(inner, NAMES.get(inner, inner))
        several = (theirs,) if isinstance(theirs, str) else theirs
        known = [f"{at}{each}.{leaf}" for each in several]
        found = next((each for each in known if each in self.files), known[-1])
        transposed = family.transposed and inner.endswith("_proj") and leaf == "weight"
        stored = tuple(shape)
        total, rows = _rows(config, inner)
        if inner in family.fused_modules:
            stored = (total, *stored[1:])
        if transposed:
            stored = stored[::-1]
        names: tuple[str, ...] = (found,)
        if "*" in found:  # one for each expert, or for each head of a norm
            of_experts = config.experts is not None and ".expert_" in inner
            count = config.experts.count if config.experts and of_experts else shape[0]
            names = tuple(found.replace("*", str(k)) for k in range(count))
            stored = (shape[0] // count, *stored[1:]) if of_experts else stored[1:]
        return Source(names, stored, tuple(shape), total, rows, transposed)


def _rows(config: Config, module: str) -> tuple[int, Callable[[], Tensor] | None]:
    """Which rows, of how many, are a module's; None: all."""
    family, dim = FAMILIES[config.family], config.head_dim
    heads, shared = config.heads, config.kv_heads
    part, fused = module.rpartition(".")[2], module in family.fused_modules
    halves = config.interleaved and part in ("q_proj", "k_proj", "q_norm", "k_norm")
    if part in ("gate_proj", "up_proj") and fused:
        first = 0 if part == "gate_proj" else config.hidden
        return 2 * config.hidden, lambda: torch.arange(first, first + config.hidden)
    if part in ("q_proj", "k_proj", "v_proj") and fused:
        total, which = (heads + 2 * shared) * dim, "qkv".index(part[0])
        if family.fused == "rows":
            ends = [0, heads * dim, (heads + shared) * dim, total]
            rows = lambda: torch.arange(ends[which], ends[which + 1])
        else:
            places = slice(0, -2), slice(-2, -1), slice(-1, None)
            rows = lambda: torch.arange(total).view(shared, -1, dim)[:, places[which]].flatten()
        return total, (lambda: _in_halves(config, rows())) if halves else rows
    if halves:
        one = part.endswith("_norm") and config.qk_norm == "head"  # a norm that all heads share
        total = dim if one else (heads if part[0] == "q" else shared) * dim
        return total, lambda: _in_halves(config, torch.arange(total))
    return 0, None


def _in_halves(config: Config, rows: Tensor) -> Tensor:
    """Reorder the rows of heads, (heads · D): of the R that are turned, pairs of neighbours become two halves."""
    turned = {layer.rope.dim for layer in config.layers if layer.rope}
    if len(turned) > 1:
        raise ExportError(f"{config.family}: layers that turn {sorted(turned)} interleaved elements are not supported")
    size = turned.pop() if turned else 0
    by_head = rows.view(-1, config.head_dim)
    halves = by_head[:, :size].reshape(-1, size // 2, 2).transpose(1, 2).flatten(1)  # (heads, R)
    return torch.cat((halves, by_head[:, size:]), dim=1).flatten()


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
    layers = config.layers[: store.depth(config) + 1]  # one that is missing is enough
    with torch.device("meta"):
        sketch = Decoder(replace(config, layers=layers), 1)
    output = f"{OUTPUT}.weight"
    sources = [store.source(config, n, p.shape) for n, p in sketch.named_parameters() if n != output or not config.tied]
    wanted = {name: source for source in sources for name in source.names}
    ignored = set(store.source(config, output, ()).names) if config.tied else set()
    check_sources(store, wanted, ignored)


def load_plain(make: Callable[[], M], store: Store, progress: Progress, ignored: Collection[str] = ()) -> M:
    """Return a module with weights in float32 that have the names and shapes of the checkpoint; `ignored` ones, which
    it may lack, are not read."""
    with torch.device("meta"):
        sketch = make().named_parameters()
    sources = {name: Source((name,), tuple(p.shape), tuple(p.shape)) for name, p in sketch if name not in ignored}
    check_sources(store, sources, ignored)
    module = make()
    for done, (name, source) in enumerate(sources.items()):
        progress("Reading weights", done, len(sources))
        parent, _, last = name.rpartition(".")
        setattr(module.get_submodule(parent), last, nn.Parameter(store.read(source), requires_grad=False))
    return module.eval()


def check_sources(store: Store, wanted: Mapping[str, Source], ignored: Collection[str] = ()) -> None:
    """That a checkpoint has these weights, in these shapes, and no others but those that are ignored."""
    problems = [
        f"{kind} {', '.join(sorted(names)[:SHOWN])}{f' and {len(names) - SHOWN} more' * (len(names) > SHOWN)}"
        for kind, names in (
            ("missing are", wanted.keys() - store.files.keys()),
            ("unexpected are", store.files.keys() - wanted.keys() - set(ignored)),
        )
        if names
    ]
    if problems:
        raise ExportError(f"{store.folder}: the weights are not those of config.json: {'; '.join(problems)}")
    for name, source in sorted(wanted.items()):
        path, key, shape = store.files[name]
        if shape != list(source.stored):
            raise ExportError(f"{path}: {key} has the shape {shape}; config.json asks for {list(source.stored)}")
