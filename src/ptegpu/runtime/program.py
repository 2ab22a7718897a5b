"""A loaded program: how to load one (`LoadOptions`), its methods on a device, and how to call them."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, BinaryIO

from ..errors import Closed, InvalidInput
from ..format import ProgramFile as File
from ..limits import Budget, Limits
from ..plan import Bundle, find_bundle
from ..plan.method import CompiledMethod
from ..plan.plan import Plan
from ..plan.target import Cache, Persistent, Precision, Target, check_cache, check_persistent, check_precision
from ..printing import shown
from ..progress import Progress, silent
from .arrays import detach_from_file
from .method import MethodRunner, Running
from .signature import Spec

if TYPE_CHECKING:
    from ..compiler.append import Append
    from ..compiler.planner import Points, Sizes
    from ..compiler.program import Data, Source
    from ..gpu import Device, Engine, SharedConstants
    from .metadata import MethodMeta
    from .profile import Profile


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """The device, engine, precision and limits of a program. See `ptegpu.load`."""

    device: str | int | Device = "auto"  # "auto", an adapter's index, part of its name, or an open device
    engine: Engine = "auto"  # GPU backend: "wgpu", "dawn"
    precision: Precision = "auto"  # products may round to f16: "exact" never, "fast" always
    cache: Cache = "f32"  # element type of key-value caches: "f16", "q8"
    persistent: Persistent = "auto"  # dispatches of a run may become one: "on" also on software adapters, "off" never
    limits: Limits | None = None  # None: the defaults
    progress: Progress = silent  # perhaps called from another thread

    def __post_init__(self) -> None:
        """Raise InvalidInput for the first option with a wrong value."""
        if not isinstance(self.device, str | int):
            from ..gpu import Device

            if not isinstance(self.device, Device):
                raise InvalidInput(f'device is "auto", an index or part of a name, not {type(self.device).__name__}')
        if self.limits is not None and not isinstance(self.limits, Limits):
            raise InvalidInput(f"limits are ptegpu.Limits(…), not {type(self.limits).__name__}")
        if not callable(self.progress):
            raise InvalidInput(f"progress is a function of (phase, done, of), not {type(self.progress).__name__}")
        if self.engine != "auto":
            from ..gpu import check_engine

            check_engine(self.engine)
        check_precision(self.precision)
        check_cache(self.cache)
        check_persistent(self.persistent)

    def open(self) -> tuple[Device, Target]:
        """Open the device; return it and the target to plan for."""
        from ..gpu import Device, open_device

        if isinstance(self.device, Device):
            device = self.device
            device.check_persistent(self.persistent)
        else:
            device = open_device(self.device, engine=self.engine, persistent=self.persistent)
        return device, replace(device.target, precision=self.precision, cache=self.cache)


DEFAULT = "forward"


def load(
    path: Source | BinaryIO | Bundle | File,
    data: Data = None,
    device: str | int | Device = "auto",
    *,
    engine: Engine = "auto",
    precision: Precision = "auto",
    cache: Cache = "f32",
    persistent: Persistent = "auto",
    methods: str | Iterable[str] | None = None,
    append: Mapping[str, Append] | None = None,
    sizes: Sizes | None = None,
    points: Mapping[str, Points] | None = None,
    first: Mapping[str, Points] | None = None,
    beside: Program | None = None,
    limits: Limits | None = None,
    progress: Progress = silent,
) -> Program:
    """Load a `.pte` or a bundle and make it ready on a GPU.

    `path` is a path, the bytes of the file, an open binary file, or a `Bundle`. `data` is one or several `.ptd` files,
    or mappings from key to bytes, with constants that live outside the program. `device` is "auto", an adapter's index,
    or part of its name (`ptegpu doctor` lists them). `engine` is the GPU backend, "wgpu" or "dawn"; docs/engines.md
    explains "auto". `precision` controls whether products may round their operands to f16: "exact" never, "fast"
    always, also in attention, "auto" if their weights are quantized or f16. `cache` is the type in which key-value
    caches are stored: "f32", "f16", or "q8", which takes 9 bits for an element. `persistent` controls whether
    dispatches of a run become stages of a single one: "off" never, "on" also on software adapters; docs/engines.md
    explains "auto". `methods` selects the methods to load.
    `append` adds operator calls to methods, by name: see `append.py`. `sizes` and `points` are the sizes to plan for:
    see `ptegpu.compile`. Kernels for the points in `first` compile during the upload of weights, kernels for other
    sizes when they are first needed. `beside` is a program of the same file and data; this one shares its device and
    constants and does not read the file again. `limits` bounds what the program may consume: see docs/limits.md.
    `progress` is called with a phase, the amount done, and the total, possibly from another thread.

    A bundle without plans for the GPU runs on the host, and opens no device unless `device` or `engine` names one.
    """
    options = LoadOptions(device, engine, precision, cache, persistent, limits, progress)
    return open_program(
        path, options, data, methods=methods, append=append, sizes=sizes, points=points, first=first, beside=beside
    )


def open_program(
    source: Source | BinaryIO | Bundle | File,
    options: LoadOptions,
    data: Data = None,
    *,
    methods: str | Iterable[str] | None = None,
    append: Mapping[str, Append] | None = None,
    sizes: Sizes | None = None,
    points: Mapping[str, Points] | None = None,
    first: Mapping[str, Points] | None = None,
    beside: Program | None = None,
    states: Method | None = None,
) -> Program:
    """Load a program; see `load` for the parameters.

    It shares the states of the method `states` of the program `beside`, must write the same ones, and must be closed
    before that one. Both methods are in one plan. Its buffers are only large enough for `points`.
    """
    budget, first = Budget(options.limits), first or {}
    with budget.spending("loading it"):
        bundle = source if isinstance(source, Bundle) else find_bundle(source)
        if bundle is not None:
            if beside is not None:
                raise InvalidInput("`beside` cannot be combined with a bundle, which has all its methods already")
            if data is not None or append:
                raise InvalidInput(
                    "a bundle has its data and its calls already: give `data` and `append` to ptegpu.compile"
                )
            if options.cache != "f32":
                raise InvalidInput("a bundle has the caches that it was made with: give `cache` to ptegpu.compile")
            variant = bundle.methods[0]
            if options.device != "auto" or options.engine != "auto" or any(map(_has_plans, bundle.methods)):
                device, target = options.open()
                options, variant = replace(options, device=device), bundle.methods_for(target)
            return Program(bundle, _selected(variant, methods), options, first, budget)
        from ..compiler.program import cut_methods, plan_methods, read_all, read_source

        if beside is None:
            shared = _Shared(read_source(source), read_all(data))  # type: ignore[arg-type]
        else:
            beside._check_open()
            shared, options = beside._shared, replace(options, device=beside.device)
        cuts = cut_methods(shared.file, shared.data, methods, append)
        device, target = options.open()

        def planning(_plan: str, done: int, of: int) -> None:
            options.progress("Planning", done, of)

        compiled, planners = plan_methods(cuts, target, sizes, points, planning, shared.names, tight=states is not None)
        bundle = Bundle(shared.file, (target,), (compiled,), planners)
        return Program(bundle, compiled, replace(options, device=device), first, budget, shared, states)


@dataclass(frozen=True, eq=False)
class _Shared:
    """The data that programs of one file share, and its constants on a device."""

    file: File
    data: list[Mapping[str, Any]] = field(default_factory=list)
    names: dict[Any, str] = field(default_factory=dict)  # of constants, by their addresses in the host's memory
    bundles: list[Bundle] = field(default_factory=list)  # kept, so that these addresses stay in use

    @cached_property
    def constants(self) -> SharedConstants:
        from ..gpu import SharedConstants

        return SharedConstants()


def _has_plans(methods: Mapping[str, CompiledMethod]) -> bool:
    return any(method.plans for method in methods.values())


def _selected(
    compiled: Mapping[str, CompiledMethod], methods: str | Iterable[str] | None
) -> Mapping[str, CompiledMethod]:
    names = list(compiled) if methods is None else [methods] if isinstance(methods, str) else [*methods]
    for name in names:
        if name not in compiled:
            raise _no_method(name, compiled)
    return {name: compiled[name] for name in names}


def _no_method(name: str, names: Iterable[str]) -> KeyError:
    return KeyError(shown(f"no method {name!r}; the program has {', '.join(names) or 'none'}"))


class Program:
    """A program on a device. Call it, or one of its methods; close it, or use it as a context manager.

    Two threads that call one program take turns.
    """

    def __init__(
        self,
        bundle: Bundle,
        compiled: Mapping[str, CompiledMethod],
        options: LoadOptions,
        first: Mapping[str, Points],
        budget: Budget,
        shared: _Shared | None = None,
        states: Method | None = None,
    ) -> None:
        self._shared = shared or _Shared(bundle.file)
        self._shared.bundles.append(bundle)
        self.bundle, self.file, self.limits, self._options = bundle, bundle.file, budget.limits, options
        methods = {name: MethodRunner(method, budget) for name, method in compiled.items()}
        self._methods = methods
        self._bound = {name: Method(self, method) for name, method in methods.items()}
        self._lock: AbstractContextManager[Any] = threading.RLock()
        if _has_plans(compiled):
            from ..gpu import Lock

            self._lock = Lock()
        self._closed = False
        if budget.read:  # otherwise, the bundle's maker counted them
            buffers = (b for method in compiled.values() for plan in method.plans for b in plan.buffers)
            budget.copied = sum({b.name: b.nbytes for b in buffers if b.role == "constant"}.values())
            budget.hold_constants(budget.copied)
        try:
            for name, method in methods.items():
                count = len(method.compiled.plans)
                planners = {k: p for k in range(count) if (p := bundle.planner(method.compiled, k)) is not None}
                if count:
                    from .runner import extender

                    extend = {k: extender(p) for k, p in planners.items()}
                    points = first.get(name, ())
                    owner = None if states is None else states._method.session
                    method.open(self.device, self._shared.constants, extend, points, options.progress, owner)
                else:
                    method.reset()
                detach_from_file(method.compiled, planners.values())
        except BaseException:
            self.close()
            raise

    @cached_property
    def device(self) -> Device:
        """Return the device; a program without plans opens it now."""
        return self._options.open()[0]

    @property
    def methods(self) -> tuple[str, ...]:
        """Return the names of its methods."""
        return tuple(self._methods)

    def method(self, name: str) -> Method:
        """Return a method, which can be called and described."""
        self._check_open()
        if name not in self._bound:
            raise _no_method(name, self._methods)
        return self._bound[name]

    def __call__(self, /, *inputs: Any, **keywords: Any) -> Any:
        """Run `forward` (or the only method) and return the results as the exported module did."""
        name = DEFAULT if DEFAULT in self._methods or len(self._methods) != 1 else next(iter(self._methods))
        return self.method(name)(*inputs, **keywords)

    @property
    def method_names(self) -> set[str]:
        """Return the names of its methods; the name is ExecuTorch's."""
        return set(self._methods)

    def load_method(self, name: str) -> Method:
        """Return a method, like `method`; the name is ExecuTorch's."""
        return self.method(name)

    def metadata(self, method_name: str) -> MethodMeta:
        """Return ExecuTorch's metadata of a method."""
        from .metadata import MethodMeta

        for method in self.file.methods:
            if method.name == method_name:
                return MethodMeta(method)
        names = ", ".join(m.name for m in self.file.methods)
        raise InvalidInput(f"no method {method_name!r}; the program has {names}")

    def prepare(self) -> None:
        """Compile the kernels for inputs of all sizes, so that no call compiles any."""
        with self._lock:
            self._check_open()
            for method in self._methods.values():
                method.prepare()

    def reset(self) -> None:
        """Reset all state (caches, buffers) to its initial values."""
        with self._lock:
            self._check_open()
            for method in self._methods.values():
                method.reset()

    def close(self) -> None:
        """Release the GPU memory. A closed program raises `Closed`."""
        with self._lock:
            self._closed = True
            for method in self._methods.values():
                method.close()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        source, methods = self.file.path or "from memory", ", ".join(self._methods)
        device = self.device.target.name if "device" in self.__dict__ else "the host"
        closed = ", closed" if self._closed else ""
        return shown(f"<ptegpu.Program {source}: {methods} on {device}{closed}>")

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("this program was closed; load it again")


