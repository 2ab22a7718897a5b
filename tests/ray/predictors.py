"""Predictors that go wrong, for actors of Ray. What they do is written down in the folder that RECORDS names."""

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
    """Fails as soon as some rows are through."""

    def __call__(self, batch: Any) -> dict[str, np.ndarray]:
        if 700 in batch["id"]:
            for _ in range(1200):
                if any((records() / "digits").glob("*.parquet")) and any((records() / "checkpoint").glob("*.parquet")):
                    break
                time.sleep(0.05)
            batch = {"id": batch["id"]}
        return super().__call__(batch)


class Losing(ptegpu.serve.ray.Predictor):
    """Loses its GPU once, and counts the rows that it is through with."""

    def __call__(self, batch: Any) -> dict[str, np.ndarray]:
        lost = records() / "lost"
        if not lost.exists():
            lost.touch()
            self._program.device.destroy()
        made = super().__call__(batch)
        (records() / f"rows {time.monotonic_ns()}").write_text(str(len(batch["id"])))
        return made
