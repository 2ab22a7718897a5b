"""Rotary embeddings: prefill, decode, unequal heads, odd widths, tables per head, symbolic starts, dynamic lengths."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.oracle import Case, S, T, check, compare, graph_of, plan_of, torch_operator

import ptegpu
from ptegpu.dtypes import DType
from ptegpu.errors import ShapeError
from ptegpu.plan.target import Target

F16 = DType.F16
LENGTHS = (1, 2, 7, 16, 33)
Pair = tuple[torch.Tensor, torch.Tensor]


def turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Multiply neighbouring pairs, as complex numbers, by cos + i sin; tables are (S, D/2) or (S, H, D/2)."""
    pairs = torch.view_as_complex(x.double().unflatten(-1, (-1, 2)))
    angles = torch.complex(cos.double(), sin.double())
    angles = angles if angles.ndim == 3 else angles[:, None, :]
    return torch.view_as_real(pairs * angles).flatten(-2).to(x.dtype)


def by_pairs(xq: torch.Tensor, xk: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Pair:
    return turned(xq, cos, sin), turned(xk, cos, sin)


def by_halves(xq: torch.Tensor, xk: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, start: int) -> Pair:
    def rotate(x: torch.Tensor) -> torch.Tensor:
        width, half = cos.shape[1], cos.shape[1] // 2
        rows = slice(start, start + x.shape[1])
        c, s = cos[rows, None, :].double(), sin[rows, None, :].double()
        y = x.double().clone()
        left, right = x[..., :half].double(), x[..., half:width].double()
        y[..., :half] = left * c[..., :half] - right * s[..., :half]
        y[..., half:width] = right * c[..., half:] + left * s[..., half:]
        return y.to(x.dtype)

    return rotate(xq), rotate(xk)


def by_rows(xq: torch.Tensor, xk: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, start: int) -> Pair:
    """Rotate halves with heads before positions and tables (1 or B, P, R), as Hugging Face models do."""

    def rotate(x: torch.Tensor) -> torch.Tensor:
        rows = slice(start, start + x.shape[2])
        c, s = cos[:, None, rows].double(), sin[:, None, rows].double()
        left, right = x[..., : c.shape[-1]].double().chunk(2, -1)
        turned = torch.cat([left, right], -1) * c + torch.cat([-right, left], -1) * s
        return torch.cat([turned.to(x.dtype), x[..., c.shape[-1] :]], -1)

    return rotate(xq), rotate(xk)


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


def rows(s: int, d: int, width: int, tables: tuple[int, int], start: int = 0, x: DType = DType.F32, b: int = 1) -> Case:
    table = T((*tables, width))
    args = (T((b, 4, s, d), x), T((b, 2, s, d), x), table, T(table.shape), start)
    return Case("et_vk.apply_rotary_emb_hf.default", args, by_rows)


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
    *(rows(s, 8, 8, (1, s)) for s in LENGTHS),
    rows(5, 8, 8, (1, 5), b=3),
    rows(5, 8, 8, (3, 5), b=3),
    rows(7, 10, 6, (2, 7), b=2),
    rows(3, 5, 4, (1, 3), x=F16),
    rows(4, 6, 6, (1, 9), 2),
    rows(4, 6, 2, (2, 9), 5, b=2),
    rows(0, 8, 8, (1, 0)),
    rows(3, 8, 8, (1, 3), b=0),
    *(interleaved((2, n, 8), (n, 8)) for n in LENGTHS),
    interleaved((3, 5, 6), (1, 5, 3, 2)),
    interleaved((1, 5, 2), (10,), F16),
    interleaved((0, 5, 4), (5, 4)),
]

BENCHMARKS = [  # at real sizes
    pairs(1, 2048, 32, 8, 64),
    pairs(1, 1, 32, 8, 64),
]
BROWSER = CASES[2::4]


def exported(case: Case) -> bool:
    """Return True if the exporter's operator supports a case; with tables per batch its start would slice the batch."""
    return 0 not in case.args[0].shape and not (case.args[2:] and case.reference is by_rows and case.args[4])


@pytest.mark.parametrize("case", [c for c in CASES if exported(c)], ids=str)
def test_the_reference_agrees_with_the_exporter(case):
    rng = np.random.default_rng(1)
    args = [torch.from_numpy(a.make(rng)) if isinstance(a, T) else a for a in case.args]
    theirs, ours = torch_operator(case.op)(*args), case.reference(*args)
    for a, b in zip(theirs, ours, strict=True) if isinstance(theirs, tuple) else [(theirs, ours)]:
        compare(a.numpy(), b.numpy(), 1e-2 if a.dtype == torch.float16 else 1e-5, "the exporter's operator")


def live(s: int) -> tuple[T, T]:
    return T((1, s, 4, 8), limit=(1, 33, 4, 8)), T((1, s, 2, 8), limit=(1, 33, 2, 8))


@pytest.mark.parametrize("s", [0, *LENGTHS])
def test_live_lengths(s):
    tables = T((s, 4), limit=(33, 4)), T((s, 4), limit=(33, 4))
    check(Case("et_vk.apply_rotary_emb.default", (*live(s), *tables), by_pairs))


@pytest.mark.parametrize("start", [S(0), S(7), S(7, planned=0)], ids=["0", "7", "7 in the plan of 0"])
@pytest.mark.parametrize("s", LENGTHS)
def test_live_lengths_from_a_symbolic_start(s, start):
    tables = T((40, 6), constant=True), T((40, 6), constant=True)
    check(Case("et_vk.apply_rotary_emb_hf.default", (*live(s), *tables, start), by_halves))


