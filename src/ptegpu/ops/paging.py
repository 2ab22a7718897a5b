"""The pages of key-value caches of many sequences, as attention reads and writes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ..graph.graph import Tensor
from ..kernels.attention import PAGE
from ..kernels.cache import unit_of, write_pages
from ..plan.target import Target
from .registry import Dispatch, Steps, Work


class Paging(NamedTuple):
    """The rows of a run, each with a sequence and a position, and the pages of the sequences."""

    rows: Tensor  # int32 [S, 2]; sequence -1: an unused row
    tables: Tensor  # int32 [sequences, pages of each]; -1: none
    single: int  # 1 if no sequence has more than one row

    @property
    def keys(self) -> int:
        """The maximum number of positions of a sequence."""
        return self.tables.shape[1] * PAGE

    def params(self, pages: Tensor) -> dict[str, int | float]:
        """Return the parameters of kernels that find rows of these pages."""
        sequences, width = self.tables.shape
        return {"table_width": width, "sequences": sequences, "pages": pages.shape[0]}


@dataclass(frozen=True, slots=True)
class PageWrite(Work):
    """The write of new keys and values [1, S, H, D] into their pages [N, 16, H, D]."""

    values: tuple[Tensor, Tensor]
    pages: tuple[Tensor, Tensor]
    paging: Paging
    label: str = ""

    def steps(self, target: Target) -> Steps:
        pairs = list(zip(self.values, self.pages, strict=True))
        for group in [pairs] if self.values[0].shape == self.values[1].shape else [[pair] for pair in pairs]:
            values, pages = [v for v, _ in group], [p for _, p in group]
            _, count, heads, dim = values[0].shape
            width = heads * dim
            stored = tuple(p.dtype for p in pages)
            unit = unit_of(stored) if width % unit_of(stored) == 0 else 1
            kernel = write_pages(tuple(v.dtype for v in values), stored, unit, PAGE, target)
            params = {"queries": count, "width": width // unit, **self.paging.params(pages[0])}
            groups = -(-count * width // (unit * kernel.kernel.workgroup))
            changed = sum(p.dtype.nbytes(v.numel) for v, p in group)
            reads = [*values, self.paging.rows, self.paging.tables]
            yield Dispatch(kernel, reads, pages, groups, params, write_bytes=changed, label=self.label)
