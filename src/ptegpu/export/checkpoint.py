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
from .config import DecoderConfig
from .decoder import Decoder, DecoderNorm, LearnedPositions, Router
from .experts import ByteExperts, FloatExperts, GroupedExperts
from .families import FAMILIES
from .family import NAMES
from .layers import ByteLinear, GroupedEmbedding, GroupedLinear, GroupedWeight
from .quantize import GROUPED

M = TypeVar("M", bound=nn.Module)
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
PREFIXES = re.compile(r"^(model|transformer|gpt_neox)\.")  # of names in checkpoints
COMPUTED = re.compile(
    r"\.(rotary_emb\.inv_freq|(attn|attention)\.(masked_)?bias)$"
)  # tables that every loader computes
SHOWN = 5  # names in a message
OUTPUT = "lm_head"
LOADED = nn.Linear | nn.Embedding | DecoderNorm | LearnedPositions | FloatExperts  # modules with weights of their own
STEP = 32  # elements that the GPU's kernels for 4-bit embeddings take at a time


@dataclass(slots=True)
class Weights:
    """The formats of weights: those requested, and those of the matrices that were loaded."""

    linear: str = "none"  # or 4bit, 8da4w, 8bit
    embedding: str = "float"  # or 4bit
    group: int = 32
    stored: dict[str, int] = field(default_factory=dict)  # the number of matrices in each format
    notes: list[str] = field(default_factory=list)

    def count(self, form: str) -> None:
        self.stored[form] = self.stored.get(form, 0) + 1

    def grouped(self, name: str, columns: int, step: int = 1) -> bool:
        """Count a matrix in groups and return True, or note that its columns do not divide into groups."""
        for divisor in (self.group, step):
            if columns % divisor:
                self.notes.append(f"{name} stays in floats: its {columns} columns are not a multiple of {divisor}")
                return False
        self.count(f"4 bits in groups of {self.group}")
        return True


def load(decoder: Decoder, store: TensorStore, weights: Weights, progress: Progress) -> int:
    """Load all weights of a decoder, and return the number of parameters."""
    config = decoder.config
    modules = [(n, m) for n, m in decoder.named_modules() if isinstance(m, LOADED)]
    parameters = 0
    for done, (name, module) in enumerate(modules):
        progress("Reading weights", done, len(modules))
        sources = {n: store.locate(config, f"{name}.{n}", p.shape) for n, p in module.named_parameters()}
        if config.tied and name == OUTPUT:
            new = _tied_output(decoder, store, weights)
        else:
            parameters += sum(prod(source.shape) for source in sources.values())
            new = _loaded(name, module, store, sources, decoder, weights)
        parent, _, last = name.rpartition(".")
        setattr(decoder.get_submodule(parent), last, new)
    decoder.requires_grad_(False).eval()
    return parameters


def _loaded(
    name: str,
    module: nn.Module,
    store: TensorStore,
    sources: Mapping[str, WeightSource],
    decoder: Decoder,
    weights: Weights,
) -> nn.Module:
    if isinstance(module, FloatExperts):
        return _loaded_experts(name, module, store, sources["weight"], weights)
    weight = store.read(sources["weight"])
    bias = store.read(sources["bias"]) if "bias" in sources else None
    if isinstance(module, DecoderNorm):
        return _with(module, weight + decoder.config.norm_offset, bias)
    if isinstance(module, LearnedPositions):
        return _with(module, weight[: module.context].clone(), None)
    columns = weight.shape[1]
    if isinstance(module, nn.Embedding):
        if weights.embedding == "4bit" and weights.grouped(name, columns, STEP):
            return GroupedEmbedding(GroupedWeight(weight, weights.group))
    elif not isinstance(module, Router):
        if weights.linear == "8bit":
            weights.count("8 bits per row")
            return ByteLinear(weight, bias)
        if weights.linear in GROUPED and weights.grouped(name, columns):
            return GroupedLinear(GroupedWeight(weight, weights.group), bias, dynamic=weights.linear == "8da4w")
    weights.count("float")
    return _with(module, weight, bias)


