"""Attention: every combination of length, position, head sharing and width; masks, split keys, persistent caches."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from tests.cases import close
from tests.graphs import engine_of
from tests.oracle import Case, S, T, check, compare, device, graph_of, plan_of, torch_operator
from torch import nn

import ptegpu
from ptegpu.dtypes import DType
from ptegpu.errors import InvalidProgram, ShapeError
from ptegpu.plan.target import Target

F16, F32, BOOL = DType.F16, DType.F32, DType.BOOL
CACHE = 40
Torch = torch.Tensor


def attention(
    q: Torch, k: Torch, v: Torch, start: int, mask: Torch | None = None, drop=0.0, causal=False, scale: Any = None
) -> Torch:
    """Return causal attention of q (B, S, H, D) from position `start` over k and v (B, C, H', D)."""
    work = q.dtype if q.dtype == torch.float64 else torch.float32
    first, end = max(start, 0), k.shape[1]
    if mask is None:
        end = min(first + q.shape[1], end)
    keys, values = (x[:, :end].to(work).repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v))
    scores = torch.einsum("bshd,bthd->bhst", q.to(work), keys) * (scale or q.shape[3] ** -0.5)
    scores = scores if mask is None else scores + mask
    if causal:
        own = first + torch.arange(q.shape[1], device=q.device)[:, None]
        scores = scores.masked_fill(torch.arange(end, device=q.device) > own, -math.inf)
    return torch.einsum("bhst,bthd->bshd", scores.softmax(-1), values).to(q.dtype)


def update(value: Torch, cache: Torch, start: int) -> Torch:
    first = min(max(start, 0), cache.shape[1])
    fits = cache[:, first : first + value.shape[1]]
    fits.copy_(value[:, : fits.shape[1]])
    return torch.zeros(1, dtype=value.dtype)


def attention_with_cache(q: Torch, k: Torch, v: Torch, keys: Torch, values: Torch, start: int, _: int, *rest) -> Torch:
    update(k, keys, start)
    update(v, values, start)
    return attention(q, keys, values, start, *rest)


def cached(
    s: int,
    start: int,
    sharing: int,
    dim: int,
    *,
    batch: int = 1,
    heads: int = 2,
    cache: int = CACHE,
    dtype: DType = F32,
    causal: bool = True,
    mask: T | None = None,
    scale: float | None = None,
    longest: int | None = None,
) -> Case:
    """Return a case that is planned at position 0 and run at `start`."""

    def new(h: int) -> T:
        return T((batch, s, h, dim), dtype, limit=(batch, longest, h, dim) if longest else None)

    old = [T((batch, cache, heads, dim), dtype) for _ in range(2)]
    args = (new(heads * sharing), new(heads), new(heads), *old, S(start, planned=0), 1, mask, 0.0, causal, scale)
    return Case("sdpa_with_kv_cache.default", args, attention_with_cache, mutated=(3, 4))


def custom(s: int, start: int, sharing: int, dim: int, mask: T | None = None, causal: bool = True) -> Case:
    caches = [T((1, CACHE, 2, dim)) for _ in range(2)]
    args = (T((1, s, 2 * sharing, dim)), *caches, S(start, planned=0), mask, 0.0, causal, None)
    return Case("custom_sdpa.default", args, attention)


def writes(b: int, s: int, c: int, h: int, d: int, start: int, dtype: DType = F32) -> Case:
    args = (T((b, s, h, d), dtype), T((b, c, h, d), dtype), S(start, planned=0))
    return Case("update_cache.default", args, update, mutated=(1,))


# Every length and every head sharing with every width; neighbours share a pipeline.
SWEEP = {
    4: [(1, 2), (2, 1), (7, 8), (33, 1), (33, 4)],
    16: [(1, 4), (2, 2), (7, 4), (33, 1), (33, 8)],
    20: [(1, 2), (2, 1), (7, 1), (7, 4), (33, 8)],
    64: [(1, 1), (1, 8), (2, 4), (7, 8), (33, 2)],
    80: [(1, 2), (2, 1), (7, 4), (33, 8)],
    128: [(1, 4), (2, 2), (7, 8), (33, 1)],
}
POSITIONS = [
    cached(s, start, sharing, dim)
    for dim, pairs in SWEEP.items()
    for s, sharing in pairs
    for start in (0, 1, 5, CACHE - s)
]

