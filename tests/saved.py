"""Archives of cases and programs with PyTorch's results, to run without PyTorch and the exporter.

An archive is a zip of `index.json`, the table of contents, and `data`, bytes that the index refers to by offset.
"""

from __future__ import annotations

import json
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

import ptegpu
from ptegpu.compiler.program import cut_methods, read_source
from ptegpu.dtypes import DType
from ptegpu.plan.method import Call as KernelCall
from ptegpu.plan.method import Host
from ptegpu.plan.target import Precision

from .cases import Case, Problem, S, T, compare, declared, walk


@dataclass(frozen=True)
class Call:
    """A call of a method with PyTorch's results."""

    inputs: Sequence[Any]  # arrays, ints, floats, bools and None, in the order of the method
    expected: Sequence[Any]  # arrays, ints and None
    method: str = "forward"
    reset: bool = False  # reset all state before the call
    result: Any = None  # the structure of the results, with positions in `expected` as leaves


@dataclass(frozen=True, eq=False)
class Program:
    """An exported model with calls in order, which share its state."""

    name: str
    data: bytes
    calls: Sequence[Call]
    tolerance: float = 1e-4  # of the largest magnitude in an output
    graphs: int = 1  # on the GPU, over all methods
    host: Sequence[str] = ()  # operators on the host, in order
    operators: Mapping[str, int] = field(default_factory=dict)  # counts of some operators on the GPU
    features: Sequence[str] = ()  # that it is an example of

    def check(self, gpu: Any, precision: Precision = "auto") -> None:
        """Load it on a device; check every output of every call, and which operators run on the GPU and on the host."""
        with ptegpu.load(self.data, device=gpu, precision=precision) as program:
            self.replay(program)
            methods = [program.method(name) for name in program.methods]
            waiting = [i.instruction for m in methods for i in m._method.items if isinstance(i, Host)]
            host = [i.op if isinstance(i, KernelCall) else type(i).__name__ for i in waiting]
            assert host == list(self.host), f"on the host: {host}"
            cuts = cut_methods(read_source(self.data)).values()
            graphs = [joined.graph for cut in cuts for joined in cut.graphs.values()]
            assert len(graphs) == self.graphs, f"{len(graphs)} graphs on the GPU"
            ran = Counter(name for g in graphs for n in g.nodes for name in _operators(n.op.name))
            counts = {op: ran[_operators(op)[0]] for op in self.operators}
            assert counts == dict(self.operators), f"on the GPU: {dict(ran)}"

    def replay(self, program: ptegpu.Program) -> None:
        """Make all calls of a loaded program and compare their outputs with PyTorch's."""
        for k, call in enumerate(self.calls):
            if call.reset:
                program.reset()
            method = program.method(call.method)
            if call.result is None:
                outputs = method.execute(list(call.inputs))
            else:
                outputs = leaves(call.result, method(*call.inputs), f"call {k}")
            self.compare(k, outputs)

    def compare(self, k: int, got: Sequence[Any]) -> None:
        """Compare the outputs of call `k` with PyTorch's."""
        expected = self.calls[k].expected
        assert len(got) == len(expected), f"call {k}: {len(got)} outputs, PyTorch {len(expected)}"
        for n, (g, w) in enumerate(zip(got, expected, strict=True)):
            what = f"call {k}, output {n}"
            if not isinstance(w, np.ndarray):
                assert (type(g), g) == (type(w), w), f"{what}: {g!r}, PyTorch {w!r}"
                continue
            g = np.asarray(g)
            assert (g.shape, g.dtype) == (w.shape, w.dtype), f"{what}: {g.dtype}{g.shape}, PyTorch {w.dtype}{w.shape}"
            if w.dtype.kind == "f":
                compare(g, w, self.tolerance, what)
            else:
                np.testing.assert_array_equal(g, w, err_msg=what)


def leaves(structure: Any, got: Any, what: str) -> list[Any]:
    """Return the leaves of a result that must have this structure of lists, tuples and dicts."""
    if isinstance(structure, list | tuple | dict):
        assert type(got) is type(structure), f"{what}: {type(got).__name__}, PyTorch {type(structure).__name__}"
        keys = list(structure) if isinstance(structure, dict) else range(len(structure))
        actual_keys = list(got) if isinstance(got, dict) else range(len(got))
        assert list(keys) == list(actual_keys), f"{what}: {list(actual_keys)}, PyTorch {list(keys)}"
        return [leaf for key in keys for leaf in leaves(structure[key], got[key], f"{what}[{key!r}]")]
    return [got]


def _operators(name: str) -> list[str]:
    """Return an operator's name without namespace and overload, or the names in `fused(linear+add)`."""
    return name[6:-1].split("+") if name.startswith("fused(") else [name.split(".")[-2] if "." in name else name]


