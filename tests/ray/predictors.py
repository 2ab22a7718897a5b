"""Predictors that fail, for actors of Ray. They record what they do in the folder that RECORDS names."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

import ptegpu.serve.ray

RECORDS = "PTEGPU_TEST_RECORDS"


def records() -> Path:
    return Path(os.environ[RECORDS])


class Failing(ptegpu.serve.ray.Predictor):
    """A predictor that fails as soon as some rows are done."""

    def __call__(self, batch: Any) -> dict[str, np.ndarray]:
        if 700 in batch["id"]:
            for _ in range(1200):
                if any((records() / "digits").glob("*.parquet")) and any((records() / "checkpoint").glob("*.parquet")):
                    break
                time.sleep(0.05)
            batch = {"id": batch["id"]}
        return super().__call__(batch)


class Losing(ptegpu.serve.ray.Predictor):
    """A predictor that loses its GPU once, and counts the rows that it has done."""

    def __call__(self, batch: Any) -> dict[str, np.ndarray]:
        lost = records() / "lost"
        if not lost.exists():
            lost.touch()
            self._program.device.destroy()
        result = super().__call__(batch)
        (records() / f"rows {time.monotonic_ns()}").write_text(str(len(batch["id"])))
        return result