@pytest.mark.parametrize("start", [S(0), S(7), S(7, planned=0)], ids=["0", "7", "7 in the plan of 0"])
@pytest.mark.parametrize("s", LENGTHS)
def test_live_lengths_of_heads_before_positions(s, start):
    xs = T((2, 4, s, 8), limit=(3, 4, 33, 8)), T((2, 2, s, 8), limit=(3, 2, 33, 8))
    tables = T((1, 40, 6), constant=True), T((1, 40, 6), constant=True)
    check(Case("et_vk.apply_rotary_emb_hf.default", (*xs, *tables, start), by_rows))


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("s", [0, *LENGTHS])
def test_live_tables_by_batch(s, batch):
    xs = T((2, 4, s, 8), limit=(3, 4, 33, 8)), T((2, 2, s, 8), limit=(3, 2, 33, 8))
    limit = (1 if batch == 1 else 3, 33, 8)
    tables = T((batch, s, 8), limit=limit), T((batch, s, 8), limit=limit)
    check(Case("et_vk.apply_rotary_emb_hf.default", (*xs, *tables, 0), by_rows))


class Phi(torch.nn.Module):
    """Rotary embedding of Phi and Phi-3, which the exporter makes one operator with tables [1, S, R]."""

    def __init__(self, rotary: int) -> None:
        super().__init__()
        self.rotary = rotary

    def forward(self, q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor) -> Pair:
        frequencies = 0.1 ** torch.arange(0, self.rotary, 2)
        angles = positions[:, :, None].float() * frequencies
        angles = torch.cat([angles, angles], -1)
        cos, sin = angles.cos().unsqueeze(1), angles.sin().unsqueeze(1)
        return self.turned(q, cos, sin), self.turned(k, cos, sin)

    def turned(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        first, rest = x[..., : self.rotary], x[..., self.rotary :]
        left, right = first[..., : self.rotary // 2], first[..., self.rotary // 2 :]
        return torch.cat([first * cos + torch.cat((-right, left), -1) * sin, rest], -1)


@pytest.mark.parametrize("rotary", [32, 24], ids=["whole", "partial"])
def test_phi_is_exported_with_tables_by_batch(rotary):
    torch.manual_seed(0)
    module = Phi(rotary).eval()
    args = torch.randn(1, 4, 6, 32), torch.randn(1, 2, 6, 32), torch.arange(6)[None]
    from tests.exporting import export  # benchmarks import this file without ExecuTorch

    file = export(module, args)
    assert b"apply_rotary_emb_hf" in file
    with ptegpu.load(file) as program:
        for got, want in zip(program(*args), module(*args), strict=True):
            torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


def pairing(q: str, k: str) -> str:
    return f"query and key must be [B, S, H, D] of the same S and D, not {q} and {k}"


def fitting(cos: str, sin: str) -> str:
    return f"a table of cosines {cos} and one of sines {sin} do not fit [1, 3, 4, 8]"


q, t = T((1, 3, 4, 8)), T((3, 4))
REFUSED = [
    ("", (T((3, 4, 8)), q, t, t), pairing("[3, 4, 8]", "[1, 3, 4, 8]")),
    ("", (q, T((1, 3, 4, 6)), t, t), pairing("[1, 3, 4, 8]", "[1, 3, 4, 6]")),
    ("", (q, q, T((2, 4)), T((2, 4))), fitting("[2, 4]", "[2, 4]")),
    ("", (q, q, t, T((3, 5))), fitting("[3, 4]", "[3, 5]")),
    ("_hf", (q, q, T((9, 8)), T((9, 8)), 7), fitting("[9, 8]", "[9, 8]")),
    ("_hf", (q, q, T((9, 10)), T((9, 10)), 0), fitting("[9, 10]", "[9, 10]")),
    ("_hf", (q, q, T((2, 4, 8)), T((2, 4, 8)), 0), fitting("[2, 4, 8]", "[2, 4, 8]")),
    ("_hf", (q, q, T((1, 3, 8)), T((1, 3, 8)), 0), fitting("[1, 3, 8]", "[1, 3, 8]")),
    ("_hf", (q, q, T((4, 1, 1, 8)), T((4, 1, 1, 8)), 0), fitting("[4, 1, 1, 8]", "[4, 1, 1, 8]")),
    (
        "_hf",
        (q, T((1, 4, 3, 8)), T((1, 4, 8)), T((1, 4, 8)), 0),
        "query and key must be [B, H, S, D] of the same S and D, not [1, 3, 4, 8] and [1, 4, 3, 8]",
    ),
    ("_interleaved", (T((1, 3, 8)), T((3, 4))), "a table of shape [3, 4] does not fit [1, 3, 8]"),
]


@pytest.mark.parametrize("suffix, args, message", REFUSED, ids=str)
def test_refused(suffix, args, message):
    arrays = {id(a): np.zeros(a.shape, np.float32) for a in args if isinstance(a, T)}
    case = Case(f"et_vk.apply_rotary_emb{suffix}.default", args)
    outs = [np.zeros(a.shape, np.float32) for a in args[: 1 if suffix == "_interleaved" else 2]]
    graph, _ = graph_of(case, arrays, outs)
    with pytest.raises(ShapeError) as error:
        plan_of(graph, Target())
    assert str(error.value) == f"{case.op}: {message}"
