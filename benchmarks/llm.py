"""Decode and prefill of a 4-bit language model, ptegpu against PyTorch with CUDA where that is installed.

    python -m benchmarks.llm make [--out llama-1b.pte]     where the export packages are
    python -m benchmarks.llm run llama-1b.pte [--json]     where the GPU is

`make` exports a model of Llama-3.2-1B's shape (16 layers, 2048 wide, 32/8 heads of 64, FFN 8192, vocabulary 128,256,
tied embeddings, groups of 32) and leaves its weights out, so that the file is small enough to carry. `run` fills them
with random bytes of the right kind on the spot, measures decode at a context of 128 and prefill of 512 tokens, and
holds the logits to PyTorch in float32 with the same weights, dequantized.

Tokens per second are wall time, everything included. `step_gpu_ms` is the one pass of a decode step by timestamps,
`step_host_ms` what a single call adds to it. Bandwidth counts the weights once per token.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import ptegpu
from ptegpu.format import BlobGraph, BlobTensor, read_delegate, read_program
from ptegpu.llm import LanguageModel

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 128256,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
}
GROUP, CONTEXT, CHUNK = 32, 1024, 512
LINEAR, EMBEDDING = "et_vk.linear_q4gsw.default", "et_vk.embedding_q4gsw.default"


def make(out: Path, layers: int) -> None:
    """The program without its weights."""
    import torch

    from ptegpu.export import Options, lower, trace
    from ptegpu.export.config import read_config
    from ptegpu.export.decoder import Decoder
    from ptegpu.export.layers import GroupedEmbedding, GroupedLinear, GroupedWeight
    from ptegpu.export.llm import example, metadata

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": layers}))
        config = read_config(Path(folder))
    options = Options(quantize="4bit", group=GROUP, max_seq=CHUNK, max_context=CONTEXT).checked(config)
    decoder = Decoder(config, CONTEXT)
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
    program = trace(decoder, *example(options))
    outside = {"external_constants_max_data_bytes": 1 << 40}
    data = lower(program, options=outside, constants=metadata(config, options)).data
    out.write_bytes(data)
    print(f"{out}: {len(data):,} bytes")


def blob_of(path: Path) -> BlobGraph:
    file = read_program(path)
    (method,) = [m for m in file.methods if m.name == "forward"]
    (delegate,) = method.delegates
    return read_delegate(delegate.blob, base=delegate.offset, path=str(path))


def fill(blob: BlobGraph, seed: int = 0) -> dict[str, np.ndarray]:
    """Bytes for every constant that the program names: weights at random, caches empty, rotary tables as they are."""
    rng = np.random.default_rng(seed)
    found: dict[str, np.ndarray] = {}
    tables = 0
    for value in blob.values:
        if not isinstance(value, BlobTensor) or value.constant < 0:
            continue
        key = blob.constants[value.constant].key
        if key is None or key in found:
            continue
        shape, dtype = value.dims, value.dtype.numpy
        if dtype == np.uint8:
            found[key] = rng.integers(0, 256, shape, np.uint8)
        elif len(shape) == 4:
            found[key] = np.zeros(shape, dtype)
        elif len(shape) == 1:
            found[key] = rng.uniform(0.9, 1.1, shape).astype(dtype)
        elif shape == (CONTEXT, CONFIG["head_dim"]):
            found[key] = rotary(tables)
            tables += 1
        else:
            found[key] = (rng.uniform(0.5, 1.5, shape) * 0.2 / math.sqrt(CONFIG["hidden_size"])).astype(dtype)
    return found


def rotary(number: int) -> np.ndarray:
    half = CONFIG["head_dim"] // 2
    angles = np.arange(CONTEXT)[:, None] * CONFIG["rope_theta"] ** (-np.arange(half) / half)
    angles = np.concatenate([angles, angles], -1)
    return (np.sin(angles) if number else np.cos(angles)).astype(np.float32)


class Reference:
    """The same model in PyTorch, with the weights dequantized."""

    def __init__(self, blob: BlobGraph, data: dict[str, np.ndarray], dtype: Any) -> None:
        import torch

        self.torch = torch

        def constant(value_id: int) -> np.ndarray:
            value = blob.values[sources.get(value_id, value_id)]
            assert isinstance(value, BlobTensor)
            key = blob.constants[value.constant].key
            assert key is not None
            return data[key]

        def dequantized(packed: np.ndarray, scales: np.ndarray) -> Any:  # (N, K / 2), (K / group, N)
            p = torch.from_numpy(packed).cuda()
            w = torch.stack([p & 15, p >> 4], -1).flatten(1).to(torch.float32) - 8
            s = torch.from_numpy(np.ascontiguousarray(scales.T)).cuda()
            return (w.unflatten(1, (-1, GROUP)) * s.unsqueeze(-1)).flatten(1).to(dtype)

        sources = {c.args[-1]: c.args[0] for c in blob.calls if "prepack" in c.operator}
        linears = [c for c in blob.calls if c.operator == LINEAR]
        norms = [c for c in blob.calls if c.operator == "et_vk.rms_norm.default"]
        self.linears = [dequantized(constant(c.args[1]), constant(c.args[2])) for c in linears]
        self.norms = [torch.from_numpy(constant(c.args[1])).cuda().to(dtype) for c in norms]
        self.embedding = self.linears[-1]
        self.cos, self.sin = (torch.from_numpy(rotary(k)).cuda().to(dtype) for k in (0, 1))
        self.layers = (len(self.linears) - 1) // 7
        shape = (self.layers, 2, CONFIG["num_key_value_heads"], CONTEXT, CONFIG["head_dim"])
        self.cache = torch.zeros(shape, device="cuda", dtype=dtype)
        for tensor in (*self.linears, *self.norms, self.cos, self.sin, self.cache):
            torch._dynamo.mark_static_address(tensor)  # as of a module: CUDA graphs copy none, and may write the cache

    def __call__(self, tokens: Any, start: Any, mask: Any) -> Any:  # (S), (S) positions, (S, context)
        torch, f = self.torch, self.torch.nn.functional
        x = self.embedding[tokens]
        cos, sin = self.cos[start].unsqueeze(1), self.sin[start].unsqueeze(1)

        def turn(t: Any) -> Any:
            half = t.shape[-1] // 2
            return t * cos + torch.cat([-t[..., half:], t[..., :half]], -1) * sin

        for k in range(self.layers):
            q, key, v, o, gate, up, down = self.linears[7 * k : 7 * k + 7]
            h = f.rms_norm(x, (x.shape[-1],), self.norms[2 * k], CONFIG["rms_norm_eps"])
            heads = [f.linear(h, w).unflatten(-1, (-1, CONFIG["head_dim"])) for w in (q, key, v)]
            self.cache[k, 0].index_copy_(1, start, turn(heads[1]).transpose(0, 1))
            self.cache[k, 1].index_copy_(1, start, heads[2].transpose(0, 1))
            rotated = turn(heads[0]).transpose(0, 1).unsqueeze(0)
            kv = self.cache[k].unsqueeze(1)
            y = f.scaled_dot_product_attention(rotated, kv[0], kv[1], mask, enable_gqa=True)
            x = x + f.linear(y[0].transpose(0, 1).flatten(1), o)
            h = f.rms_norm(x, (x.shape[-1],), self.norms[2 * k + 1], CONFIG["rms_norm_eps"])
            x = x + f.linear(f.silu(f.linear(h, gate)) * f.linear(h, up), down)
        x = f.rms_norm(x[-1:], (x.shape[-1],), self.norms[-1], CONFIG["rms_norm_eps"])
        return f.linear(x, self.embedding)

    def run(self, tokens: np.ndarray, first: int) -> Any:
        torch = self.torch
        start = torch.arange(first, first + len(tokens), device="cuda")
        mask = torch.arange(CONTEXT, device="cuda")[None] <= start[:, None]
        with torch.no_grad():
            return self(torch.from_numpy(tokens).cuda(), start, mask)


def check(program: ptegpu.Program, reference: Reference, tokens: np.ndarray, prompt: int) -> dict[str, float]:
    """The largest difference of a logit, relative to their spread: after a prompt, and after one more token."""
    worst = {}
    for name, first, end in (("prefill", 0, prompt), ("decode", prompt, prompt + 1)):
        logits = program(tokens[None, first:end], np.array([first]))[0]
        want = reference.run(tokens[first:end], first)[0].float().cpu().numpy()
        worst[name] = float(np.abs(logits - want).max() / want.std())
    return worst


def step_times(program: ptegpu.Program, tokens: np.ndarray, context: int) -> dict[str, float]:
    """One decode step by itself, without the sampler: the GPU's time in its one pass, and what the host adds.

    The benchmark's decode overlaps the two; a single call cannot.
    """
    profile = program.method("forward").profile(tokens[None, :1], np.array([context]), repeats=20)
    return {"step_gpu_ms": profile.pass_seconds * 1e3, "step_host_ms": profile.host_seconds * 1e3}


def measure(model: LanguageModel, tokens: np.ndarray, context: int, prompt: int, steps: int) -> dict[str, float]:
    warm(model, tokens[:context])
    decode = []
    for _ in range(5):
        model.reset()
        decode.append(model.generate(tokens[:context].tolist(), max_tokens=steps, stop_tokens=()).timings.decode_rate)
    before = model.program.device.counters.snapshot()
    model.generate(tokens[:context].tolist(), max_tokens=steps, stop_tokens=())  # the prompt is cached: only steps
    ran = model.program.device.counters.since(before)
    prefill = []
    for _ in range(8):
        model.reset()
        prefill.append(model.generate(tokens[:prompt].tolist(), max_tokens=1, stop_tokens=()).timings.prefill_rate)
    return {
        "decode_tokens_per_second": statistics.median(decode),
        "prefill_tokens_per_second": statistics.median(prefill),
        "dispatches_per_token": ran.dispatches // ran.submits,
    }


def warm(model: LanguageModel, tokens: np.ndarray) -> None:
    """Pipelines compiled, clocks up."""
    until = time.time() + 1.0
    while time.time() < until:
        model.reset()
        model.generate(tokens.tolist(), max_tokens=16, stop_tokens=())


def measure_torch(
    blob: BlobGraph, data: dict[str, np.ndarray], context: int, prompt: int, steps: int
) -> dict[str, float]:
    import torch

    model = Reference(blob, data, torch.bfloat16)
    tokens = torch.randint(0, CONFIG["vocab_size"], (prompt,), device="cuda")
    results = {}

    def position(first: int, count: int) -> tuple[Any, Any]:
        start = torch.arange(first, first + count, device="cuda")
        return start, torch.arange(CONTEXT, device="cuda")[None] <= start[:, None]

    with torch.no_grad():
        for name, call in (("eager", model), ("compiled", torch.compile(model.__call__, mode="reduce-overhead"))):
            token = tokens[:1].clone()
            for timed in (False, True):
                torch.cuda.synchronize()
                began = time.perf_counter()
                for k in range(steps):
                    start, mask = position(context + k, 1)
                    token = call(token, start, mask).argmax(-1).clone()
                    int(token)
                results[f"{name}_decode"] = steps / (time.perf_counter() - began) if timed else 0.0
        start, mask = position(0, prompt)
        for _ in range(5):
            torch.cuda.synchronize()
            began = time.perf_counter()
            int(model(tokens, start, mask).argmax(-1))
            results["eager_prefill"] = prompt / (time.perf_counter() - began)
    return results


def run(args: argparse.Namespace) -> None:
    blob = blob_of(args.model)
    data = fill(blob)
    views = {k: memoryview(v).cast("B") for k, v in data.items()}
    weights = sum(v.nbytes for v in data.values() if v.ndim == 2)
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, CONFIG["vocab_size"], args.prompt + 1)
    results: dict[str, Any] = {}
    torch = cuda()
    with ptegpu.load(args.model, views, args.device, methods=["forward"]) as program:
        if torch is not None:
            torch.backends.cuda.matmul.allow_tf32 = False
            results["error"] = check(program, Reference(blob, data, torch.float32), tokens, args.prompt)
        results |= step_times(program, tokens, args.context)
    with LanguageModel(args.model, args.device, data=views) as model:
        results["adapter"] = model.program.device.target.name
        results |= measure(model, tokens, args.context, args.prompt, args.steps)
        results["weight_gigabytes"] = weights / 1e9
        results["decode_gigabytes_per_second"] = weights / 1e9 * results["decode_tokens_per_second"]
    if torch is not None and not args.no_torch:
        results["torch_bf16"] = measure_torch(blob, data, args.context, args.prompt, args.steps)
        best = max(results["torch_bf16"]["eager_decode"], results["torch_bf16"]["compiled_decode"])
        results["decode_ratio_to_torch"] = results["decode_tokens_per_second"] / best
    print(json.dumps(results, indent=None if args.json else 2))


def cuda() -> Any:
    try:
        import torch
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    maker = commands.add_parser("make", help="export the program without weights")
    maker.add_argument("--out", type=Path, default=Path("llama-1b.pte"))
    maker.add_argument("--layers", type=int, default=CONFIG["num_hidden_layers"])
    runner = commands.add_parser("run", help="measure")
    runner.add_argument("model", type=Path)
    runner.add_argument("--device", default="auto")
    runner.add_argument("--context", type=int, default=128)
    runner.add_argument("--prompt", type=int, default=512)
    runner.add_argument("--steps", type=int, default=128)
    runner.add_argument("--no-torch", action="store_true")
    runner.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if args.command == "make":
        make(args.out, args.layers)
    else:
        run(args)


if __name__ == "__main__":
    main()