def _loaded_experts(
    name: str, module: FloatExperts, store: TensorStore, source: WeightSource, weights: Weights
) -> nn.Module:
    """Return quantized experts, of which one at a time is in floats."""
    columns = source.shape[1]
    if weights.linear == "8bit" and columns % 4 == 0:
        weights.count("8 bits per row")
        return ByteExperts(store.parts(source))
    if weights.linear in GROUPED and weights.grouped(name, columns):
        return GroupedExperts(store.parts(source), weights.group)
    weights.count("float")
    return _with(module, store.read(source), None)


def _tied_output(decoder: Decoder, store: TensorStore, weights: Weights) -> nn.Module:
    """Return the output layer that shares the embedding's weight, if both have the same format."""
    embedding, output = decoder.embed_tokens, decoder.lm_head
    if isinstance(embedding, GroupedEmbedding) and weights.linear in GROUPED:
        return GroupedLinear(embedding.weight, dynamic=weights.linear == "8da4w")
    floats = weights.linear == "none" or (weights.linear != "8bit" and decoder.config.dim % weights.group)
    if isinstance(embedding, nn.Embedding) and floats:
        return _with(output, embedding.weight, None)
    weights.notes.append("embedding and output layer are one matrix in the checkpoint, stored in two formats here")
    sources = {"weight": store.locate(decoder.config, "embed_tokens.weight", output.weight.shape)}
    return _loaded(OUTPUT, output, store, sources, decoder, weights)


def _with(module: nn.Module, weight: Tensor, bias: Tensor | None) -> nn.Module:
    module.weight = weight if isinstance(weight, nn.Parameter) else nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        module.bias = nn.Parameter(bias, requires_grad=False)
    return module


@dataclass(frozen=True, slots=True)
class WeightSource:
    """The place of a weight in a checkpoint: the concatenation of some tensors, or rows of one."""

    names: tuple[str, ...]
    stored: tuple[int, ...]  # the shape of each tensor
    shape: tuple[int, ...]  # of the weight
    total: int = 0  # rows of the tensor, if `rows` selects some
    rows: Callable[[], Tensor] | None = None  # the indices of rows; None: all
    transposed: bool = False


