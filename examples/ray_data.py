"""Run a program over a dataset with Ray Data: the bundled model classifies noisy digits on all GPUs of a cluster.

    python examples/ray_data.py --rows 1000 --output digits            # --gpus 0 on a machine without one

Ray distributes rows over the GPUs, restarts lost processes, and writes Parquet files. It records the rows that it has
written: repeating the command continues an interrupted run. Needs `pip install "ptegpu[ray]"`.
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
    """Add the label and a noisy image to each id, repeating ten digits."""
    samples = np.load(DEMO / "digits.npz")
    noise = np.stack([np.random.default_rng(k).normal(0, NOISE, (8, 8)) for k in batch["id"]])
    rows = batch["id"] % len(samples["images"])
    return {"id": batch["id"], "label": samples["labels"][rows], "image": samples["images"][rows] + noise}


def digits(batch: Batch) -> Batch:
    return {"id": batch["id"], "label": batch["label"], "digit": batch["scores"].argmax(-1)}


def read(options: argparse.Namespace, predictor: Any = ptegpu.serve.ray.Predictor) -> tuple[int, int]:
    """Classify the images; return the number of images in the output, and how many are classified correctly."""
    context = ray.data.DataContext.get_current()
    context.checkpoint_config = CheckpointConfig("id", str(options.output.resolve() / "checkpoint"))
    predictions = (
        ray.data.range(options.rows, override_num_blocks=8)
        .map_batches(images)
        .map_batches(
            predictor,
            fn_constructor_args=[DEMO / "digits.pte", ["image"], ["scores"]],  # columns in, columns out
            batch_size=64,
            num_gpus=options.gpus,
            concurrency=options.actors,
        )
        .map_batches(digits)
    )
    predictions.write_parquet(str(options.output.resolve() / "digits"))
    context.checkpoint_config = None
    table = pandas.read_parquet(options.output / "digits")
    return len(table), int((table["digit"] == table["label"]).sum())


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Classify digits with Ray Data.")
    parser.add_argument("--rows", type=int, default=1000, help="number of images (1000)")
    parser.add_argument("--output", type=Path, default=Path("digits"), help="a folder that all machines share (digits)")
    parser.add_argument("--gpus", type=float, default=1, help="GPUs per actor: 1, a fraction, or 0 (1)")
    parser.add_argument("--actors", type=int, default=1, help="actors that run the program (1)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    count, correct = read(parse())
    print(f"{count} images, {correct} classified correctly")
