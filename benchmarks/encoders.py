"""A MiniLM-shaped encoder by ptegpu and by PyTorch, float32, host array in to host array out.

    python benchmarks/encoders.py [--shapes 1x128,32x128] [--seconds 1] [--device auto] [--json]

PyTorch runs eager and, where it has CUDA, compiled too (reduce-overhead, so with CUDA graphs), in float32 without
TF32. Each way is warmed up first, results are compared with eager PyTorch in the same run, and the median counts.

Where the export packages are missing, bring the program from where they are:

    python benchmarks/encoders.py --random --export encoder.pte      # there
    python benchmarks/encoders.py --random --pte encoder.pte         # here

Random weights come from NumPy's frozen generator, the same on every machine. Their vocabulary is small, which changes
no work and keeps the file below 50 MB. Without --random, the weights are those of `--model FOLDER` (config.json and
model.safetensors), or of the installed package with MiniLM's weights, or random where there is neither. PyTorch reads
them there and a program given by --pte has them inside, so both must be of the same folder: the run fails if results
differ. Without torch, only ptegpu is timed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import ptegpu
from ptegpu.plan.resolve import evaluated

sys.path.append(str(Path(__file__).resolve().parents[1] / "examples"))
from semantic_search import Missing, model_folder

RANDOM_VOCABULARY, SPREAD = 2048, 0.05
TOLERANCE = 1e-3

Inputs = tuple[np.ndarray, np.ndarray]
Way = Callable[[Inputs], np.ndarray]


def encoder_of(folder: Path | None) -> Any:
    """The encoder in PyTorch, with the weights of a folder or random ones."""
    import bert
    import torch

    if folder is not None:
        return bert.from_checkpoint(folder)
    encoder = bert.Encoder(bert.Config(vocabulary=RANDOM_VOCABULARY)).eval()
    frozen = np.random.RandomState(0)
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            around = 1.0 if name.endswith("norm.weight") else 0.0
            values = around + SPREAD * frozen.standard_normal(tuple(parameter.shape))
            parameter.copy_(torch.from_numpy(values.astype(np.float32)))
    return encoder


def inputs_of(batch: int, length: int) -> Inputs:
    """Tokens, and a mask that hides the second half of every other text but the first."""
    tokens = np.random.RandomState(1).randint(0, RANDOM_VOCABULARY, (batch, length)).astype(np.int64)
    mask = np.ones_like(tokens)
    mask[1::2, length // 2 + 1 :] = 0
    return tokens, mask


def in_pytorch(module: Callable[..., Any], device: str) -> Way:
    import torch

    def run(inputs: Inputs) -> np.ndarray:
        with torch.inference_mode():
            return module(*(torch.from_numpy(array).to(device) for array in inputs)).cpu().numpy()

    return run


def ways_of(program: ptegpu.Program, folder: Path | None) -> dict[str, Way]:
    """By name; PyTorch's eager way comes first, being what the others are held to."""
    ways: dict[str, Way] = {}
    if importlib.util.find_spec("torch") is not None:
        import torch

        torch.set_float32_matmul_precision("highest")
        device = "cuda" if torch.cuda.is_available() else "cpu"
        encoder = encoder_of(folder).to(device)
        ways[f"PyTorch eager, {device}"] = in_pytorch(encoder, device)
        if device == "cuda":
            compiled = torch.compile(encoder, mode="reduce-overhead", dynamic=False)
            ways["torch.compile, cuda"] = in_pytorch(compiled, device)
    ways["ptegpu"] = lambda inputs: program(*inputs)
    return ways


def milliseconds(way: Way, inputs: Inputs, seconds: float) -> float:
    """The median of the runs within `seconds`, after as many that do not count."""
    for _ in ("warming up", "timing"):
        times: list[float] = []
        end = time.perf_counter() + seconds
        while len(times) < 3 or time.perf_counter() < end:
            start = time.perf_counter()
            way(inputs)
            times.append(1e3 * (time.perf_counter() - start))
    return median(times)


