"""Language models through `export_llm`: a prompt, then single tokens and several at once, over a key-value cache."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from ptegpu.export import LlmOptions, export_llm, load_decoder
from ptegpu.export.layers import ByteLinear, GroupedEmbedding, GroupedLinear
from tests.saved import Program
from tests.zoo.checkpoints import TOKENS, write

from .making import HALF, Inputs, answered

ROUNDED = 3e-2  # one activation rounded to 8 bits the other way changes a logit by 1e-2
CONTEXT = 256
CHUNKS = [3, 1, 1, 4, 3]


@dataclass(frozen=True)
class Decoder:
    """A random checkpoint of one layer."""

    family: str
    options: LlmOptions = field(default_factory=LlmOptions)
    operators: Mapping[str, int] = field(default_factory=dict)
    tolerance: float = 1e-4

    def program(self, name: str) -> Program:
        with self.checkpoint() as folder:
            export_llm(folder, folder / "model.pte", self.options, check=False)
            data = (folder / "model.pte").read_bytes()
        program = Program(name, data, (), self.tolerance, operators=self.operators)
        widening = None if self.options.quantize == "8da4w" else wide
        return answered(program, {"forward": self.eager()}, {"forward": calls()}, state=True, wide=widening)

    def eager(self) -> nn.Module:
        """Return the decoder in PyTorch, with the weights as they are stored."""
        with self.checkpoint() as folder:
            return load_decoder(folder, self.options)[0]

    @contextmanager
    def checkpoint(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory() as folder:
            yield write(Path(folder), self.family, {"num_hidden_layers": 1, "max_position_embeddings": CONTEXT})


def calls() -> list[Inputs]:
    """Return tokens and the position of the first; the last call overwrites part of the cache."""
    inputs, first = [], 0
    for count in CHUNKS:
        inputs.append((torch.tensor([TOKENS[first : first + count]]), torch.tensor([first])))
        first += count
    return [*inputs, (torch.tensor([TOKENS[-5:]]), torch.tensor([4]))]


def wide(decoder: nn.Module) -> nn.Module:
    """Return the decoder in float64 with dequantized weights."""
    decoder = copy.deepcopy(decoder)
    for name, module in list(decoder.named_modules()):
        new: nn.Module
        if isinstance(module, GroupedEmbedding):
            new = nn.Embedding.from_pretrained(module.weight.dequantized())
        elif isinstance(module, GroupedLinear | ByteLinear):
            grouped = isinstance(module, GroupedLinear)
            stored = module.weight.dequantized() if grouped else module.values * module.scales.unsqueeze(1)
            new = nn.Linear(1, 1)
            new.weight, new.bias = nn.Parameter(stored), None if module.bias is None else nn.Parameter(module.bias)
        else:
            continue
        parent, _, last = name.rpartition(".")
        setattr(decoder.get_submodule(parent), last, new)
    return decoder.double()


FOUR, EIGHT = LlmOptions(quantize="4bit"), LlmOptions(quantize="8da4w")
ROTARY, ATTENTION = "et_vk.apply_rotary_emb_hf.default", "sdpa_with_kv_cache.default"
LINEAR, LINEAR4, LINEAR8 = "aten.linear.default", "et_vk.linear_q4gsw.default", "et_vk.linear_dq8ca_q4gsw.default"
EMBEDDING4, ROUNDING = "et_vk.embedding_q4gsw.default", "torchao.choose_qparams_affine.default"

DECODERS: dict[str, Decoder] = {}
for family in ("llama", "qwen3", "gemma3"):
    DECODERS[family] = Decoder(family, LlmOptions(), {LINEAR: 8, ROTARY: 1})
    DECODERS[f"{family} in 4 bits"] = Decoder(family, FOUR, {LINEAR4: 8, EMBEDDING4: 1})
    DECODERS[f"{family} in 4 bits, 8-bit activations"] = Decoder(family, EIGHT, {LINEAR8: 8, ROUNDING: 5}, ROUNDED)
DECODERS["mistral in 8 bits, f16"] = Decoder(
    "mistral",
    LlmOptions(quantize="8bit", dtype="float16"),
    {"aten._weight_int8pack_mm.default": 8, "aten.embedding.default": 1},
    HALF,
)
