"""A loaded program: its methods on a device, and what to call them with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, BinaryIO

from ..errors import Closed, InvalidInput
from ..format import Program as File
from ..gpu import Device, Engine, SharedConstants
from ..gpu.threads import Lock
from ..limits import Budget, Limits
from ..plan import Bundle, find_bundle
from ..plan.method import CompiledMethod
from ..plan.plan import Plan
from ..plan.target import Cache, Precision
from ..printing import shown
from ..progress import Progress, silent
from .detach import detach_from_file
from .method import MethodRunner, Running
from .options import LoadOptions
from .runner import Extend
from .signature import Spec

if TYPE_CHECKING:
    from ..compiler.append import Append
    from ..compiler.planner import Points, Sizes
    from ..compiler.program import Data, Source
    from .metadata import MethodMeta
    from .profile import Profile

DEFAULT = "forward"


def load(
    path: Source | BinaryIO | Bundle | File,
    data: Data = None,
    device: str | int | Device = "auto",
    *,
    engine: Engine = "auto",
    precision: Precision = "auto",
    cache: Cache = "f32",
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

    `path` may also be the file's bytes, or a file open for reading them, or a `Bundle`. `data` is one or several `.ptd`
    files, or mappings from key to bytes, with constants that live outside the program. `device` is "auto", an adapter's
    index, or part of its name (`ptegpu doctor` lists them). `engine` is what drives it, "wgpu" or "dawn"; see
    docs/engines.md for what "auto" takes. `precision` says whether products may round what they multiply to f16:
    "exact" never, "fast" always, also in attention, "auto" where their weights are quantized or f16.
    `cache="f16"` stores key-value caches in half, which are float32 otherwise. `methods` limits which methods are made
    ready. `append` adds operator calls to methods, by name: see `append.py`. `sizes` and `points` are those to plan
    for: see `ptegpu.compile`; kernels for the points in `first` compile while weights go up, those for other sizes when
    they are needed. `beside` is a program of the same file and data, whose device and constants this one shares; the
    file is not read again. `limits` are what the program may take: see docs/limits.md. `progress` is told what is going
    on, how much of it is done, and of how much; perhaps from another thread.
    """
    options = LoadOptions(device, engine, precision, cache, limits, progress)
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
) -> Program:
    """Load a program; see `load` for the parameters."""
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
            device, target = options.open()
            chosen = _methods_of(bundle.methods_for(target), methods)
            return Program(bundle, chosen, device, first, budget, options.progress)
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

        outers, planners = plan_methods(cuts, target, sizes, points, planning, shared.names)
        bundle = Bundle(shared.file, (target,), (outers,), planners)
        return Program(bundle, outers, device, first, budget, options.progress, shared)


@dataclass(frozen=True, eq=False, slots=True)
class _Shared:
    """What programs of one file have in common: its data, and its constants on a device."""

    file: File
    data: list[Mapping[str, Any]] = field(default_factory=list)
    names: dict[Any, str] = field(default_factory=dict)  # of constants, by where they are in the host's memory
    constants: SharedConstants = field(default_factory=SharedConstants)
    kept: list[Bundle] = field(default_factory=list)  # so that nothing else comes to be there


def _methods_of(
    outers: Mapping[str, CompiledMethod], methods: str | Iterable[str] | None
) -> Mapping[str, CompiledMethod]:
    wanted = list(outers) if methods is None else [methods] if isinstance(methods, str) else [*methods]
    for name in wanted:
        if name not in outers:
            raise _no_method(name, outers)
    return {name: outers[name] for name in wanted}


def _no_method(name: str, names: Iterable[str]) -> KeyError:
    return KeyError(shown(f"no method {name!r}; the program has {', '.join(names) or 'none'}"))