class Method:
    """One method of a program. Call it with its inputs, by position or, where the file has names, by name."""

    def __init__(self, program: Program, method: MethodRunner) -> None:
        self._program, self._method = program, method
        self.name = method.name

    @property
    def inputs(self) -> tuple[Spec, ...]:
        """Return the inputs: names, dtypes, shapes or their bounds."""
        return self._method.signature.inputs

    @property
    def outputs(self) -> tuple[Spec, ...]:
        """Return the outputs, in the order of `execute`."""
        return self._method.signature.outputs

    @property
    def metadata(self) -> MethodMeta:
        """Return ExecuTorch's metadata of it."""
        return self._program.metadata(self.name)

    def __call__(self, /, *inputs: Any, **keywords: Any) -> Any:
        """Run and return the results as the exported module did. Write the inputs that the module writes."""
        with self._program._lock:
            self._program._check_open()
            return self._method(*inputs, **keywords)

    def execute(self, inputs: Sequence[Any]) -> list[Any]:
        """Run; return all outputs, first the new values of inputs that the module writes. The inputs stay unchanged."""
        if not isinstance(inputs, list | tuple):
            raise InvalidInput(f"execute takes a list of the inputs of {self.name}, not {type(inputs).__name__}")
        with self._program._lock:
            self._program._check_open()
            return self._method.execute(inputs)

    def profile(self, *inputs: Any, repeats: int = 10) -> Profile:
        """Return GPU times of all kernels and of an ordinary run, and the wall time: medians over `repeats` calls each.

        The method's state is reset before every call and at the end. An adapter without timestamp queries raises
        LimitExceeded.
        """
        from .profile import profile_method

        with self._program._lock:
            self._program._check_open()
            return profile_method(self._method, self._program.device, inputs, repeats)

    @property
    def in_one_plan(self) -> bool:
        """Return whether `start` can be used."""
        return self._method.in_one_plan

    def start(self, inputs: Sequence[Any], hold: bool = False, read: bool = True) -> Running:
        """Run without waiting: `result()` of the returned object waits, `resident()` can be passed to the next call.

        With `hold`, the run is submitted together with the next one, or when its result is requested. Without `read`,
        results are copied to the host only when they are requested.
        """
        with self._program._lock:
            self._program._check_open()
            return self._method.start(inputs, hold, read)

    @property
    def plans(self) -> list[Plan]:
        """Return the plans that run on the GPU, in order, for all sizes."""
        return [runner.plan for runner in self._method.runners.values()]

    def __repr__(self) -> str:
        return f"<ptegpu.Method {self._method.signature}>"