BEYOND = [  # start + s > CACHE, and before 0: clamped
    cached(1, CACHE, 4, 16),
    cached(2, CACHE - 1, 2, 16),
    cached(2, 1000, 2, 16),
    cached(2, 2**31 - 1, 2, 16),
    cached(2, -3, 2, 16),
    cached(33, CACHE - 20, 1, 16),
    cached(33, -1, 1, 16),
]

CACHED = [
    cached(1, 9, 4, 16, batch=2),
    cached(33, 3, 2, 16, batch=2),
    cached(2, 9, 1, 7, heads=3),  # not a multiple of 4
    cached(33, 3, 2, 7, heads=1, batch=2),
    cached(1, 5, 4, 16, scale=0.3),
    cached(2, 5, 2, 16, causal=False),
    cached(1, 599, 4, 16, cache=600),  # split keys
    cached(1, 3, 4, 16, cache=600),  # split keys, all parts but one empty
    cached(2, 511, 2, 16, cache=600),
    cached(33, 500, 4, 16, cache=600),
    cached(33, 0, 4, 16, cache=600),
    cached(20, 9, 1, 300, heads=1),  # wider than tiles
    cached(1, 9, 1, 1100, heads=1),  # wider than a workgroup
    cached(0, 9, 2, 16),
    cached(1, 5, 4, 16, mask=T((1, CACHE)), causal=False),
    cached(33, 5, 2, 16, mask=T((33, CACHE)), causal=False),
]

HALVES = [
    cached(1, 9, 4, 16, dtype=F16),
    cached(33, 3, 2, 16, dtype=F16),
    cached(2, 9, 1, 7, dtype=F16, heads=1, batch=2),
    cached(33, 7, 2, 7, dtype=F16, heads=1, batch=2),
]

CUSTOM = [
    custom(1, 9, 4, 16),
    custom(33, 3, 2, 16),
    custom(2, 0, 2, 16, causal=False),
    custom(2, 11, 2, 16, mask=T((2, CACHE)), causal=False),
]

WRITES = [
    *(writes(1, s, 9, 2, 4, start) for s in (1, 3) for start in (0, 2, 9 - s)),
    writes(2, 3, 9, 1, 3, 6),
    writes(2, 3, 9, 1, 3, 7),  # the last row is dropped
    writes(2, 3, 9, 1, 3, -1),
    writes(2, 0, 9, 1, 4, 3),
    writes(2, 3, 5, 2, 4, 1, F16),
    *(writes(2, 3, 5, 1, 3, start, F16) for start in (0, 1, 2, 4)),
    writes(1, 70, 90, 3, 5, 11),
]


def grouped(q: Torch, k: Torch, v: Torch, mask: Torch | None = None, scale: float | None = None) -> Torch:
    sharing = q.shape[-3] // k.shape[-3] if q.ndim > 2 else 1
    k, v = (x.repeat_interleave(sharing, -3) if sharing > 1 else x for x in (k, v))
    return torch_operator("et_vk.sdpa.default")(q, k, v, mask, scale)


def plain(
    q: tuple[int, ...], keys: int, *, heads: int = 2, width: int | None = None, mask: T | None = None,
    scale: float | None = None, dtype: DType = F32,
) -> Case:  # fmt: skip
    """Return a case of q (B, H, S, D) with `keys` keys of `heads` heads and values of `width` elements."""
    lead = (*q[:-3], heads) if len(q) > 2 else ()
    args = (T(q, dtype), T((*lead, keys, q[-1]), dtype), T((*lead, keys, width or q[-1]), dtype), mask, scale)
    return Case("et_vk.sdpa.default", args, grouped)


def hides(*shape: int) -> T:
    """Return a mask of 0 and -inf that leaves the first key of every row visible."""
    rng = np.random.default_rng(7)
    values = np.where(rng.random(shape) < 0.5, 0.0, -np.inf)
    values[..., 0] = 0.0
    return T(shape, values=tuple(values.reshape(-1)))


