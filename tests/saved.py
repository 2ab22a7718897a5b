"""Cases and programs with what PyTorch gives for them, in one file: to run where PyTorch and the exporter are not.

The file is a zip of `index.json`, which says what there is, and `data`, the bytes that it refers to by offset.
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
    """One call of a method, and what PyTorch returns for it."""

    inputs: Sequence[Any]  # arrays, ints, floats, bools and None, as the method takes them one after the other
    wanted: Sequence[Any]  # arrays, ints and None
    method: str = "forward"
    reset: bool = False  # all state is, before the call
    result: Any = None  # the structure of what the method returns, with positions in `wanted` as leaves


@dataclass(frozen=True, eq=False)
class Program:
    """An exported model with calls in order: what one leaves in the state, the next one finds."""

    name: str
    data: bytes
    calls: Sequence[Call]
    tolerance: float = 1e-4  # of the largest magnitude in an output
    graphs: int = 1  # that the GPU runs, of all methods together
    host: Sequence[str] = ()  # what the host runs, in order
    operators: Mapping[str, int] = field(default_factory=dict)  # how often the GPU runs some of them
    features: Sequence[str] = ()  # what it is an example of

    def check(self, gpu: Any, precision: Precision = "auto") -> None:
        """Load it on a device, and hold every output of every call to PyTorch's, and who runs what to what is known."""
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
            found = {op: ran[_operators(op)[0]] for op in self.operators}
            assert found == dict(self.operators), f"on the GPU: {dict(ran)}"

    def replay(self, program: ptegpu.Program) -> None:
        """Make all calls of a loaded program, and hold their outputs to PyTorch's."""
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
        """Hold the outputs of call `k` to PyTorch's."""
        wanted = self.calls[k].wanted
        assert len(got) == len(wanted), f"call {k}: {len(got)} outputs, PyTorch {len(wanted)}"
        for n, (g, w) in enumerate(zip(got, wanted, strict=True)):
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
        found = list(got) if isinstance(got, dict) else range(len(got))
        assert list(keys) == list(found), f"{what}: {list(found)}, PyTorch {list(keys)}"
        return [leaf for key in keys for leaf in leaves(structure[key], got[key], f"{what}[{key!r}]")]
    return [got]


def _operators(name: str) -> list[str]:
    """An operator's name without namespace and overload, or those of joined ones: `fused(linear+add)`."""
    return name[6:-1].split("+") if name.startswith("fused(") else [name.split(".")[-2] if "." in name else name]


class _Writer:
    """Collects bytes, each content once."""

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

    def argument(self, a: Any, problem: Problem, seen: dict[int, int]) -> Any:
        if isinstance(a, S):
            return {"sym": a.value, "planned": a.planned}
        if isinstance(a, T):
            known = {"dtype": a.dtype.value, "constant": a.constant, "limit": a.limit}
            return {"tensor": seen.setdefault(id(a), len(seen)), **known, "array": self.array(problem.arrays[id(a)])}
        if a is not None and not isinstance(a, bool | int | float | str):
            raise TypeError(f"{problem.case}: an argument {a!r} cannot be saved")
        return a

    def problem(self, p: Problem) -> dict[str, Any]:
        seen: dict[int, int] = {}
        return {
            "name": str(p.case),
            "op": p.case.op,
            "args": walk(list(p.case.args), lambda a: self.argument(a, p, seen)),
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
                "wanted": [self.value(w) for w in c.wanted],
                "method": c.method,
                "reset": c.reset,
                "result": self.value(c.result),
            }
            for c in p.calls
        ]
        known = {"graphs": p.graphs, "host": list(p.host), "operators": dict(p.operators)}
        known["features"] = list(p.features)
        return {"name": p.name, "file": self.blob(p.data), "calls": calls, "tolerance": p.tolerance, **known}


def save(path: Path, problems: Iterable[Problem], programs: Iterable[Program]) -> None:
    """Write a file that `read` gives back."""
    writer = _Writer()
    index = {"problems": [writer.problem(p) for p in problems], "programs": [writer.program(p) for p in programs]}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("index.json", json.dumps(index))
        archive.writestr("data", bytes(writer.data))


def _narrowed(golden: np.ndarray) -> np.ndarray:
    """A float64 golden in half the bytes, where float32 has the range for it: no tolerance is as tight as its steps."""
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
                made = T(array.shape, DType(a["dtype"]), constant=a["constant"], limit=limit)
                tensors[a["tensor"]], arrays[id(made)] = made, array
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
        inputs, wanted = ([self.value(a) for a in entry[key]] for key in ("inputs", "wanted"))
        return Call(inputs, wanted, entry["method"], entry["reset"], self.value(entry.get("result")))

    def program(self, entry: dict[str, Any]) -> Program:
        calls = [self.call(c) for c in entry["calls"]]
        known = {key: entry[key] for key in ("tolerance", "graphs", "host", "operators", "features") if key in entry}
        return Program(entry["name"], self.blob(entry["file"]), calls, **known)


def read(path: Path) -> tuple[dict[str, Problem], dict[str, Program]]:
    """The problems and programs of a saved file, by name; cases of one name are numbered."""
    reader = _Reader(path)
    problems: dict[str, Problem] = {}
    for entry in reader.index["problems"]:
        name, n = entry["name"], 2
        while name in problems:
            name, n = f"{entry['name']} ({n})", n + 1
        problems[name] = reader.problem(entry)
    return problems, {entry["name"]: reader.program(entry) for entry in reader.index["programs"]}
