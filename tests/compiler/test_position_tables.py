"""Tables of positions: what follows from sizes is computed once, where smaller sizes see its beginning."""

from __future__ import annotations

import numpy as np
import pytest

import ptegpu.compiler.position_tables as position_tables
from ptegpu.compiler.partition import HostStep, cut
from ptegpu.dtypes import DType
from ptegpu.graph.flat import FlatMethod
from ptegpu.plan.method import Call, Instruction, Operand, Var

F32, I64 = DType.F32, DType.I64
MOST = 6


class Code:
    """A method that grows call by call; its input `x` has at most 6 rows and 6 columns."""

    def __init__(self) -> None:
        self.x = Var("x", F32, (MOST, MOST), dynamic=True, kind="input")
        self.calls: list[Instruction] = []

    def call(self, op: str, *args: Operand, dtype: DType | None = I64, sizes: tuple[int, ...] = ()) -> Var:
        out = Var(f"v{len(self.calls)}", dtype, sizes, dynamic=True)
        self.calls.append(Call(op, args, (out,), op))
        return out

    def size(self, dim: int) -> Var:
        return self.call("aten.sym_size.int", self.x, dim, dtype=None)

    def arange(self, end: Operand, start: Operand = 0, step: Operand = 1) -> Var:
        return self.call("aten.arange.start_step", start, end, step, sizes=(MOST,))

    def buckets(self, positions: Var) -> Var:
        """Return int64 of logarithms, which only the host computes."""
        logs = self.call("aten.log.default", self.floats(positions), dtype=F32, sizes=positions.sizes)
        return self.call("aten._to_copy.default", logs, sizes=positions.sizes)

    def floats(self, x: Var) -> Var:
        return self.call("aten._to_copy.default", x, dtype=F32, sizes=x.sizes)

    def on_host(self, *results: Var) -> tuple[list[str], list[np.ndarray]]:
        """Return the host's calls in a method that adds these, as floats, to its input; and the tables."""
        for v in results:
            self.call("aten.add.Tensor", self.x, self.floats(v), dtype=F32, sizes=(MOST, MOST))
        linear = FlatMethod("forward", [self.x], [], self.calls)
        items, unsupported = cut(linear)
        assert not unsupported
        host = [i.instruction.op for i in items if isinstance(i, HostStep) and isinstance(i.instruction, Call)]
        tables = [
            a for c in linear.code if isinstance(c, Call) for a in c.args if isinstance(a, Var) and a.data is not None
        ]
        return host, [a.data for a in tables if a.data is not None]


def test_positions_that_only_the_host_can_compute_become_a_table() -> None:
    code = Code()
    host, (table,) = code.on_host(code.buckets(code.arange(code.size(0))))
    assert [] == host
    with np.errstate(divide="ignore"):
        np.testing.assert_array_equal(np.log(np.arange(1, MOST, dtype=np.float32)).astype(np.int64), table[1:])


def test_relative_positions_are_one_table_with_a_slice_for_each_size() -> None:
    code = Code()
    rows, columns = code.arange(code.size(0)), code.arange(code.size(1))
    across = code.call("aten.unsqueeze_copy.default", rows, 1, sizes=(MOST, 1))
    apart = code.call("aten.add.Tensor", across, columns, sizes=(MOST, MOST))
    host, (table,) = code.on_host(code.buckets(code.call("aten.add.Scalar", apart, 1, sizes=(MOST, MOST))))
    assert [] == host
    n = np.arange(MOST, dtype=np.float32)
    np.testing.assert_array_equal(np.log(n[:, None] + n + 1).astype(np.int64), table)


def test_two_scalars_for_the_same_size_are_one() -> None:
    code = Code()
    again = code.call("add", code.size(0), 0, dtype=None)
    both = code.call("aten.add.Tensor", code.arange(code.size(0)), code.arange(again), sizes=(MOST,))
    assert [] == code.on_host(code.buckets(both))[0]


@pytest.mark.parametrize("what", ["counted from the end", "a size is added", "two sizes meet", "from behind"])
def test_what_smaller_sizes_change_is_computed_for_each(what: str) -> None:
    code = Code()
    n = code.size(0)
    steps = code.arange(n)
    if what == "counted from the end":
        steps = code.arange(0, n, -1)
    elif what == "a size is added":
        steps = code.call("aten.add.Scalar", steps, n, sizes=(MOST,))
    elif what == "two sizes meet":
        steps = code.call("aten.add.Tensor", steps, code.arange(code.size(1)), sizes=(MOST,))
    else:
        steps = code.call("aten.flip.default", steps, (0,), sizes=(MOST,))
    host, tables = code.on_host(code.buckets(steps))
    assert "aten.log.default" in host and not tables


def test_what_does_not_fit_32_bits_or_is_too_large_is_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    code = Code()
    wide = code.call("aten.mul.Scalar", code.buckets(code.arange(code.size(0))), 2**40, sizes=(MOST,))
    code.call("aten.index_select.default", code.x, 0, wide, dtype=F32, sizes=(MOST, MOST))
    assert "aten.log.default" in code.on_host()[0]
    monkeypatch.setattr(position_tables, "MAX_TABLE_BYTES", 4 * MOST - 1)
    code = Code()
    assert "aten.log.default" in code.on_host(code.buckets(code.arange(code.size(0))))[0]
