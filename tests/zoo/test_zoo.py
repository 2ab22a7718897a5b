"""The table of tiny models: building is deterministic, inputs fit, and a folder is written once."""

from __future__ import annotations

import pytest
import torch
from torch.utils._pytree import tree_leaves

from tests.zoo import KINDS, folder, specimens
from tests.zoo.specimen import Specimen

SAMPLES = 3  # of a kind whose models all have tests elsewhere


def built(specimen: Specimen) -> torch.nn.Module:
    torch.manual_seed(0)
    return specimen.build().eval()


@pytest.mark.parametrize("kind", KINDS)
def test_models_take_their_inputs(kind: str) -> None:
    models = specimens(kind)
    for name in [n for n in models if kind in ("modules", "language", "tasks") or n in list(models)[:SAMPLES]]:
        module, again = (built(models[name]) for _ in range(2))
        torch.testing.assert_close(dict(module.named_parameters()), dict(again.named_parameters()), rtol=0, atol=0)
        with torch.no_grad():
            outputs = tree_leaves(module(*models[name].inputs()))
        assert all(x.isfinite().all() for x in outputs if isinstance(x, torch.Tensor)), name


def test_folders_are_written_once() -> None:
    path = folder("tasks", "bert")
    assert {"config.json", "model.safetensors", "vocab.txt"} <= {file.name for file in path.iterdir()}
    assert path == folder("tasks", "bert")
    with pytest.raises(AssertionError, match="modules ResNet has no folder"):
        folder("modules", "ResNet")
