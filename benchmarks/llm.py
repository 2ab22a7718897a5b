"""Decode and prefill of a 4-bit language model of Llama-3.2-1B's shape, beside the same model in PyTorch.

The exported file has no weights: they are filled with random bytes before use. Log-probabilities are compared with
PyTorch in float32 with the same weights, dequantized. Tokens per second are wall time, with all overheads. The times of
the GPU and the host are those of a single call; decoding overlaps them.
"""

from __future__ import annotations

import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ptegpu.format import read_program
from ptegpu.format.delegate import BlobGraph, BlobTensor, read_delegate
from ptegpu.models.text import LanguageModel
from ptegpu.models.text.sampling import Sampler, Sampling

from . import programs
from .harness import COMPILED, Bench, Row, Way

FILE = "llama.pte"
GROUP = 32
LINEAR, NORM = "et_vk.linear_q4gsw.default", "et_vk.rms_norm.default"
CHECKED = 16  # decode steps whose log-probabilities are compared
PEER_ROUNDING = 512  # positions by which PyTorch's cache grows


@dataclass(frozen=True)
class Shape:
    """The shape of the exported model, and the sizes of the measurements."""

    dim: int = 2048
    inner: int = 8192
    layers: int = 16
    heads: int = 32
    kv_heads: int = 8
    vocabulary: int = 128256
    context: int = 8192 + 256
    chunk: int = 2048
    contexts: tuple[int, ...] = (128, 2048, 8192)
    prompts: tuple[int, ...] = (512, 2048)
    steps: int = 128
    head_dim: int = 64
    theta: float = 500000.0
    epsilon: float = 1e-5
    config: dict[str, Any] = field(init=False, default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        self.config.update(
            model_type="llama",
            hidden_size=self.dim,
            intermediate_size=self.inner,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head_dim,
            vocab_size=self.vocabulary,
            max_position_embeddings=self.context,
            rms_norm_eps=self.epsilon,
            rope_theta=self.theta,
            hidden_act="silu",
            tie_word_embeddings=True,
            bos_token_id=0,
            eos_token_id=1,
        )


def shape(quick: bool) -> Shape:
    if not quick:
        return Shape()
    return Shape(64, 128, 2, 4, 2, 512, 96, 32, contexts=(8, 40), prompts=(16, 32), steps=8, head_dim=16)


# --- the program and its weights


def exported(s: Shape) -> bytes:
    """Return the program without its weights."""
    import torch

    from ptegpu.export import LlmOptions, lower, trace
    from ptegpu.export.config import read_config
    from ptegpu.export.decoder import Decoder
    from ptegpu.export.layers import GroupedEmbedding, GroupedLinear, GroupedWeight
    from ptegpu.export.llm import example, metadata
    from ptegpu.export.lowering import NO_LIMITS

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(s.config))
        config = read_config(Path(folder))
    options = LlmOptions(quantize="4bit", group=GROUP, max_seq=s.chunk, max_context=s.context).checked(config)
    decoder = Decoder(config, s.context)
    generator = torch.Generator().manual_seed(0)

    def weight(n: int, k: int) -> GroupedWeight:
        w = GroupedWeight.__new__(GroupedWeight)
        torch.nn.Module.__init__(w)
        w.size = GROUP
        w.register_buffer("packed", torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, generator=generator))
        w.register_buffer("scales", torch.rand((k // GROUP, n), generator=generator))
        return w

    tied = weight(config.vocab, config.dim)
    for module in list(decoder.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, torch.nn.Linear):
                shared = tied if name == "lm_head" else weight(child.out_features, child.in_features)
                setattr(module, name, GroupedLinear(shared))
            elif isinstance(child, torch.nn.Embedding):
                setattr(module, name, GroupedEmbedding(tied))
            elif hasattr(child, "weight") and getattr(child.weight, "is_meta", False):
                child.weight = torch.nn.Parameter(torch.rand(child.weight.shape, generator=generator))
    program = trace(decoder, *example(options, decoder, None))
    outside = {"external_constants_max_data_bytes": 1 << 40, "texture_limits": NO_LIMITS}
    return lower(program, options=outside, constants=metadata(config, options)).data


def blob_of(path: Path) -> BlobGraph:
    file = read_program(path)
    (method,) = [m for m in file.methods if m.name == "forward"]
    (delegate,) = method.delegates
    return read_delegate(delegate.blob, base=delegate.offset, path=str(path))


def fill(blob: BlobGraph, s: Shape) -> dict[str, np.ndarray]:
    """Return data for every constant that the program names: random weights, empty caches, real rotary tables."""
    rng = np.random.default_rng(0)
    data: dict[str, np.ndarray] = {}
    tables = iter((np.cos, np.sin))
    for value in blob.values:
        if not isinstance(value, BlobTensor) or value.constant < 0:
            continue
        key = blob.constants[value.constant].key
        if key is None or key in data:
            continue
        dims, dtype = value.dims, value.dtype.numpy
        if dtype == np.uint8:
            data[key] = rng.integers(0, 256, dims, np.uint8)
        elif len(dims) == 4:
            data[key] = np.zeros(dims, dtype)
        elif len(dims) == 1:
            data[key] = rng.uniform(0.9, 1.1, dims).astype(dtype)
        elif dims == (s.context, s.head_dim):
            data[key] = next(tables)(angles(s))
        else:
            data[key] = (rng.uniform(0.5, 1.5, dims) * 0.2 / math.sqrt(s.dim)).astype(dtype)
    return data


def angles(s: Shape) -> np.ndarray:
    """Return the angles of the rotary embedding, (context, head_dim)."""
    half = s.head_dim // 2
    values = np.arange(s.context)[:, None] * s.theta ** (-np.arange(half) / half)
    return np.concatenate([values, values], -1).astype(np.float32)


class Weights:
    """The file and its weights."""

    def __init__(self, bench: Bench) -> None:
        self.shape = shape(bench.quick)
        self.path = programs.path_of(bench, FILE)
        self.blob = blob_of(self.path)
        self.data = fill(self.blob, self.shape)
        self.views = {key: memoryview(array).cast("B") for key, array in self.data.items()}
        rng = np.random.default_rng(1)
        self.tokens = rng.integers(0, self.shape.vocabulary, self.shape.context)


class Reference:
    """The model in PyTorch, with dequantized weights and a cache of `context` positions."""

    def __init__(self, bench: Bench, weights: Weights, dtype: Any, context: int) -> None:
        self.torch, self.where, self.shape, self.context = bench.torch, bench.where, weights.shape, context
        torch, blob, s = self.torch, weights.blob, weights.shape
        sources = {c.args[-1]: c.args[0] for c in blob.calls if "prepack" in c.operator}

        def constant(value_id: int) -> Any:
            value = blob.values[sources.get(value_id, value_id)]
            assert isinstance(value, BlobTensor)
            key = blob.constants[value.constant].key
            assert key is not None
            return torch.from_numpy(weights.data[key]).to(self.where)

        def dequantized(packed: Any, scales: Any) -> Any:  # (N, K / 2), (K / group, N)
            w = torch.stack([packed & 15, packed >> 4], -1).flatten(1).to(torch.float32) - 8
            return (w.unflatten(1, (-1, GROUP)) * scales.T.unsqueeze(-1)).flatten(1).to(dtype)

        linears = [c for c in blob.calls if c.operator == LINEAR]
        norms = [c for c in blob.calls if c.operator == NORM]
        self.linears = [dequantized(constant(c.args[1]), constant(c.args[2])) for c in linears]
        self.norms = [constant(c.args[1]).to(dtype) for c in norms]
        self.embedding = self.linears[-1]
        turned = torch.from_numpy(angles(s)).to(self.where)
        self.cos, self.sin = torch.cos(turned).to(dtype), torch.sin(turned).to(dtype)
        self.cache = torch.zeros((s.layers, 2, s.kv_heads, context, s.head_dim), device=self.where, dtype=dtype)
        if bench.cuda:
            for tensor in (*self.linears, *self.norms, self.cos, self.sin, self.cache):
                torch._dynamo.mark_static_address(tensor)  # as for a module: CUDA graphs do not copy them

    def __call__(self, tokens: Any, start: Any, mask: Any) -> Any:  # (S), (S) positions, (S, context)
        torch, f, s = self.torch, self.torch.nn.functional, self.shape
        x = self.embedding[tokens]
        cos, sin = self.cos[start].unsqueeze(1), self.sin[start].unsqueeze(1)

        def turn(t: Any) -> Any:
            half = t.shape[-1] // 2
            return t * cos + torch.cat([-t[..., half:], t[..., :half]], -1) * sin

        for k in range(s.layers):
            q, key, v, o, gate, up, down = self.linears[7 * k : 7 * k + 7]
            h = f.rms_norm(x, (x.shape[-1],), self.norms[2 * k], s.epsilon)
            heads = [f.linear(h, w).unflatten(-1, (-1, s.head_dim)) for w in (q, key, v)]
            self.cache[k, 0].index_copy_(1, start, turn(heads[1]).transpose(0, 1))
            self.cache[k, 1].index_copy_(1, start, heads[2].transpose(0, 1))
            rotated = turn(heads[0]).transpose(0, 1).unsqueeze(0)
            kv = self.cache[k].unsqueeze(1)
            y = f.scaled_dot_product_attention(rotated, kv[0], kv[1], mask, enable_gqa=True)
            x = x + f.linear(y[0].transpose(0, 1).flatten(1), o)
            h = f.rms_norm(x, (x.shape[-1],), self.norms[2 * k + 1], s.epsilon)
            x = x + f.linear(f.silu(f.linear(h, gate)) * f.linear(h, up), down)
        x = f.rms_norm(x[-1:], (x.shape[-1],), self.norms[-1], s.epsilon)
        return f.linear(x, self.embedding)

    def place(self, first: int, count: int) -> tuple[Any, Any]:
        """Return positions, and the attention mask of each."""
        start = self.torch.arange(first, first + count, device=self.where)
        return start, self.torch.arange(self.context, device=self.where)[None] <= start[:, None]

    def run(self, tokens: np.ndarray, first: int) -> Any:
        return self(self.torch.from_numpy(tokens).to(self.where), *self.place(first, len(tokens)))

    def fill(self, tokens: np.ndarray, piece: int = 512) -> Any:
        """Fill the cache with all tokens, piece by piece, and return the last logits."""
        for first in range(0, len(tokens), piece):
            logits = self.run(tokens[first : first + piece], first)
        return logits


def reference(bench: Bench, weights: Weights, context: int) -> tuple[np.ndarray, float] | None:
    """Return PyTorch's log-probabilities after `context` tokens, (CHECKED, vocabulary), and the deviation of logits."""
    if bench.torch is None:
        return None
    model = Reference(bench, weights, bench.torch.float32, context + CHECKED)
    logits = [model.fill(weights.tokens[:context])]
    logits += [model.run(weights.tokens[k : k + 1], k) for k in range(context, context + CHECKED - 1)]
    values = bench.torch.cat(logits).float()
    return values.log_softmax(-1).cpu().numpy(), float(values.std())


# --- ptegpu


def weights_of(bench: Bench) -> Weights:
    return bench.shared("llm", lambda: Weights(bench))


def model_of(bench: Bench, way: Way) -> LanguageModel:
    """Return the model for a way, loaded once."""
    weights = weights_of(bench)

    def load() -> LanguageModel:
        return bench.resources.enter_context(LanguageModel(weights.path, data=weights.views, **bench.options(way)))

    return bench.shared(("llm", way), load)


def profiled(bench: Bench, model: LanguageModel, tokens: np.ndarray, position: int) -> dict[str, Any]:
    """Profile one call with greedy sampling."""
    batch = tokens[None].astype(model.signature.tokens.numpy)
    greedy = Sampler(Sampling(temperature=0), model.signature.vocabulary).operands(0, ())
    return bench.profiled(model.runner.method, model.runner.arguments(batch, position, greedy))


def decode(bench: Bench) -> Iterator[Row]:
    """Tokens per second of a 4-bit model of Llama-3.2-1B's shape after contexts of several lengths, batch 1."""
    s = shape(bench.quick)
    for context in s.contexts:
        case = f"context {context}"
        if not bench.wants(case):
            continue
        for peer, make in bench.peers().items():
            yield bench.row("decode", case, peer, torch_decode, bench, make, context)
        for way in bench.ways:
            yield bench.row("decode", case, way, our_decode, bench, way, context)


def our_decode(bench: Bench, way: Way, context: int) -> dict[str, Any]:
    model, weights = model_of(bench, way), weights_of(bench)
    s, tokens = weights.shape, weights.tokens
    prompt = tokens[:context].tolist()
    rates = []
    model.reset()
    until = time.perf_counter() + bench.seconds
    while len(rates) < 6 or time.perf_counter() < until:  # from the second on, the prompt is in the cache
        generation = model.generate(prompt, max_tokens=s.steps, stop_tokens=(), temperature=0)
        rates.append(generation.timings.decode_rate)
    figures = {"value": statistics.median(rates[1:]), "unit": "tok/s"}
    expected = bench.shared(("reference", context), lambda: reference(bench, weights, context))
    if expected is not None:
        targets = tokens[context : context + CHECKED]
        scores = model.score(tokens[: context + CHECKED].tolist(), context)
        logprobs, spread = expected
        figures["error"] = float(np.abs(scores - logprobs[np.arange(CHECKED), targets]).max()) / spread
    return figures | profiled(bench, model, tokens[:1], context)


def prefill(bench: Bench) -> Iterator[Row]:
    """Tokens per second of prompts through a 4-bit model of Llama-3.2-1B's shape, until the first new token."""
    s = shape(bench.quick)
    for prompt in s.prompts:
        case = f"prompt {prompt}"
        if not bench.wants(case):
            continue
        for peer, make in bench.peers().items():
            if peer != COMPILED:
                yield bench.row("prefill", case, peer, torch_prefill, bench, make, prompt)
        for way in bench.ways:
            yield bench.row("prefill", case, way, our_prefill, bench, way, prompt)


def our_prefill(bench: Bench, way: Way, prompt: int) -> dict[str, Any]:
    model, weights = model_of(bench, way), weights_of(bench)
    tokens = weights.tokens[:prompt]
    rates = []
    until = time.perf_counter() + 2 * bench.seconds
    while len(rates) < 5 or time.perf_counter() < until:
        model.reset()
        generation = model.generate(tokens.tolist(), max_tokens=1, stop_tokens=(), temperature=0)
        rates.append(generation.timings.prefill_rate)
    figures = {"value": statistics.median(rates[1:]), "unit": "tok/s", "note": f"chunks of {model.runner.chunk}"}
    expected = bench.shared(("reference", prompt), lambda: reference(bench, weights, prompt))
    if expected is not None:
        logprobs, spread = expected
        figures["error"] = abs(generation.logprobs[0] - float(logprobs[0, generation.tokens[0]])) / spread
    return figures | (profiled(bench, model, tokens, 0) if prompt <= model.runner.chunk else {})


# --- PyTorch


def torch_decode(bench: Bench, make: Callable[[Any], Any], context: int) -> dict[str, Any]:
    torch, weights = bench.cuda, weights_of(bench)
    steps = weights.shape.steps
    room = -(-(context + steps) // PEER_ROUNDING) * PEER_ROUNDING
    bench.cuda_memory()
    model = Reference(bench, weights, torch.bfloat16, room)
    model.fill(weights.tokens[:context])
    call = make(model.__call__)
    rates = []
    for _ in range(4):
        token = torch.zeros(1, dtype=torch.int64, device=bench.where)
        began = time.perf_counter()
        for k in range(steps):
            start, mask = model.place(context + k, 1)
            token = call(token, start, mask).argmax(-1).clone()
            int(token)
        rates.append(steps / (time.perf_counter() - began))
    return {"value": statistics.median(rates[1:]), "unit": "tok/s", "memory": bench.cuda_memory(), "note": "bf16"}


def torch_prefill(bench: Bench, make: Callable[[Any], Any], prompt: int) -> dict[str, Any]:
    torch, weights = bench.cuda, weights_of(bench)
    bench.cuda_memory()
    model = Reference(bench, weights, torch.bfloat16, prompt)
    call = make(model)
    tokens = torch.from_numpy(weights.tokens[:prompt]).to(bench.where)
    start, mask = model.place(0, prompt)
    seconds = bench.wall(lambda: int(call(tokens, start, mask).argmax(-1)))
    return {"value": prompt / seconds, "unit": "tok/s", "memory": bench.cuda_memory(), "note": "bf16"}
