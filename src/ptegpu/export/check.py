"""An exported program against eager PyTorch: the same calls of both, whose results may differ by rounding."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch.utils._pytree import tree_leaves, tree_map

import ptegpu

from ..errors import DeviceLost, ExportError, LimitExceeded, NoAdapter, OutOfMemory, quoted
from .backend import quiet, torch
from .lowering import MethodSource
from .torch_errors import explain


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The allowed difference of a result, as a share of its largest expected element."""

    exact: float
    rounded: float  # where activations have 16 or 8 bits


ELEMENTS = Tolerance(1e-3, 2e-2)  # a step of 8 bits is 1/127 of the largest
LOGITS = Tolerance(1e-3, 5e-2)  # every layer of a language model rounds again
NOISE = 8  # times the difference of eager PyTorch from itself in float64
ZERO = 1e-6  # where zeros are expected
TIES = 0.01  # share of integers that may differ, because rounding decides between nearly equal values
THIS_MACHINE = (NoAdapter, OutOfMemory, LimitExceeded, DeviceLost)  # errors that say nothing about the program

Call: TypeAlias = Callable[..., list[Any]]  # of a method by its name, with inputs
Script: TypeAlias = Callable[[Call], Iterable[tuple[str, list[Any]]]]  # a label for messages, and results to compare
Results: TypeAlias = list[list[torch.Tensor]]  # of each step of a script
Runnable: TypeAlias = bytes | Callable[[list[Any]], Any]


class CannotRun(ExportError):
    """ptegpu does not load or run the program."""


class NotChecked(Exception):
    """There are no results to compare, or no GPU to compute them."""


