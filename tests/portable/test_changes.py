"""Sensitivity of the cases: each refuses results scaled by a twentieth, zeroed or shifted by one (`tests/changes.py`).

The table counts results that a change leaves as they are.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from tests.changes import Tried, change_all
from tests.portable.harness import Case, compare, expected, is_exact, to_numpy

LEFT_AS_THEY_ARE = {
    "scaled": {"bools": 214, "empty": 157, "not finite": 58, "small ints": 237, "zeros": 136},
    "zeroed": {"empty": 157, "zeros": 136},
    "shifted": {"empty": 157, "equal elements": 122, "one element": 360, "zeros": 136},
}


def test_every_case_refuses_changed_results() -> None:
    total = Tried()
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        for case in getattr(importlib.import_module(f"tests.portable.{path.stem}"), "CASES", ()):
            tensors = [w for w in expected(case) if w is not None]

            def hold(results: Sequence[np.ndarray], case: Case = case, tensors: list[torch.Tensor] = tensors) -> None:
                for w, g in zip(tensors, results, strict=True):
                    compare(w, g, exact=is_exact(case))

            tried = change_all([np.array(to_numpy(w), order="C") for w in tensors], hold)
            total.unchanged += tried.unchanged
            total.accepted += [f"{case}: {what}" for what in tried.accepted]
    assert [] == total.accepted
    assert total.table == LEFT_AS_THEY_ARE, f"LEFT_AS_THEY_ARE = {total.table}"
