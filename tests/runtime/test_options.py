"""Options for loading are checked where they are made; sizes for a method that does not exist are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ptegpu
from ptegpu import LoadOptions
from ptegpu.dtypes import DType
from ptegpu.errors import InvalidInput, NoAdapter
from ptegpu.format import pte

MLP = Path(__file__).parents[1] / "data" / "mlp.pte"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": 1.5}, 'device is "auto", an index or part of a name, not float'),
        ({"engine": "cuda"}, """engine is "auto", "wgpu" or "dawn", not 'cuda'"""),
        ({"limits": {"memory": 1}}, "limits are ptegpu.Limits(…), not dict"),
        ({"persistent": "yes"}, """invalid persistent 'yes': expected "auto", "on" or "off\""""),
        ({"progress": 3}, "progress is a function of (phase, done, of), not int"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as error:
        LoadOptions(**options)
    assert message == str(error.value)


def test_points_of_a_method_that_does_not_exist() -> None:
    with pytest.raises(KeyError, match="no method 'decode'; the program has forward"):
        ptegpu.compile(MLP, points={"decode": [{}]})


def test_a_bundle_without_plans_opens_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = (
        pte.FileTensor(DType.F64, (4,), (0,)),
        pte.FileTensor(DType.F64, (), ()),
    )  # float64, which no GPU computes with
    call = pte.KernelCall("aten::median.out", (0, 1, 1))
    file = pte.ProgramFile(None, 0, 0, (pte.FileMethod("forward", (x, y), (0,), (1,), ((call,),), (), "", ""),), {})
    bundle = ptegpu.compile(file)
    opened: list[dict[str, Any]] = []
    with monkeypatch.context() as patch:
        patch.setattr("ptegpu.gpu.open_device", lambda device, **options: opened.append({"device": device, **options}))
        with ptegpu.load(bundle) as program:
            assert 2.0 == program(np.array([1.0, 2.0, 3.0, 4.0]))
            assert "<ptegpu.Program from memory: forward on the host>" == repr(program)
    assert [] == opened
    assert ptegpu.load(bundle).device.info.engine in ("wgpu", "dawn")  # opened when it is first requested
    with pytest.raises(NoAdapter, match="No adapter has 'abacus' in its name"):
        ptegpu.load(bundle, device="abacus")