def blind(rows: int, keys: int) -> T:
    """Return a mask that hides every key from the second row."""
    values = np.zeros((rows, keys))
    values[1] = -np.inf
    return T((rows, keys), values=tuple(values.reshape(-1)))


PLAIN = [
    plain((1, 4, 2, 16), 50),
    plain((1, 4, 2, 16), 50, mask=T((2, 50), DType.I32, -3, 4)),
    plain((1, 2, 33, 16), 45, mask=T((33, 45), DType.I8, -3, 4)),
    plain((2, 8, 33, 16), 45),
    plain((2, 2, 33, 16), 5, scale=0.5),
    plain((2, 33, 16), 40),
    plain((33, 16), 40),
    plain((1, 2, 33, 6), 40, width=5),
    plain((1, 2, 4, 4), 40, width=132),
    plain((1, 2, 0, 16), 40),
    plain((0, 2, 3, 16), 40),
    plain((1, 2, 4, 16), 0),
    *(
        plain((2, 4, 33, 16), 40, mask=T(m))
        for m in [(2, 4, 33, 40), (33, 40), (2, 1, 33, 40), (1, 4, 1, 40), (33, 1), (40,), ()]
    ),
    plain((2, 4, 2, 16), 40, mask=T((2, 1, 2, 40), F16), dtype=F16),
    plain((1, 4, 2, 16), 40, mask=hides(2, 40)),
    plain((1, 2, 33, 16), 40, mask=hides(2, 33, 40)),
    plain((1, 4, 2, 16), 40, mask=blind(2, 40)),
    plain((1, 4, 2, 16), 600, mask=blind(2, 600)),
]

aten = partial(Case, "aten.scaled_dot_product_attention.default")


def qkv(s: int, t: int, heads: int = 2) -> tuple[T, T, T]:
    return T((2, heads, s, 16)), T((2, 2, t, 16)), T((2, 2, t, 16))


ATEN = [
    aten((*qkv(4, 9), None, 0.0, False, None, False)),
    aten((*qkv(4, 9), None, 0.0, True, None, False)),
    aten((*qkv(33, 40), None, 0.0, True, None, False)),
    aten((*qkv(40, 33, 8), None, 0.0, True, 0.2, True)),
    aten((*qkv(4, 50), T((4, 50), BOOL, values=tuple(k % 3 != 1 for k in range(200))), 0.0, False, None, False)),
    aten((*qkv(33, 40), T((2, 1, 33, 40), BOOL), 0.0, False, None, False)),
    aten((*qkv(4, 40), blind(4, 40), 0.0, False, None, False)),
    aten((*qkv(33, 40), blind(33, 40), 0.0, False, None, False)),
]

CASES = [*POSITIONS, *BEYOND, *CACHED, *HALVES, *CUSTOM, *WRITES, *PLAIN, *ATEN]


def peer(q: Torch, keys: Torch, values: Torch, mask: None = None, scale: float | None = None) -> Torch:
    return nn.functional.scaled_dot_product_attention(
        q, keys, values, scale=scale, enable_gqa=q.shape[-3] != keys.shape[-3]
    )


def cached_peer(q: Torch, k: Torch, v: Torch, keys: Torch, values: Torch, start: int, *_: Any) -> Torch:
    """Write the caches and attend up to the last position; only a full prompt needs the causal mask."""
    end = start + q.shape[1]
    keys[:, start:end], values[:, start:end] = k, v
    q, k, v = (x.transpose(1, 2) for x in (q, keys[:, :end], values[:, :end]))
    return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=not start, enable_gqa=True).transpose(1, 2)


def real(s: int, start: int, cache: int, dtype: DType = F32) -> Case:
    """Return a case with 32 heads of 64 elements that share 8 key heads."""
    return replace(cached(s, start, 4, 64, heads=8, cache=cache, dtype=dtype), peer=cached_peer)


