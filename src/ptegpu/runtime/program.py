"""A loaded program: its methods on a device, and what to call them with."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..errors import Closed, UnsupportedProgram
from ..format import Program as File
from ..format import read_program
from ..gpu import Device, SharedConstants, open_device
from ..passes.memory import ConstantKey
from .append import Append
from .data import Data, Source, named_data
from .method import Method, Running
from .profile import Profile, profile_method

DEFAULT = "forward"


def load(
    path: Source,
    data: Data = None,
    device: str | int | Device = "auto",
    *,
    methods: Iterable[str] | None = None,
    append: Mapping[str, Append] | None = None,
) -> Program:
    """Load a `.pte` and make it ready on a GPU.

    `data` is one or several `.ptd` files, or mappings from key to bytes, with constants that live outside the program.
    `device` is "auto", an adapter's index, or part of its name (`ptegpu doctor` lists them). `methods` limits which
    methods are made ready. `append` adds operator calls to methods, by name: see `append.py`.
    """
    file = read_program(path)
    named = named_data(file, data)
    wanted = list(methods) if methods is not None else [m.name for m in file.methods]
    tails = append or {}
    unknown = [m for m in (*wanted, *tails) if m not in {f.name for f in file.methods}]
    if unknown:
        raise KeyError(f"no method {unknown[0]!r}; the program has {', '.join(m.name for m in file.methods)}")
    compiled, problems = {}, []
    for method in file.methods:
        if method.name in wanted:
            try:
                compiled[method.name] = Method(method, named, file.path, tails.get(method.name))
            except UnsupportedProgram as e:
                problems.append(str(e))
    if problems:
        raise UnsupportedProgram("\n".join(problems))
    return Program(file, compiled, device if isinstance(device, Device) else open_device(device))


class Program:
    """A program on a device. Call it, or one of its methods; close it, or use it as a context manager.

    Two threads that call one program take turns.
    """

    def __init__(self, file: File, methods: dict[str, Method], device: Device) -> None:
        self.file, self.device = file, device
        self._methods = methods
        self._lock = threading.RLock()
        self._closed = False
        names: dict[ConstantKey, str] = {}
        constants = SharedConstants()
        try:
            for method in methods.values():
                method.open(device, names, constants)
        except BaseException:
            self.close()
            raise

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of its methods."""
        return tuple(self._methods)

    def method(self, name: str) -> BoundMethod:
        """A callable for one method."""
        self._check_open()
        if name not in self._methods:
            raise KeyError(f"no method {name!r}; the program has {', '.join(self._methods)}")
        return BoundMethod(self, self._methods[name])

    def __call__(self, *inputs: Any) -> Any:
        """Run `forward` (or the only method): the output, or a tuple of all outputs, mutated inputs first."""
        name = DEFAULT if DEFAULT in self._methods or len(self._methods) != 1 else next(iter(self._methods))
        return self.method(name)(*inputs)

    def reset(self) -> None:
        """All state (caches, buffers) back to its initial values."""
        with self._lock:
            self._check_open()
            for method in self._methods.values():
                method.reset()

    def close(self) -> None:
        """Give the GPU memory back. A closed program raises `Closed`."""
        with self._lock:
            self._closed = True
            for method in self._methods.values():
                method.close()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        where, methods = self.file.path or "from memory", ", ".join(self._methods)
        return f"<ptegpu.Program {where}: {methods} on {self.device.target.name}>"

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("this program was closed; load it again")


class BoundMethod:
    """One method of a program."""

    def __init__(self, program: Program, method: Method) -> None:
        self._program, self._method = program, method
        self.name = method.name

    def __call__(self, *inputs: Any) -> Any:
        with self._program._lock:
            self._program._check_open()
            return self._method(*inputs)

    def execute(self, inputs: Sequence[Any]) -> list[Any]:
        """All outputs, as a list."""
        with self._program._lock:
            self._program._check_open()
            return self._method.execute(inputs)

    def profile(self, *inputs: Any, repeats: int = 10) -> Profile:
        """GPU time of every kernel, of an ordinary run, and wall time: medians over `repeats` calls of each kind.

        The method's state is reset before every call and at the end. An adapter without timestamp queries raises
        LimitExceeded.
        """
        with self._program._lock:
            self._program._check_open()
            return profile_method(self._method, self._program.device, inputs, repeats)

    @property
    def in_one_plan(self) -> bool:
        """Whether `start` can be used."""
        return self._method.in_one_plan

    def start(self, inputs: Sequence[Any]) -> Running:
        """Run without waiting: `result()` of what is returned waits, `resident()` can go into the next call."""
        with self._program._lock:
            self._program._check_open()
            return self._method.start(inputs)

    @property
    def graphs(self) -> list[Any]:
        """The graphs that run on the GPU, in order."""
        return [e.graph for e in self._method.engines.values()]

    @property
    def plans(self) -> list[Any]:
        """The plans of the last call (of a static method: the ones it always runs)."""
        return [p for e in self._method.engines.values() if (p := e.plan())]