def measure(program: ptegpu.Program, ways: dict[str, Way], batch: int, length: int, seconds: float) -> dict[str, Any]:
    inputs = inputs_of(batch, length)
    results = {name: way(inputs) for name, way in ways.items()}
    expected = next(iter(results.values()))
    rows = {
        name: {"ms": milliseconds(way, inputs, seconds), "difference": float(np.abs(results[name] - expected).max())}
        for name, way in ways.items()
    }
    plans = program.method("forward").plans
    if len(plans) != 1:
        raise SystemExit(f"an encoder is one plan, not {len(plans)}")
    at = evaluated(plans[0], [x.shape for x in inputs], lambda position, element: int(inputs[position].flat[element]))
    kernels = Counter(at.kernels[step.kernel].name for step in at.dispatches if 0 not in step.grid)
    return {
        "batch": batch,
        "tokens": length,
        "plans": len(plans),
        "dispatches": kernels.total(),
        "kernels": dict(kernels.most_common()),
        "ways": rows,
    }


def report(found: dict[str, Any]) -> None:
    print(f"{found['device']}, {found['weights']}")
    for case in found["cases"]:
        kernels = ", ".join(f"{count} {name}" for name, count in case["kernels"].items())
        print(f"\n{case['batch']} × {case['tokens']} tokens: {case['plans']} plan, {case['dispatches']} dispatches")
        print(f"  ({kernels})")
        ours = case["ways"]["ptegpu"]["ms"]
        for name, row in case["ways"].items():
            ratio = f"{row['ms'] / ours:6.2f} × ptegpu's time"
            print(f"  {name:22} {row['ms']:9.2f} ms  {ratio}  largest difference {row['difference']:.1e}")


def shape_of(text: str) -> tuple[int, int]:
    batch, _, length = text.partition("x")
    return int(batch), int(length)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time an encoder by ptegpu and by PyTorch.")
    parser.add_argument("--shapes", default="1x128,32x128", help="batch x tokens, several with commas (1x128,32x128)")
    parser.add_argument("--seconds", type=float, default=1.0, help="of warming up, and of timing, each way (1)")
    parser.add_argument("--device", default="auto", help="ptegpu's, as `ptegpu doctor` lists them (auto)")
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="with config.json and model.safetensors")
    parser.add_argument("--random", action="store_true", help="random weights, even where MiniLM's are installed")
    parser.add_argument("--pte", type=Path, metavar="FILE", help="an exported program, instead of exporting")
    parser.add_argument("--export", type=Path, metavar="FILE", help="only export, for shapes up to the largest given")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args(arguments)


def weights_folder(given: argparse.Namespace) -> Path | None:
    if given.random:
        return None
    if given.model is not None:
        return given.model
    try:
        return model_folder()
    except Missing:
        return None


def exported(folder: Path | None, shapes: Sequence[tuple[int, int]]) -> bytes:
    import bert

    print("Exporting the encoder (a minute or so) …", file=sys.stderr, flush=True)
    batch, tokens = (max(2, *sizes) for sizes in zip(*shapes, strict=True))
    return bert.export_encoder(encoder_of(folder), batch, tokens)


def main(arguments: Sequence[str] | None = None) -> int:
    given = parse(arguments)
    shapes = [shape_of(text) for text in given.shapes.split(",")]
    folder = weights_folder(given)
    if given.export is not None:
        print(f"{given.export}: {given.export.write_bytes(exported(folder, shapes)) / 1e6:.1f} MB")
        return 0
    with ptegpu.load(given.pte or exported(folder, shapes), device=given.device) as program:
        ways = ways_of(program, folder)
        found = {
            "device": program.device.target.name,
            "weights": "random weights" if folder is None else f"the weights in {folder.parent.name}/{folder.name}",
            "cases": [measure(program, ways, batch, length, given.seconds) for batch, length in shapes],
        }
    if given.json:
        print(json.dumps(found, indent=2))
    else:
        report(found)
    worst = max(row["difference"] for case in found["cases"] for row in case["ways"].values())
    if worst > TOLERANCE:
        print(f"error: results differ by {worst:.1e}: are both of the same weights?", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
