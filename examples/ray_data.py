"""Run a program over a dataset with Ray Data: the bundled model reads noisy digits, on all GPUs of a cluster.

    python examples/ray_data.py --rows 1000 --output digits            # --gpus 0 on a machine without one

Ray gives rows to the GPUs, starts lost processes again, and writes Parquet files. It keeps a record of what is written:
the same command goes on where an interrupted one stopped. Needs `pip install "ptegpu[ray]"`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import ray
from ray.data.checkpoint import CheckpointConfig

import ptegpu
import ptegpu.serve.ray

DEMO = Path(ptegpu.__file__).parent / "demo"
NOISE = 0.1
Batch = dict[str, np.ndarray]


def images(batch: Batch) -> Batch:
    """Ten digits, over and over, each time with other noise."""
    known = np.load(DEMO / "digits.npz")
    noise = np.stack([np.random.default_rng(k).normal(0, NOISE, (8, 8)) for k in batch["id"]])
    of = batch["id"] % len(known["images"])
    return {"id": batch["id"], "label": known["labels"][of], "image": known["images"][of] + noise}


def digits(batch: Batch) -> Batch:
    return {"id": batch["id"], "label": batch["label"], "digit": batch["scores"].argmax(-1)}


def read(given: argparse.Namespace, predictor: Any = ptegpu.serve.ray.Predictor) -> tuple[int, int]:
    """How many images there are in the output, and how many of them were read right."""
    context = ray.data.DataContext.get_current()
    context.checkpoint_config = CheckpointConfig("id", str(given.output.resolve() / "checkpoint"))
    made = (
        ray.data.range(given.rows, override_num_blocks=8)
        .map_batches(images)
        .map_batches(
            predictor,
            fn_constructor_args=[DEMO / "digits.pte", ["image"], ["scores"]],  # columns in, columns out
            batch_size=64,
            num_gpus=given.gpus,
            concurrency=given.actors,
        )
        .map_batches(digits)
    )
    made.write_parquet(str(given.output.resolve() / "digits"))
    context.checkpoint_config = None
    found = pandas.read_parquet(given.output / "digits")
    return len(found), int((found["digit"] == found["label"]).sum())


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Read digits with Ray Data.")
    parser.add_argument("--rows", type=int, default=1000, help="images (1000)")
    parser.add_argument("--output", type=Path, default=Path("digits"), help="a folder that every machine sees (digits)")
    parser.add_argument("--gpus", type=float, default=1, help="for each actor: 1, a fraction, or 0 (1)")
    parser.add_argument("--actors", type=int, default=1, help="that run the program (1)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    count, right = read(parse())
    print(f"{count} images, {right} of them read right")
