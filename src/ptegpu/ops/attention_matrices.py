"""Attention on matrix units, where the adapter has them and the requested precision allows rounding to f16."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import TYPE_CHECKING, Any

from ..dtypes import DType
from ..graph.graph import Sym, Tensor
from ..kernels import attention_matrices as kernels
from ..kernels.attention import AttentionForm
from ..kernels.tensor_core_blocks import ROWS, SPAN, prepare
from ..plan.target import Target
from ..sizes import ceil, largest, smallest
from .registry import Dispatch, Scratch, Step
from .tensor_core_products import has_matrix_units

if TYPE_CHECKING:
    from .attention_record import AttentionWork, HeadLayout

FEWEST = 48  # minimum rows of a key-value head: below, tiles are too empty
WORTH = 1 << 27  # minimum multiply-adds: below, four dispatches take longer than one (as fast at 2^29, H200)


def serves(form: AttentionForm, places: tuple[HeadLayout, ...], target: Target) -> bool:
    """Return True if matrix units can compute the attention, and faster than other kernels."""
    qs, ks, vs, _ = places
    if not has_matrix_units(target) or form.mask or not form.quads:
        return False
    if any(x.dim % 16 or x.dim > kernels.DIM for x in (qs, vs)):
        return False
    if target.precision == "exact":
        return False
    if target.precision == "auto" and not (form.cached or form.k is form.v is DType.F16):
        return False
    if not kernels.tile_keys(form.dim, form.value_dim, target) or target.max_storage_buffers < 7:
        return False
    rows, sets = qs.length * (qs.heads // ks.heads), ks.batch * ks.heads
    nbytes = 2 * sets * largest(rows + ROWS, ks.length + ROWS) * max(form.dim, form.value_dim)
    if nbytes > smallest(target.max_binding_bytes, target.max_buffer_bytes):
        return False
    keys = smallest(qs.length, ks.length) if form.cached else ks.length  # minimum number of visible keys
    return bool(sets * rows * keys * (form.dim + form.value_dim) >= WORTH and rows >= FEWEST)


def prepared(
    a: AttentionWork,
    form: AttentionForm,
    places: tuple[HeadLayout, ...],
    shared: Mapping[str, int | float | Sym],
    target: Target,
) -> Generator[Step, Any, tuple[list[Tensor], dict[str, int]]]:
    """Store queries, keys and values as blocks; return what the kernel reads, and the number of blocks as parameters.

    `shared` are the kernel's other parameters, such as the start.
    """
    qs, ks, vs, _ = places
    sharing, sets = qs.heads // ks.heads, ks.batch * ks.heads
    blocks, scales, params = list[Tensor](), list[Tensor](), dict[str, int]()
    for name, x, at, heads in (("row", a.q, qs, sharing), ("key", a.k, ks, 1), ("key", a.v, vs, 1)):
        m, k_blocks = at.length * heads, at.dim // SPAN
        source = kernels.vectors(x.dtype, name == "key" and form.cached)
        row_blocks = ceil(m, ROWS)
        y = yield Scratch((sets, row_blocks, k_blocks, ROWS * SPAN), DType.F16)
        factors = [(yield Scratch((sets, m), DType.F32))] if source.scaled else []
        words: dict[str, int | float | Sym] = {"m": m, "k": at.dim, "parts": row_blocks, "row_blocks": row_blocks}
        words |= {"k_blocks": k_blocks, "first_row": 0, "heads": ks.heads, "sharing": heads, **at.strides("x")}
        words |= {n: shared[n] for n in ("keys", "queries", "start")} if source.live else {}
        kernel = prepare(source, target, 1 << (int(k_blocks) - 1).bit_length())
        yield Dispatch(kernel, [x], [y, *factors], sets * row_blocks, words, label=a.label)
        params[f"{name}_blocks"] = row_blocks
        blocks.append(y)
        scales += factors
    return [*blocks, *scales], params
