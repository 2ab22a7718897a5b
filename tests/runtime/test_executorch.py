"""The drop-in: the same script, with ExecuTorch's own runtime and with ptegpu's names for it."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from executorch import runtime as theirs
from executorch.exir import ExecutorchBackendConfig, to_edge
from tests.exporting import quiet
from torch import nn
from torch.export import Dim

import ptegpu as ours

X = torch.arange(6.0).reshape(2, 3)


class Counting(nn.Module):
    """A state, a number among the inputs, and results that are numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(2, 3))

    def forward(self, x: torch.Tensor, k: int) -> tuple[torch.Tensor, int]:
        self.calls.add_(1)
        return x * k + self.calls, k


class Types(nn.Module):
    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(x.clone() for x in tensors)


class Next(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


def pte(module: nn.Module, args: tuple[Any, ...], dynamic_shapes: Any = None, **config: Any) -> bytes:
    with quiet():
        edge = to_edge(torch.export.export(module, args, dynamic_shapes=dynamic_shapes))
        return edge.to_executorch(ExecutorchBackendConfig(**config)).buffer


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("programs")
    dtypes = ["bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
    saved = {
        "counting": pte(Counting(), (X, 3), emit_mutable_buffer_names=True),
        "types": pte(Types(), tuple(torch.ones(2, dtype=getattr(torch, d)) for d in dtypes)),
        "dynamic": pte(Next(), (X,), ({0: Dim("n", max=4)},)),
    }
    for name, data in saved.items():
        (folder / f"{name}.pte").write_bytes(data)
    return {name: folder / f"{name}.pte" for name in saved}


def script(runtime: Any, files: dict[str, Path]) -> dict[str, Any]:
    """Run a script written for `executorch.runtime`; return its values and the errors it catches."""
    results: dict[str, Any] = {}

    def see(what: str, call: Callable[[], Any]) -> None:
        try:
            results[what] = call()
        except Exception as e:
            results[what] = e

    rt: Any = runtime.Runtime.get()
    see("one runtime", lambda: rt is runtime.Runtime.get())
    see("verification", lambda: [(v.name, v.value) for v in runtime.Verification.__members__.values()])
    program: runtime.Program = rt.load_program(files["counting"], verification=runtime.Verification.Minimal)
    method: runtime.Method = program.load_method("forward")
    see("names", lambda: program.method_names)
    see("kinds", lambda: (type(program) is runtime.Program, type(method) is runtime.Method))
    see("same method", lambda: method is program.load_method("forward"))
    meta: runtime.MethodMeta = method.metadata
    see("meta", lambda: (meta.name(), meta.num_inputs(), meta.num_outputs(), meta.num_attributes()))
    see("meta of the program", lambda: type(program.metadata("forward")) is runtime.MethodMeta)
    for what, info in (("input", meta.input_tensor_meta), ("output", meta.output_tensor_meta)):
        info_0 = info(0)
        see(what, lambda f=info_0: (f.sizes(), f.dtype(), f.is_memory_planned(), f.nbytes(), repr(f)))
        for index in (1, 2):  # a number; nothing
            see(f"{what} {index}", lambda f=info, k=index: f(k))
    see("attribute", lambda: repr(meta.attribute_tensor_meta(0)))
    see("attribute 1", lambda: meta.attribute_tensor_meta(1))
    see("no method", lambda: program.load_method("nope"))
    see("no metadata", lambda: program.metadata("nope"))
    see("call", lambda: method.execute([X, 3]))
    see("call, again", lambda: method.execute((X, 3)))
    for what, inputs in {
        "too few": [X],
        "too many": [X, 3, 3],
        "dtype": [X.double(), 3],
        "rank": [X[0], 3],
        "shape": [X[:1], 3],
        "text": ["x", 3],
        "none": [None, 3],
        "another number": [X, 4],
        "number for a tensor": [3, 3],
        "tensor for a number": [X, X],
    }.items():
        see(what, lambda inputs=inputs: method.execute(inputs))
    bytes_of_types = files["types"].read_bytes()
    types = rt.load_program(bytes_of_types)
    meta_of_types = types.metadata("forward")
    see("dtypes", lambda: [meta_of_types.input_tensor_meta(k).dtype() for k in range(meta_of_types.num_inputs())])
    see("repr", lambda: repr(meta_of_types))
    # theirs reads a program, and the bytes it was made of, after both may be gone
    data = files["dynamic"].read_bytes()
    loaded = rt.load_program(io.BytesIO(data))
    dynamic = loaded.load_method("forward")
    see("dynamic", lambda: [repr(dynamic.metadata), dynamic.execute([X[:1]])])
    see("too long", lambda: dynamic.execute([torch.ones(5, 3)]))
    see("missing", lambda: rt.load_program("no-such-folder/model.pte"))
    see("missing data", lambda: rt.load_program(files["types"], data_path="no-such-folder/model.ptd"))
    see("damaged", lambda: rt.load_program(files["types"].read_bytes()[:900]))
    see("empty", lambda: rt.load_program(b""))
    see("no program", lambda: rt.load_program(3))
    see("backend", lambda: rt.backend_registry.is_available("NoSuchBackend"))
    see("backends", lambda: type(rt.backend_registry.registered_backend_names))
    see("operators", lambda: type(rt.operator_registry.operator_names))
    return results


def test_a_script_for_executorch_sees_the_same(files: dict[str, Path]) -> None:
    expected, actual = script(theirs, files), script(ours, files)
    assert list(expected) == list(actual)
    different = []
    for what, value in expected.items():
        if isinstance(value, Exception):
            same = isinstance(actual[what], type(value))
        else:
            same = not isinstance(actual[what], Exception) and repr(value) == repr(actual[what])
        if not same:
            different.append(f"{what}: {value!r}, not {actual[what]!r}")
    assert [] == different


def test_its_errors_say_what_to_do(files: dict[str, Path]) -> None:
    outcome = script(ours, files)
    messages = {what: str(error) for what, error in outcome.items() if isinstance(error, Exception)}
    assert messages["input 1"] == "input 1 of forward is not a tensor, but 3"
    assert messages["input 2"] == "forward has no input 2: there are 2, counted from 0"
    assert messages["no metadata"] == "no method 'nope'; the program has forward"
    assert messages["too few"] == "forward takes 2 inputs, 1 given (input 0: float32[2, 3], input 1: int 3)"
    assert messages["another number"] == "input 1 of forward must be 3, the value it was exported with, not 4"
    assert messages["missing"] == "no-such-folder/model.pte: cannot be read: No such file or directory"
    assert messages["missing data"] == "no-such-folder/model.ptd: cannot be read: No such file or directory"
    assert messages["no program"] == "a program is bytes, a path or an open file, not int"
    with pytest.raises(ours.InvalidInput) as error:
        ours.Runtime.get().load_program(files["types"], enable_etdump=True)
    assert str(error.value) == "ptegpu makes no ETDump: leave enable_etdump out, and use Method.profile"


def test_the_text_of_metadata_is_short() -> None:
    demo = Path(ours.__file__).parent / "demo" / "tales.pte"
    with ours.Runtime.get().load_program(demo) as program:
        assert len(repr(program.metadata("forward"))) < 400


def test_numpy_arrays_are_taken_too(files: dict[str, Path]) -> None:
    (y,) = ours.Runtime.get().load_program(files["dynamic"]).load_method("forward").execute([X.numpy()])
    assert isinstance(y, np.ndarray) and y.tolist() == (X + 1).tolist()