BENCHMARKS = [  # at real sizes
    *(real(1, start, 4096) for start in (127, 1023, 4095)),
    *(real(s, 0, 2048) for s in (128, 512, 2048)),
    real(512, 0, 2048, F16),
    replace(plain((1, 16, 1024, 64), 1024, heads=16), reference=peer, peer=peer),
    replace(plain((1, 16, 1500, 64), 1500, heads=16, dtype=F16), reference=peer, peer=peer),
]
SOFTWARE = [*POSITIONS[5::20], *CACHED[::2], *HALVES[::2], *CUSTOM[::2], *WRITES[::4], *PLAIN[::3]]
BROWSER = [*POSITIONS[10::30], *CACHED[2:4], CACHED[6], CACHED[9], *HALVES[1:], *WRITES[6::2], *PLAIN[4::6]]


@pytest.mark.parametrize(
    "case, invocations", [(CACHED[0], 64), (CACHED[0], 128), (CACHED[1], 128), (CACHED[6], 128)], ids=str
)
def test_in_small_workgroups(case, invocations):
    check(case, max_invocations=invocations)


@pytest.mark.parametrize("s", [0, 1, 7, 33])
@pytest.mark.parametrize("start", [0, 7])
def test_live_lengths(s, start):
    check(cached(s, start, 4, 16, longest=33))


@pytest.mark.parametrize("s, start", [(1, 9), (33, 3)])
def test_what_lies_beyond_the_queries_does_not_matter(s, start):
    case = cached(s, start, 4, 16)
    rng = np.random.default_rng(5)
    stale = rng.standard_normal((1, CACHE, 2, 16))
    stale[:, start:] = np.nan
    cache = T(stale.shape, values=tuple(stale.reshape(-1)))
    check(replace(case, args=(*case.args[:3], cache, replace(cache), *case.args[5:])))


@pytest.mark.parametrize(
    "case", [c for c in [*POSITIONS[::5], *CACHED, *CUSTOM, *WRITES[:7]] if c.args[0].shape[1]], ids=str
)
def test_the_reference_agrees_with_the_exporter(case):
    rng = np.random.default_rng(1)
    arrays = {id(a): a.make(rng) for a in case.args if isinstance(a, T)}

    def arguments() -> list[Any]:
        plain = [a.value if isinstance(a, S) else a for a in case.args]
        return [torch.from_numpy(arrays[id(a)].copy()) if isinstance(a, T) else a for a in plain]

    theirs, ours = arguments(), arguments()
    if case.op == "sdpa_with_kv_cache.default":
        theirs[6] = theirs[0].shape[1]
    results = [torch_operator("llama." + case.op)(*theirs), case.reference(*ours)]
    for k in case.mutated:
        assert torch.equal(theirs[k], ours[k])
    if case.op != "update_cache.default":  # its result is undefined
        compare(results[0].numpy(), results[1].numpy(), 1e-5, "the exporter's operator")


def test_a_conversation_on_one_state():
    """One plan serves a prompt of five tokens and three single tokens; the caches persist between the calls."""
    case = cached(5, 0, 4, 16, longest=8)
    rng = np.random.default_rng(3)
    arrays = {id(a): a.make(rng) for a in case.args if isinstance(a, T)}
    graph, _ = graph_of(case, arrays, [np.zeros(case.args[0].shape, np.float32), *[np.zeros((1, CACHE, 2, 16))] * 2])
    graph.outputs = graph.outputs[:1]
    keys, values = (torch.from_numpy(arrays[id(case.args[k])].copy()) for k in (3, 4))
    engine = engine_of(graph, device())
    try:
        start = 0
        for s in (5, 1, 1, 1):
            new = [rng.standard_normal((1, s, h, 16), np.float32) for h in (8, 2, 2)]
            (got,) = engine.run([*new, start], read=[0])
            want = attention_with_cache(*map(torch.from_numpy, new), keys, values, start, 1, None, 0.0, True, None)
            compare(got, want.numpy(), 1e-5, f"at {start}")
            start += s
        assert 0 == engine.extended
    finally:
        engine.close()


