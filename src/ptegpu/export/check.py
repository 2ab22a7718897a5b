"""An exported program against eager PyTorch: both make the same calls, and each result may be off by rounding."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch.utils._pytree import tree_leaves, tree_map

import ptegpu

from ..errors import DeviceLost, ExportError, LimitExceeded, NoAdapter, OutOfMemory, quoted
from .backend import quiet, torch
from .causes import explained
from .lowering import Source


@dataclass(frozen=True, slots=True)
class Tolerance:
    """The allowed difference of a result, as a share of its largest expected element."""

    exact: float
    rounded: float  # where activations have 16 or 8 bits


ELEMENTS = Tolerance(1e-3, 2e-2)  # a step of 8 bits is 1/127 of the largest
LOGITS = Tolerance(1e-3, 5e-2)  # every layer of a language model rounds again
NOISE = 8  # times what eager PyTorch itself is from float64
ZERO = 1e-6  # where zeros are expected
TIES = 0.01  # of the integers of a result: where two are nearly equal, rounding decides
THIS_MACHINE = (NoAdapter, OutOfMemory, LimitExceeded, DeviceLost)  # says nothing about the program

Call: TypeAlias = Callable[..., list[Any]]  # of a method by its name, with inputs
Script: TypeAlias = Callable[[Call], Iterable[tuple[str, list[Any]]]]  # a label for messages, and results to compare
Results: TypeAlias = list[list[torch.Tensor]]  # of each step of a script


class CannotRun(ExportError):
    """ptegpu does not load or run the program."""


class NotChecked(Exception):
    """There is nothing to compare, or nothing to run it on."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Of a result from what is expected."""

    step: int
    output: int
    largest: float  # of any element
    scale: float  # the largest element that is expected
    allowed: float
    same_choice: bool  # the largest element of each row is where it is expected


@dataclass(frozen=True, slots=True)
class Checked:
    """The worst of all results."""

    difference: float = 0.0  # from eager PyTorch, the largest of any element
    largest: float = 0.0  # element that is expected
    relative: float = 0.0  # the largest difference of a result, as a share of its largest element
    same_choice: bool = True

    def and_also(self, d: Difference) -> Checked:
        """Return the worst of these and another one."""
        relative = d.largest / d.scale if d.scale else d.largest
        return Checked(
            max(self.difference, d.largest),
            max(self.largest, d.scale),
            max(self.relative, relative),
            self.same_choice and d.same_choice,
        )


class Check:
    """Compares programs made of the same modules. Eager PyTorch runs once, and again only where results differ.

    A script calls methods by their names, in order, with inputs that may be results of earlier calls. With `again`,
    each run has copies of modules and inputs, and results that differ are measured against float64 before they count
    as wrong. Modules too large for that run as they are; the script sets their state.
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
    def of_examples(sources: Mapping[str, Source]) -> Check:
        """Return a check by one call of each method with its example inputs."""

        def calls(call: Call) -> Iterator[tuple[str, list[Any]]]:
            for name, source in sources.items():
                yield "output {} is", call(name, *source.args, **source.kwargs)

        return Check({name: source.module for name, source in sources.items()}, calls, again=True)

    def compare(self, program: bytes | Callable[[list[Any]], Any], *, rounded: bool = False) -> Checked:
        """Return the worst of all differences; raise ExportError if one is too large for rounding.

        `program` is one to load, or a function of the inputs of `forward`, one by one. `rounded`: it rounds
        activations to 16 or 8 bits.
        """
        if self.expected is None:
            self.expected = self._eager()
        steps = self._run(program)
        differences = []
        for step, (results, expected) in enumerate(zip(steps, self.expected, strict=True)):
            if len(results) < len(expected):
                raise CannotRun(f"the program gives {len(results)} results, and eager PyTorch {len(expected)}")
            last = results[len(results) - len(expected) :]  # inputs that the program writes come first
            share = self.tolerance.rounded if rounded else self.tolerance.exact
            differences += [_compared(step, k, y, e, share) for k, (y, e) in enumerate(zip(last, expected))]
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
        return functools.reduce(Checked.and_also, differences, Checked())

    def _eager(self, convert: Any = lambda x: x) -> Results:
        """Return what eager PyTorch gives."""

        def call(method: str, *args: Any, **kwargs: Any) -> list[Any]:
            module, given = self.modules[method], (args, kwargs)
            if self.again:
                module, given = convert(copy.deepcopy(module)), tree_map(convert, copy.deepcopy(given))
                with suppress(NotImplementedError):  # of a module that was traced before
                    module.eval()
            return tree_leaves(module(*given[0], **given[1]))

        try:
            with quiet(), torch.no_grad():
                steps = list(self.script(call))
        except Exception as e:
            raise NotChecked("\n".join(explained("the module itself fails in eager PyTorch", e))) from e
        self.labels = [label for label, _ in steps]
        return [_tensors(results) for _, results in steps]

    def _run(self, program: bytes | Callable[[list[Any]], Any]) -> Results:
        """Return what a program gives."""

        def leaves(*given: Any) -> list[Any]:
            return tree_leaves(copy.deepcopy(given) if self.again else given)

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

    def _beyond_noise(self, wrong: Sequence[Difference]) -> list[Difference]:
        """Return those for which eager PyTorch is nearer to itself, by chance or by rounding."""
        assert self.expected is not None
        repeated = exact = self._eager()
        with suppress(NotChecked):
            exact = self._eager(_double)
        beyond = []
        for d in wrong:
            expected = self.expected[d.step][d.output]
            if not distance(repeated[d.step][d.output], expected)[0] <= d.allowed:
                raise NotChecked("the module gives other results each time")
            own = distance(exact[d.step][d.output], expected)[0]
            if not (d.largest <= NOISE * own < math.inf):
                beyond.append(d)
        return beyond


def _compared(step: int, output: int, found: torch.Tensor, expected: torch.Tensor, share: float) -> Difference:
    largest, scale = distance(found, expected)
    same = found.shape == expected.shape
    if expected.dtype.is_floating_point or not same:
        allowed = share * scale or ZERO
    else:
        different = (found != expected).double().mean().item() if expected.numel() else 0.0
        allowed = largest if different <= TIES else 0.0
    return Difference(step, output, largest, scale, allowed, same and _same_choice(found, expected))


def _same_choice(found: torch.Tensor, expected: torch.Tensor) -> bool:
    if not expected.dtype.is_floating_point or not expected.dim() or not expected.numel():
        return True
    return torch.equal(found.argmax(-1), expected.argmax(-1))


def distance(found: torch.Tensor, expected: torch.Tensor) -> tuple[float, float]:
    """The largest of any element, infinite for another shape, and the largest finite element that is expected."""
    y, e = found.double(), expected.double()
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
    if isinstance(x, torch.nn.Module):
        return x.double()
    return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
