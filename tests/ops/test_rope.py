"""Rotary embeddings: prefill and decode, unequal heads, odd widths, tables by head, symbolic starts, live lengths."""

from __future__ import annotations

from functools import partial

import executorch.backends.vulkan.custom_ops_lib  # noqa: F401  (defines et_vk)
import numpy as np
import pytest
import torch

from ptegpu.dtypes import DType
from ptegpu.errors import ShapeError
from ptegpu.gpu.session import Session
from ptegpu.graph.graph import Graph, Node, Sym, Tensor
from ptegpu.graph.live import Live
from ptegpu.ops.registry import REGISTRY
from ptegpu.passes.memory import plan_memory
from ptegpu.plan.lower import lower
from ptegpu.plan.symbols import Symbols
from ptegpu.plan.target import Target
from tests.oracle import Case, T, check, compare, device, graph_of, plan_of, torch_operator

F16 = DType.F16
LENGTHS = (1, 2, 7, 16, 33)
Pair = tuple[torch.Tensor, torch.Tensor]


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Neighbouring pairs as complex numbers, times cos + i sin; tables (S, D/2) or (S, H, D/2)."""
    pairs = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)))
    angles = torch.complex(cos.double(), sin.double())
    angles = angles if angles.ndim == 3 else angles[:, None, :]
    return torch.view_as_real(pairs * angles).flatten(-2).to(x.dtype)


def by_pairs(xq: torch.Tensor, xk: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Pair:
    return turned(xq, cos, sin), turned(xk, cos, sin)


def by_halves(xq: torch.Tensor, xk: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, start: int) -> Pair:
    def one(x: torch.Tensor) -> torch.Tensor:
        width, half = cos.shape[1], cos.shape[1] // 2
        rows = slice(start, start + x.shape[1])
        c, s = cos[rows, None, :].double(), sin[rows, None, :].double()
        y = x.double().clone()
        left, right = x[..., :half].double(), x[..., half:width].double()
        y[..., :half] = left * c[..., :half] - right * s[..., :half]
        y[..., half:width] = right * c[..., half:] + left * s[..., half:]
        return y.to(x.dtype)

    return one(xq), one(xk)


def by_complex(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    cos, sin = table.reshape(x.shape[1], -1, 2).unbind(-1)
    return turned(x[:, :, None, :], cos, sin)[:, :, 0, :]


def pairs(b: int, s: int, hq: int, hk: int, d: int, x: DType = DType.F32, t: DType = DType.F32, by_head=False) -> Case:
    table = T((s, hq, d // 2) if by_head else (s, d // 2), t)
    args = (T((b, s, hq, d), x), T((b, s, hk, d), x), table, T(table.shape, t))
    return Case("et_vk.apply_rotary_emb.default", args, by_pairs)


def halves(s: int, d: int, width: int, rows: int, start: int, x: DType = DType.F32, b: int = 1) -> Case:
    args = (T((b, s, 4, d), x), T((b, s, 2, d), x), T((rows, width)), T((rows, width)), start)
    return Case("et_vk.apply_rotary_emb_hf.default", args, by_halves)


def interleaved(shape: tuple[int, ...], table: tuple[int, ...], x: DType = DType.F32) -> Case:
    return Case("et_vk.apply_rotary_emb_interleaved.default", (T(shape, x), T(table, x)), by_complex)


CASES = [
    *(pairs(1, s, 4, 2, 8) for s in LENGTHS),
    *(pairs(1, s, 3, 1, 6) for s in LENGTHS),
    pairs(2, 5, 4, 4, 16),
    pairs(3, 3, 1, 1, 2),
    pairs(1, 7, 32, 8, 64),
    pairs(2, 3, 2, 2, 6, by_head=True),
    pairs(1, 0, 4, 2, 8),
    pairs(1, 1, 4, 2, 0),
    pairs(1, 5, 3, 1, 6, F16),
    pairs(1, 5, 4, 2, 8, F16, F16),
    *(halves(s, 8, 8, s, 0) for s in LENGTHS),
    *(halves(s, 8, 8, 40, 5) for s in LENGTHS),
    halves(7, 10, 6, 9, 2),
    halves(3, 5, 4, 9, 6),
    halves(3, 8, 0, 9, 6),
    halves(0, 8, 8, 9, 9),
    halves(3, 12, 8, 9, 0, b=2),
    halves(5, 7, 6, 9, 4, F16),
    halves(300, 4, 4, 300, 0),
    *(interleaved((2, n, 8), (n, 8)) for n in LENGTHS),
    interleaved((3, 5, 6), (1, 5, 3, 2)),
    interleaved((1, 5, 2), (10,), F16),
    interleaved((0, 5, 4), (5, 4)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case):
    check(case)


@pytest.mark.parametrize("case", CASES[2::4], ids=str)
def test_in_a_browser_without_features(case):
    check(case, f16=False, subgroups=False, limits="browser")


@pytest.mark.parametrize("case", [c for c in CASES if 0 not in c.args[0].shape], ids=str)
def test_the_reference_agrees_with_the_exporter(case):
    rng = np.random.default_rng(1)
    args = [torch.from_numpy(a.make(rng)) if isinstance(a, T) else a for a in case.args]
    theirs, ours = torch_operator(case.op)(*args), case.reference(*args)
    for a, b in zip(theirs, ours, strict=True) if isinstance(theirs, tuple) else [(theirs, ours)]:
        compare(a.numpy(), b.numpy(), 1e-2 if a.dtype == torch.float16 else 1e-5, "the exporter's operator")


def run_live(op: str, syms: tuple[int, ...], rows: int | None, tables: tuple[int, int]) -> None:
    """One graph at lengths up to 33; with `rows` the tables are constants and the start is a symbolic int."""
    rng = np.random.default_rng(2)
    gpu = device()
    q, k = Tensor("q", DType.F32, (1, 33, 4, 8), "input"), Tensor("k", DType.F32, (1, 33, 2, 8), "input")
    full = [rng.standard_normal((rows or 33, tables[1])).astype(np.float32) for _ in range(2)]
    cos, sin = (
        Tensor(n, DType.F32, t.shape, "constant" if rows else "input", t) for n, t in zip(("cos", "sin"), full, strict=True)
    )
    start = Sym("start")
    outs = Tensor("q_out", DType.F32, q.max_shape), Tensor("k_out", DType.F32, k.max_shape)
    node = Node(REGISTRY[op], (q, k, cos, sin, start) if rows else (q, k, cos, sin), outs, op)
    graph = Graph("live", [q, k, start] if rows else [q, k, cos, sin], list(outs), [node])
    memory, symbols, live = plan_memory(graph, gpu.target), Symbols(graph), Live(graph)
    with Session(gpu) as session:
        for s in (33, *LENGTHS):
            arrays = [rng.standard_normal((1, s, h, 8)).astype(np.float32) for h in (4, 2)]
            given = arrays if rows else [*arrays, *(t[:s] for t in full)]
            prepared = None
            for position in syms:
                shapes = {t: a.shape for t, a in zip((q, k) if rows else (q, k, cos, sin), given, strict=True)}
                changed = live.update(shapes | {start: position} if rows else shapes, lambda t: t.data)
                if prepared is None:
                    prepared = session.prepare(lower(graph, memory, gpu.target, symbols, f".{s}"))
                else:
                    assert not changed, "a new start must not need a new plan"
                got = session.run(prepared, given, symbols.words())
                x = [torch.from_numpy(a) for a in (*arrays, *full)]
                want = by_halves(*x, position) if rows else by_pairs(x[0], x[1], x[2][:s], x[3][:s])
                for a, b in zip(got, want, strict=True):
                    compare(a, b.numpy(), 1e-5, f"{s} from {position}")


def test_live_lengths():
    run_live("et_vk.apply_rotary_emb.default", (0,), None, (33, 4))


def test_live_lengths_and_symbolic_start():
    run_live("et_vk.apply_rotary_emb_hf.default", (0, 3, 7), 40, (40, 8))


q, t = T((1, 3, 4, 8)), T((3, 4))
REFUSED = [
    ("", (T((3, 4, 8)), q, t, t), "query and key must be [B, S, H, D] of the same S and D, not [3, 4, 8] and [1, 3, 4, 8]"),
    ("", (q, T((1, 3, 4, 6)), t, t), "query and key must be [B, S, H, D] of the same S and D, not [1, 3, 4, 8] and [1, 3, 4, 6]"),
    ("", (q, q, T((2, 4)), T((2, 4))), "a table of cosines [2, 4] and one of sines [2, 4] do not fit [1, 3, 4, 8]"),
    ("", (q, q, t, T((3, 5))), "a table of cosines [3, 4] and one of sines [3, 5] do not fit [1, 3, 4, 8]"),
    ("_hf", (q, q, T((9, 8)), T((9, 8)), 7), "a table of cosines [9, 8] and one of sines [9, 8] do not fit [1, 3, 4, 8]"),
    ("_hf", (q, q, T((9, 10)), T((9, 10)), 0), "a table of cosines [9, 10] and one of sines [9, 10] do not fit [1, 3, 4, 8]"),
    ("_interleaved", (T((1, 3, 8)), T((3, 4))), "a table of shape [3, 4] does not fit [1, 3, 8]"),
]  # fmt: skip


@pytest.mark.parametrize("suffix, args, message", REFUSED, ids=str)
def test_refused(suffix, args, message):
    arrays = {id(a): np.zeros(a.shape, np.float32) for a in args if isinstance(a, T)}
    case = Case(f"et_vk.apply_rotary_emb{suffix}.default", args)
    outs = [np.zeros(a.shape, np.float32) for a in args[: 1 if suffix == "_interleaved" else 2]]
    graph, _ = graph_of(case, arrays, outs)
    with pytest.raises(ShapeError) as error:
        plan_of(graph, Target())
    assert str(error.value) == f"{case.op}: {message}"