class Cached(nn.Module):
    """Attention with its own caches, as in the exporter's language models."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(1, 32, 2, 8))
        self.register_buffer("values", torch.zeros(1, 32, 2, 8))

    def forward(self, q: Torch, k: Torch, v: Torch, start: int) -> Torch:
        torch.ops.llama.update_cache(k, self.keys, start)
        torch.ops.llama.update_cache(v, self.values, start)
        return torch.ops.llama.custom_sdpa(q, self.keys, self.values, start, None, 0.0, True)


@pytest.mark.parametrize("delegate", [True, False])
def test_exported(delegate):
    from tests.exporting import export

    torch_operator("llama.custom_sdpa.default")  # defines the namespace

    def operands(s: int) -> list[Torch]:
        return [torch.randn(1, s, h, 8) for h in (4, 2, 2)]

    length = {1: torch.export.Dim("s", min=1, max=16)}
    shapes = (length, length, length, torch.export.Dim.DYNAMIC)
    program = ptegpu.load(export(Cached(), (*operands(5), 3), delegate=delegate, dynamic_shapes=shapes))
    eager = Cached()
    for s, start in [(5, 0), (1, 5), (1, 6), (3, 7)]:
        args = (*operands(s), start)
        close(program(*args), eager(*args))


q, k, c = T((1, 3, 4, 8)), T((1, 3, 2, 8)), T((1, 9, 2, 8))
sdpa, custom_sdpa, update_cache = "sdpa_with_kv_cache.default", "custom_sdpa.default", "update_cache.default"
REFUSED = [
    (custom_sdpa, (T((3, 4, 8)), c, c, 0), "attention takes tensors of rank 4, not [3, 4, 8]"),
    (
        custom_sdpa,
        (q, T((1, 9, 2, 6)), T((1, 9, 2, 6)), 0),
        "query [1, 3, 4, 8], key [1, 9, 2, 6] and value [1, 9, 2, 6] do not fit together in attention",
    ),
    (
        custom_sdpa,
        (q, T((1, 9, 3, 8)), T((1, 9, 3, 8)), 0),
        "query [1, 3, 4, 8], key [1, 9, 3, 8] and value [1, 9, 3, 8]: 4 query heads cannot share 3 key heads",
    ),
    (
        custom_sdpa,
        (T((1, 3, 4, 0)), T((1, 9, 2, 0)), T((1, 9, 2, 0)), 0),
        "query [1, 3, 4, 0], key [1, 9, 2, 0] and value [1, 9, 2, 0]: the heads have no elements",
    ),
    (custom_sdpa, (q, c, c, 0, T((3, 8))), "a mask of [3, 8] does not fit scores of [1, 4, 3, 9]"),
    (
        custom_sdpa,
        (q, c, c, 0, None, 0.1),
        "attention has a dropout of 0.1: call eval() on the model before exporting it",
    ),
    (
        sdpa,
        (q, T((1, 2, 2, 8)), k, c, c, 0, 1),
        "query [1, 3, 4, 8], key [1, 2, 2, 8] and value [1, 3, 2, 8] "
        "must have the same length, and keys and values the same shape",
    ),
    (
        sdpa,
        (q, T((1, 3, 1, 8)), k, c, c, 0, 1),
        "[1, 3, 1, 8] does not fit a cache of [1, 9, 2, 8]; both are [B, S, H, D]",
    ),
    (sdpa, (q, k, k, c, c, 0, 2), "seq_len is 2, the query [1, 3, 4, 8] has 3 positions"),
    (
        update_cache,
        (T((1, 10, 2, 8)), c, 0),
        "[1, 10, 2, 8] does not fit a cache of [1, 9, 2, 8]; both are [B, S, H, D]",
    ),
]


@pytest.mark.parametrize("op, args, message", REFUSED, ids=str)
def test_refused(op, args, message):
    arrays = {id(a): np.zeros(a.shape, a.dtype.numpy) for a in args if isinstance(a, T)}
    graph, _ = graph_of(Case(op, args), arrays, [np.zeros(args[0].shape, np.float32)])
    with pytest.raises((ShapeError, InvalidProgram)) as error:
        plan_of(graph, Target())
    assert str(error.value) == f"{op}: {message}"