@dataclass(frozen=True, slots=True)
class ResultDifference:
    """The difference of one result from the expected one."""

    step: int
    output: int
    largest: float  # of any element
    scale: float  # the largest expected element
    allowed: float
    same_choice: bool  # the largest element of each row is where it is expected

    @property
    def relative(self) -> float:
        return self.largest / self.scale if self.scale else self.largest


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The worst differences among all results."""

    difference: float = 0.0  # from eager PyTorch, the largest of any element
    largest: float = 0.0  # expected element
    relative: float = 0.0  # the largest difference of a result, as a share of its largest element
    same_choice: bool = True


class EagerCheck:
    """A comparison of programs with the modules that they come from.

    A script calls methods by name, in order, with inputs that may be results of earlier calls. Eager PyTorch runs the
    script once, and again only where results differ. With `again`, each run has copies of modules and inputs, and
    results that differ are measured against float64 before they count as wrong. Without it, for modules too large to
    copy, the script resets their state.
    """

    def __init__(
        self,
        modules: Mapping[str, torch.nn.Module],
        script: Script,
        tolerance: Tolerance = ELEMENTS,
        *,
        again: bool = False,
    ) -> None:
        self.modules, self.script, self.tolerance, self.again = modules, script, tolerance, again
        self.labels: list[str] = []
        self.expected: Results | None = None

    @staticmethod
    def of_examples(sources: Mapping[str, MethodSource]) -> EagerCheck:
        """Return a check by one call of each method with its example inputs."""

        def calls(call: Call) -> Iterator[tuple[str, list[Any]]]:
            for name, source in sources.items():
                yield "output {} is", call(name, *source.args, **source.kwargs)

        return EagerCheck({name: source.module for name, source in sources.items()}, calls, again=True)

    def compare(self, program: Runnable, *, rounded: bool = False) -> CheckResult:
        """Return the worst of all differences; raise ExportError if one is too large for rounding.

        `program` holds the bytes to load, or is a function of the flat inputs of `forward`. `rounded` programs round
        activations to 16 or 8 bits.
        """
        if self.expected is None:
            self.expected = self._eager()
        share = self.tolerance.rounded if rounded else self.tolerance.exact
        differences = []
        for step, (results, expected) in enumerate(zip(self._run(program), self.expected, strict=True)):
            if len(results) < len(expected):
                raise CannotRun(f"the program returns {len(results)} results, and eager PyTorch {len(expected)}")
            last = results[len(results) - len(expected) :]  # written inputs come first
            differences += [_difference(step, k, y, e, share) for k, (y, e) in enumerate(zip(last, expected))]
        wrong = [d for d in differences if not d.largest <= d.allowed]
        if wrong and self.again:
            wrong = self._beyond_noise(wrong)
        for d in wrong[:1]:
            hint = ". Try without partitions (--no-delegate, delegate=False)" if self.again else ""
            raise ExportError(
                f"the exported program is wrong: its {self.labels[d.step].format(d.output)} up to {d.largest:.4g} "
                f"from eager PyTorch's, whose largest element is {d.scale:.4g}. Nothing was written; please report "
                f"it{hint}"
            )
        return CheckResult(
            max((d.largest for d in differences), default=0.0),
            max((d.scale for d in differences), default=0.0),
            max((d.relative for d in differences), default=0.0),
            all(d.same_choice for d in differences),
        )

    def _eager(self, convert: Any = lambda x: x) -> Results:
        """Return the results of eager PyTorch."""

        def call(method: str, *args: Any, **kwargs: Any) -> list[Any]:
            module = self.modules[method]
            if self.again:
                module = convert(copy.deepcopy(module))
                args, kwargs = tree_map(convert, copy.deepcopy((args, kwargs)))
                with suppress(NotImplementedError):  # of a module that was traced before
                    module.eval()
            return tree_leaves(module(*args, **kwargs))

        try:
            with quiet(), torch.no_grad():
                steps = list(self.script(call))
        except Exception as e:
            raise NotChecked("\n".join(explain("the module itself fails in eager PyTorch", e))) from e
        self.labels = [label for label, _ in steps]
        return [_tensors(results) for _, results in steps]

    def _run(self, program: Runnable) -> Results:
        """Return the results of a program."""

        def leaves(*inputs: Any) -> list[Any]:
            return tree_leaves(copy.deepcopy(inputs) if self.again else inputs)

        try:
            if isinstance(program, bytes):
                with ptegpu.load(program, methods=list(self.modules)) as loaded, torch.no_grad():
                    calls = {name: loaded.method(name).execute for name in self.modules}
                    steps = list(self.script(lambda method, *a, **k: calls[method](leaves(a, k))))
            else:
                steps = list(self.script(lambda _, *a, **k: program(leaves(a, k))))
            return [_tensors(results) for _, results in steps]
        except THIS_MACHINE as e:
            raise NotChecked(str(e)) from e
        except Exception as e:
            raise CannotRun(*quoted("ptegpu cannot run the program: ", e)) from e

    def _beyond_noise(self, wrong: Sequence[ResultDifference]) -> list[ResultDifference]:
        """Return the differences that exceed those of eager PyTorch from itself, by chance or by rounding."""
        assert self.expected is not None
        repeated = exact = self._eager()
        with suppress(NotChecked):
            exact = self._eager(_double)
        beyond = []
        for d in wrong:
            expected = self.expected[d.step][d.output]
            if not distance(repeated[d.step][d.output], expected)[0] <= d.allowed:
                raise NotChecked("the module returns different results each time")
            own = distance(exact[d.step][d.output], expected)[0]
            if not (d.largest <= NOISE * own < math.inf):
                beyond.append(d)
        return beyond


def _difference(step: int, output: int, y: torch.Tensor, expected: torch.Tensor, share: float) -> ResultDifference:
    largest, scale = distance(y, expected)
    comparable = y.shape == expected.shape
    same_choice = comparable
    if expected.dtype.is_floating_point or not comparable:
        allowed = share * scale or ZERO
        if comparable and expected.dim() and expected.numel():
            same_choice = torch.equal(y.argmax(-1), expected.argmax(-1))
    else:
        different = (y != expected).double().mean().item() if expected.numel() else 0.0
        allowed = largest if different <= TIES else 0.0
    return ResultDifference(step, output, largest, scale, allowed, same_choice)


def distance(y: torch.Tensor, expected: torch.Tensor) -> tuple[float, float]:
    """Return the largest difference, infinite for another shape, and the largest finite element that is expected."""
    y, e = y.double(), expected.double()
    finite = e[e.isfinite()].abs()
    scale = finite.max().item() if finite.numel() else 0.0
    if y.shape != e.shape:
        return math.inf, scale
    same = (y == e) | (y.isnan() & e.isnan())
    apart = torch.where(same, 0.0, (y - e).abs()).nan_to_num(nan=math.inf, posinf=math.inf)
    return (apart.max().item() if apart.numel() else 0.0), scale


def _tensors(results: Any) -> list[torch.Tensor]:
    return [torch.as_tensor(y) for y in tree_leaves(results) if not isinstance(y, str | None)]


def _double(x: Any) -> Any:
    floats = isinstance(x, torch.nn.Module) or (isinstance(x, torch.Tensor) and x.is_floating_point())
    return x.double() if floats else x