class Program:
    """A program on a device. Call it, or one of its methods; close it, or use it as a context manager.

    Two threads that call one program take turns.
    """

    def __init__(
        self,
        bundle: Bundle,
        outers: Mapping[str, CompiledMethod],
        device: Device,
        first: Mapping[str, Points],
        budget: Budget,
        progress: Progress,
        shared: _Shared | None = None,
    ) -> None:
        self._shared = shared or _Shared(bundle.file)
        self._shared.kept.append(bundle)
        self.bundle, self.file, self.device, self.limits = bundle, bundle.file, device, budget.limits
        methods = {name: MethodRunner(outer, budget) for name, outer in outers.items()}
        self._methods = methods
        self._bound = {name: Method(self, method) for name, method in methods.items()}
        self._lock = Lock()
        self._closed = False
        if budget.read:  # by whoever made the bundle, else
            buffers = (b for outer in outers.values() for plan in outer.plans for b in plan.buffers)
            budget.copied = sum({b.name: b.nbytes for b in buffers if b.role == "constant"}.values())
            budget.hold_constants(budget.copied)
        try:
            for method in methods.values():
                count = len(method.outer.plans)
                planners = {k: p for k in range(count) if (p := bundle.planner(method.outer, k)) is not None}
                extend = {k: _extender(p) for k, p in planners.items()}
                method.open(device, self._shared.constants, extend, first.get(method.name, ()), progress)
                detach_from_file(method.outer, planners.values())
        except BaseException:
            self.close()
            raise

    @property
    def methods(self) -> tuple[str, ...]:
        """Return the names of its methods."""
        return tuple(self._methods)

    def method(self, name: str) -> Method:
        """Return one method, to call and to ask what it takes."""
        self._check_open()
        if name not in self._bound:
            raise _no_method(name, self._methods)
        return self._bound[name]

    def __call__(self, /, *inputs: Any, **keywords: Any) -> Any:
        """Run `forward` (or the only method) and return what the exported module returned."""
        name = DEFAULT if DEFAULT in self._methods or len(self._methods) != 1 else next(iter(self._methods))
        return self.method(name)(*inputs, **keywords)

    @property
    def method_names(self) -> set[str]:
        """Return the names of its methods, as ExecuTorch has them."""
        return set(self._methods)

    def load_method(self, name: str) -> Method:
        """Return one method under ExecuTorch's name; it is ready already."""
        return self.method(name)

    def metadata(self, method_name: str) -> MethodMeta:
        """Return what ExecuTorch tells of a method."""
        from .metadata import MethodMeta

        for method in self.file.methods:
            if method.name == method_name:
                return MethodMeta(method)
        names = ", ".join(m.name for m in self.file.methods)
        raise InvalidInput(f"no method {method_name!r}; the program has {names}")

    def prepare(self) -> None:
        """Compile all kernels that inputs of any size may need: a call never does after this."""
        with self._lock:
            self._check_open()
            for method in self._methods.values():
                method.prepare()

    def reset(self) -> None:
        """Set all state (caches, buffers) back to its initial values."""
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
        closed = ", closed" if self._closed else ""
        return shown(f"<ptegpu.Program {where}: {methods} on {self.device.target.name}{closed}>")

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
        """Return what ExecuTorch tells of it."""
        return self._program.metadata(self.name)

    def __call__(self, /, *inputs: Any, **keywords: Any) -> Any:
        """Run and return what the exported module returned. Inputs that the module writes are written."""
        with self._program._lock:
            self._program._check_open()
            return self._method(*inputs, **keywords)

    def execute(self, inputs: Sequence[Any]) -> list[Any]:
        """Run; all outputs as a flat list. New values of inputs that the module writes come first; none is written."""
        if not isinstance(inputs, list | tuple):
            raise InvalidInput(f"execute takes a list of the inputs of {self.name}, not {type(inputs).__name__}")
        with self._program._lock:
            self._program._check_open()
            return self._method.execute(inputs)

    def profile(self, *inputs: Any, repeats: int = 10) -> Profile:
        """GPU time of every kernel, of an ordinary run, and wall time: medians over `repeats` calls of each kind.

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
        """Run without waiting: `result()` of what is returned waits, `resident()` can go into the next call.

        With `hold`, the GPU is told together with the next start, or when the result is asked for. Without `read`,
        results are not on their way to the host until they are asked for.
        """
        with self._program._lock:
            self._program._check_open()
            return self._method.start(inputs, hold, read)

    @property
    def plans(self) -> list[Plan]:
        """Return what runs on the GPU, in order, for all sizes."""
        return [runner.plan for runner in self._method.runners.values()]

    def __repr__(self) -> str:
        return f"<ptegpu.Method {self._method.signature}>"


def _extender(planner: Any) -> Extend:
    """Return a function that traces a plan for sizes that it lacks."""

    def extend(shapes: Sequence[Any], item: Callable[[int, int], int]) -> Plan:
        planner.extend(shapes, item)
        return planner.plan()  # type: ignore[no-any-return]

    return extend