class _Writer:
    """A writer that stores equal bytes once."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.places: dict[bytes, int] = {}

    def blob(self, content: bytes) -> dict[str, int]:
        key = sha256(content).digest()
        if key not in self.places:
            self.places[key] = len(self.data)
            self.data += content
        return {"at": self.places[key], "length": len(content)}

    def array(self, a: np.ndarray) -> dict[str, Any]:
        return {"dtype": a.dtype.str, "shape": list(a.shape), **self.blob(np.ascontiguousarray(a).tobytes())}

    def argument(self, a: Any, problem: Problem, ids: dict[int, int]) -> Any:
        if isinstance(a, S):
            return {"sym": a.value, "planned": a.planned}
        if isinstance(a, T):
            properties = {"dtype": a.dtype.value, "constant": a.constant, "limit": a.limit}
            return {"tensor": ids.setdefault(id(a), len(ids)), **properties, "array": self.array(problem.arrays[id(a)])}
        if a is not None and not isinstance(a, bool | int | float | str):
            raise TypeError(f"{problem.case}: an argument {a!r} cannot be saved")
        return a

    def problem(self, p: Problem) -> dict[str, Any]:
        ids: dict[int, int] = {}
        return {
            "name": str(p.case),
            "op": p.case.op,
            "args": walk(list(p.case.args), lambda a: self.argument(a, p, ids)),
            "outs": [[declared(p.case, e).value, list(e.shape)] for e in p.eager],
            "golden": [self.array(_narrowed(g)) for g in p.golden],
            "atol": p.case.atol,
            "mutated": p.case.mutated,
        }

    def value(self, a: Any) -> Any:
        if isinstance(a, list | tuple):
            return {type(a).__name__: [self.value(x) for x in a]}
        if isinstance(a, dict):
            return {"dict": [[key, self.value(x)] for key, x in a.items()]}
        return self.array(a) if isinstance(a, np.ndarray) else a

    def program(self, p: Program) -> dict[str, Any]:
        calls = [
            {
                "inputs": [self.value(a) for a in c.inputs],
                "wanted": [self.value(e) for e in c.expected],
                "method": c.method,
                "reset": c.reset,
                "result": self.value(c.result),
            }
            for c in p.calls
        ]
        properties = {"graphs": p.graphs, "host": list(p.host), "operators": dict(p.operators)}
        properties["features"] = list(p.features)
        return {"name": p.name, "file": self.blob(p.data), "calls": calls, "tolerance": p.tolerance, **properties}


def save(path: Path, problems: Iterable[Problem], programs: Iterable[Program]) -> None:
    """Write an archive for `read`."""
    writer = _Writer()
    index = {"problems": [writer.problem(p) for p in problems], "programs": [writer.program(p) for p in programs]}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("index.json", json.dumps(index))
        archive.writestr("data", bytes(writer.data))


def _narrowed(golden: np.ndarray) -> np.ndarray:
    """Round a float64 reference to float32 if it is in range; every tolerance is larger than the rounding."""
    if golden.dtype != np.float64 or np.abs(golden[np.isfinite(golden)]).max(initial=0.0) > np.finfo(np.float32).max:
        return golden
    return golden.astype(np.float32)


class _Reader:
    def __init__(self, path: Path) -> None:
        with zipfile.ZipFile(path) as archive:
            self.index = json.loads(archive.read("index.json"))
            self.data = archive.read("data")

    def blob(self, entry: dict[str, int]) -> bytes:
        return self.data[entry["at"] : entry["at"] + entry["length"]]

    def array(self, entry: dict[str, Any]) -> np.ndarray:
        return np.frombuffer(self.blob(entry), entry["dtype"]).reshape(entry["shape"]).copy()

    def problem(self, entry: dict[str, Any]) -> Problem:
        tensors: dict[int, T] = {}
        arrays: dict[int, np.ndarray] = {}

        def argument(a: Any) -> Any:
            if not isinstance(a, dict):
                return a
            if "sym" in a:
                return S(a["sym"], a["planned"])
            if a["tensor"] not in tensors:
                array = self.array(a["array"])
                limit = None if a["limit"] is None else tuple(a["limit"])
                tensor = T(array.shape, DType(a["dtype"]), constant=a["constant"], limit=limit)
                tensors[a["tensor"]], arrays[id(tensor)] = tensor, array
            return tensors[a["tensor"]]

        args = tuple(walk(entry["args"], argument))
        eager = [np.zeros(shape, DType(dtype).numpy) for dtype, shape in entry["outs"]]
        atol = tuple(entry["atol"]) if isinstance(entry["atol"], list) else entry["atol"]
        case = Case(entry["op"], args, atol=atol, mutated=tuple(entry["mutated"]))
        return Problem(case, arrays, eager, [self.array(g) for g in entry["golden"]])

    def value(self, entry: Any) -> Any:
        if not isinstance(entry, dict):
            return entry
        if "dtype" in entry:
            return self.array(entry)
        ((kind, items),) = entry.items()
        if kind == "dict":
            return {key: self.value(x) for key, x in items}
        return {"list": list, "tuple": tuple}[kind](self.value(x) for x in items)

    def call(self, entry: dict[str, Any]) -> Call:
        inputs, expected = ([self.value(a) for a in entry[key]] for key in ("inputs", "wanted"))
        return Call(inputs, expected, entry["method"], entry["reset"], self.value(entry.get("result")))

    def program(self, entry: dict[str, Any]) -> Program:
        calls = [self.call(c) for c in entry["calls"]]
        properties = {
            key: entry[key] for key in ("tolerance", "graphs", "host", "operators", "features") if key in entry
        }
        return Program(entry["name"], self.blob(entry["file"]), calls, **properties)


def read(path: Path) -> tuple[dict[str, Problem], dict[str, Program]]:
    """Return the problems and programs of an archive by name; number cases of the same name."""
    reader = _Reader(path)
    problems: dict[str, Problem] = {}
    for entry in reader.index["problems"]:
        name, n = entry["name"], 2
        while name in problems:
            name, n = f"{entry['name']} ({n})", n + 1
        problems[name] = reader.problem(entry)
    return problems, {entry["name"]: reader.program(entry) for entry in reader.index["programs"]}
