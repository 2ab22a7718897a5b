"""An exported program against eager PyTorch on the example inputs."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

from torch.utils._pytree import tree_leaves, tree_map

import ptegpu

from ..errors import DeviceLost, ExportError, LimitExceeded, NoAdapter, OutOfMemory, quoted
from .backend import quiet, torch
from .causes import explained

TOLERANCE = 1e-3  # of the largest element that is expected
ROUNDED_TOLERANCE = 2e-2  # where activations have 16 or 8 bits: a step of 8 bits is 1/127 of the largest
NOISE = 8  # times what eager PyTorch itself is from float64
ZERO = 1e-6  # where zeros are expected
TIES = 0.01  # of the integers of a result: where two are nearly equal, rounding decides
THIS_MACHINE = (NoAdapter, OutOfMemory, LimitExceeded, DeviceLost)  # says nothing about the program


Runs: TypeAlias = Callable[[list[Any]], Any]


class CannotRun(ExportError):
    """ptegpu does not load or run the program."""


class NotChecked(Exception):
    """There is nothing to compare, or nothing to run it on."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Of a result from what is expected."""

    output: int
    largest: float  # of any element
    scale: float  # the largest element that is expected
    allowed: float


class Check:
    """Compares programs made of one module. Eager PyTorch runs once, and again only where results differ."""

    def __init__(
        self,
        module: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any] = MappingProxyType({}),
        method: str = "forward",
    ) -> None:
        self.module, self.args, self.kwargs, self.method = module, args, dict(kwargs), method
        self.expected: list[torch.Tensor] | None = None

    def difference(self, program: bytes | Runs, *, rounded: bool = False) -> float:
        """The largest of any element of any output; ExportError if it is too large for rounding.

        `program` is one to load, or runs on a list of inputs. `rounded`: it rounds activations to 16 or 8 bits.
        """
        tolerance = ROUNDED_TOLERANCE if rounded else TOLERANCE
        if self.expected is None:
            self.expected = self._eager()
        found = self._run(program, len(self.expected))
        differences = [_compared(k, y, e, tolerance) for k, (y, e) in enumerate(zip(found, self.expected))]
        if wrong := [d for d in differences if not d.largest <= d.allowed]:
            self._judge(wrong)
        return max((d.largest for d in differences), default=0.0)

    def _eager(self, convert: Any = lambda x: x) -> list[torch.Tensor]:
        """What a copy of the module gives."""
        try:
            with quiet(), torch.no_grad():
                module = convert(copy.deepcopy(self.module))
                with suppress(NotImplementedError):  # of a module that was traced before
                    module.eval()
                args, kwargs = tree_map(convert, copy.deepcopy((self.args, self.kwargs)))
                return _tensors(module(*args, **kwargs))
        except Exception as e:
            raise NotChecked("\n".join(explained("the module itself fails in eager PyTorch", e))) from e

    def _run(self, program: bytes | Runs, count: int) -> list[torch.Tensor]:
        inputs = tree_leaves(copy.deepcopy((self.args, self.kwargs)))
        try:
            if isinstance(program, bytes):
                with ptegpu.load(program, methods=[self.method]) as loaded:
                    found = _tensors(loaded.method(self.method).execute(inputs))
            else:
                found = _tensors(program(inputs))
        except THIS_MACHINE as e:
            raise NotChecked(str(e)) from e
        except Exception as e:
            raise CannotRun(*quoted("ptegpu cannot run the program: ", e)) from e
        if len(found) < count:
            raise CannotRun(f"the program gives {len(found)} results, and eager PyTorch {count}")
        return found[len(found) - count :]

    def _judge(self, wrong: Sequence[Difference]) -> None:
        """Raises, unless eager PyTorch is as far from itself: by chance, or by rounding."""
        assert self.expected is not None
        again = self._eager()
        try:
            exact = self._eager(_double)
        except NotChecked:
            exact = self.expected
        for d in wrong:
            expected = self.expected[d.output]
            if not distance(again[d.output], expected)[0] <= d.allowed:
                raise NotChecked("the module gives other results each time")
            own = distance(exact[d.output], expected)[0]
            if not (d.largest <= NOISE * own < math.inf):
                raise ExportError(
                    f"the exported program is wrong: its output {d.output} is up to {d.largest:.4g} from eager "
                    f"PyTorch's, whose largest element is {d.scale:.4g}. Nothing was written; please report it. Try "
                    "without partitions (--no-delegate, delegate=False)"
                )


def _compared(output: int, found: torch.Tensor, expected: torch.Tensor, tolerance: float) -> Difference:
    largest, scale = distance(found, expected)
    if expected.dtype.is_floating_point or found.shape != expected.shape:
        return Difference(output, largest, scale, tolerance * scale or ZERO)
    different = (found != expected).double().mean().item() if expected.numel() else 0.0
    return Difference(output, largest, scale, largest if different <= TIES else 0.0)


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