class TensorStore:
    """The tensors of a checkpoint by name without prefix, from one safetensors file or several."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._opened: tuple[Path, Any] | None = None  # the file that was read last
        self.files: dict[str, tuple[Path, str, list[int]]] = {}  # file, name in it, shape
        for path in _weight_files(folder):
            with _open(path) as file:
                for key in file.keys():  # noqa: SIM118 (not a mapping)
                    if not COMPUTED.search(key):
                        self.files[PREFIXES.sub("", key)] = path, key, list(file.get_slice(key).get_shape())

    def part(self, prefix: str, *others: str) -> TensorStore:
        """Return a store of the tensors with a prefix, which their names lose, and of some others."""
        part = copy(self)
        part.files = {n.removeprefix(prefix): f for n, f in self.files.items() if n.startswith(prefix)}
        part.files |= {n: self.files[n] for n in others if n in self.files}
        return part

    def depth(self, config: DecoderConfig) -> int:
        """Return the number of layers."""
        prefix = str(FAMILIES[config.family].names.get("layers", "layers")) + "."
        return len({name.split(".")[1] for name in self.files if name.startswith(prefix)})

    def read(self, source: WeightSource) -> Tensor:
        """Return a weight in float32."""
        if len(source.names) == 1:
            return next(self.parts(source)).reshape(source.shape)
        weight = torch.empty((len(source.names), prod(source.shape) // len(source.names)))
        for row, part in zip(weight, self.parts(source)):
            row.copy_(part.flatten())
        return weight.reshape(source.shape)

    def parts(self, source: WeightSource) -> Iterator[Tensor]:
        """Yield the tensors of a weight, one at a time, in float32."""
        for name in source.names:
            path, key, _ = self.files[name]
            if self._opened is None or self._opened[0] != path:
                self._opened = path, _open(path)
            tensor = self._opened[1].get_tensor(key)
            if tensor.dtype not in FLOATS:
                dtype, *supported = (str(d).removeprefix("torch.") for d in (tensor.dtype, *FLOATS))
                raise ExportError(f"{path}: {key} is {dtype}; supported are {', '.join(supported)}")
            tensor = tensor.t() if source.transposed else tensor
            if source.rows is not None:
                tensor = tensor.reshape(source.total, -1)[source.rows()]
            yield tensor.float().contiguous()

    def tensor(self, name: str) -> Tensor:
        """Return a tensor by its name, in float32."""
        shape = tuple(self.files[name][2])
        return self.read(WeightSource((name,), shape, shape))

    def locate(self, config: DecoderConfig, name: str, shape: Sequence[int]) -> WeightSource:
        """Return the place of a weight of the decoder, which has this shape."""
        family = FAMILIES[config.family]
        module, _, leaf = name.rpartition(".")
        prefix, inner = "", module
        if module.startswith("layers."):
            _, number, inner = module.split(".", 2)
            prefix = f"{family.names.get('layers', 'layers')}.{number}."
        theirs = family.names.get(inner, NAMES.get(inner, inner))
        candidates = [f"{prefix}{each}.{leaf}" for each in ((theirs,) if isinstance(theirs, str) else theirs)]
        pattern = next((candidate for candidate in candidates if candidate in self.files), candidates[-1])
        transposed = family.transposed and inner.endswith("_proj") and leaf == "weight"
        stored = tuple(shape)
        total, rows = _rows(config, inner)
        if inner in family.fused_modules:
            stored = (total, *stored[1:])
        if transposed:
            stored = stored[::-1]
        names: tuple[str, ...] = (pattern,)
        if "*" in pattern:  # one for each expert, or for each head of a norm
            of_experts = config.experts is not None and ".expert_" in inner
            count = config.experts.count if config.experts and of_experts else shape[0]
            names = tuple(pattern.replace("*", str(k)) for k in range(count))
            stored = (shape[0] // count, *stored[1:]) if of_experts else stored[1:]
        return WeightSource(names, stored, tuple(shape), total, rows, transposed)


def _rows(config: DecoderConfig, module: str) -> tuple[int, Callable[[], Tensor] | None]:
    """Return the rows of the tensor that a module shares or reorders, and the indices of its own; None: all."""
    family, dim = FAMILIES[config.family], config.head_dim
    heads, kv_heads = config.heads, config.kv_heads
    part, fused = module.rpartition(".")[2], module in family.fused_modules
    halves = config.interleaved and part in ("q_proj", "k_proj", "q_norm", "k_norm")
    if part in ("gate_proj", "up_proj") and fused:
        first = 0 if part == "gate_proj" else config.hidden
        return 2 * config.hidden, lambda: torch.arange(first, first + config.hidden)
    if part in ("q_proj", "k_proj", "v_proj") and fused:
        total, which = (heads + 2 * kv_heads) * dim, "qkv".index(part[0])
        if family.fused == "rows":
            ends = [0, heads * dim, (heads + kv_heads) * dim, total]
            rows = lambda: torch.arange(ends[which], ends[which + 1])
        else:
            slices = slice(0, -2), slice(-2, -1), slice(-1, None)
            rows = lambda: torch.arange(total).view(kv_heads, -1, dim)[:, slices[which]].flatten()
        return total, (lambda: _in_halves(config, rows())) if halves else rows
    if halves:
        shared = part.endswith("_norm") and config.qk_norm == "head"  # one norm for all heads
        total = dim if shared else (heads if part[0] == "q" else kv_heads) * dim
        return total, lambda: _in_halves(config, torch.arange(total))
    return 0, None


def _in_halves(config: DecoderConfig, rows: Tensor) -> Tensor:
    """Reorder the rows of heads, (heads · D): of the R rotated ones, pairs of neighbours become two halves."""
    rotated = {layer.rope.dim for layer in config.layers if layer.rope}
    if len(rotated) > 1:
        raise ExportError(
            f"{config.family}: layers that rotate {sorted(rotated)} interleaved elements are not supported"
        )
    size = rotated.pop() if rotated else 0
    by_head = rows.view(-1, config.head_dim)
    halves = by_head[:, :size].reshape(-1, size // 2, 2).transpose(1, 2).flatten(1)  # (heads, R)
    return torch.cat((halves, by_head[:, size:]), dim=1).flatten()


def _open(path: Path) -> Any:
    try:
        check_regular(path, ExportError)
        return safe_open(path, "pt")
    except FileNotFoundError:
        raise ExportError(f"{path} is missing") from None
    except ExportError:
        raise
    except (SafetensorError, OSError, ValueError) as e:
        raise ExportError(f"{path}: not a safetensors file: {e}") from None


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.exists():
        names = read_object(index, ExportError).get("weight_map")
        if not isinstance(names, dict) or not names:
            raise ExportError(f"{index} has no weight_map")
        for name in names.values():
            if not isinstance(name, str) or not name.endswith(".safetensors") or Path(name).name != name:
                raise ExportError(
                    f"{index}: invalid file {name!r}: expected the name of a *.safetensors file beside it"
                )
        files = [folder / name for name in dict.fromkeys(names.values())]
    else:
        files = sorted(folder.glob("*.safetensors"))
    if not files:
        others = sorted(p.name for p in folder.glob("*.bin"))
        hint = f"; {others[0]} has an older format, convert it first" if others else ""
        raise ExportError(f"{folder}: there are no *.safetensors files{hint}")
    for path in files:
        check_inside(path, folder, ExportError)
    return files


def check_weights(config: DecoderConfig, store: TensorStore) -> None:
    """Raise ExportError unless the weights are those of the config. Needs no memory, whatever the config says."""
    layers = config.layers[: store.depth(config) + 1]  # one missing layer is enough
    with torch.device("meta"):
        sketch = Decoder(replace(config, layers=layers), 1)
    output = f"{OUTPUT}.weight"
    sources = [store.locate(config, n, p.shape) for n, p in sketch.named_parameters() if n != output or not config.tied]
    by_name = {name: source for source in sources for name in source.names}
    ignored = set(store.locate(config, output, ()).names) if config.tied else set()
    _check_sources(store, by_name, ignored)


def load_plain(make: Callable[[], M], store: TensorStore, progress: Progress, ignored: Collection[str] = ()) -> M:
    """Return a module in float32 whose parameters have the names and shapes of the checkpoint.

    `ignored` parameters may be missing, and are not read.
    """
    with torch.device("meta"):
        sketch = make().named_parameters()
    sources = {name: WeightSource((name,), tuple(p.shape), tuple(p.shape)) for name, p in sketch if name not in ignored}
    _check_sources(store, sources, ignored)
    module = make()
    for done, (name, source) in enumerate(sources.items()):
        progress("Reading weights", done, len(sources))
        parent, _, last = name.rpartition(".")
        setattr(module.get_submodule(parent), last, nn.Parameter(store.read(source), requires_grad=False))
    return module.eval()


def _check_sources(store: TensorStore, sources: Mapping[str, WeightSource], ignored: Collection[str]) -> None:
    """Raise ExportError unless a checkpoint has exactly these weights, in these shapes, and perhaps ignored ones."""
    problems = [
        f"{kind} {', '.join(sorted(names)[:SHOWN])}{f' and {len(names) - SHOWN} more' * (len(names) > SHOWN)}"
        for kind, names in (
            ("missing are", sources.keys() - store.files.keys()),
            ("unexpected are", store.files.keys() - sources.keys() - set(ignored)),
        )
        if names
    ]
    if problems:
        raise ExportError(f"{store.folder}: the weights are not those of config.json: {'; '.join(problems)}")
    for name, source in sorted(sources.items()):
        path, key, shape = store.files[name]
        if shape != list(source.stored):
            raise ExportError(f"{path}: {key} has the shape {shape}; config.json requires {list(source.stored)}")
