"""Every case of the tables in `tests/ops` on Dawn, with all that the adapter has.

Workgroup memory is filled with nonsense first: Dawn is told not to clear it, so no kernel may rely on zeros there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from tests.cases import Case, tables
from tests.oracle import check

from ptegpu.gpu import pipelines
from ptegpu.plan import directives
from ptegpu.plan.plan import Kernel

NONSENSE = 12345  # of every element type
ARRAY = re.compile(r"^var<workgroup> (\w+): array<([\w<>]+), (\d+)>;$", re.MULTILINE)
MAIN = re.compile(r"^fn main\(.*\) \{$", re.MULTILINE)


def spoiled(wgsl: str) -> str:
    """A kernel that begins with nonsense in its workgroup memory."""
    lines = []
    for name, element, count in ARRAY.findall(wgsl):
        value = f"{element}({NONSENSE})"
        fill = f"atomicStore(&{name}[i], {NONSENSE}u)" if element.startswith("atomic") else f"{name}[i] = {value}"
        lines.append(f"for (var i = lid; i < {count}u; i += WG) {{ {fill}; }}")
    if not lines:
        return wgsl
    (main,) = MAIN.findall(wgsl)
    return wgsl.replace(main, "\n".join([main, *lines, "workgroupBarrier();"]))


@pytest.fixture(scope="module", autouse=True)
def nonsense_in_workgroup_memory() -> Iterator[None]:
    def source(kernel: Kernel, kind: directives.Dialect) -> str:
        return spoiled(directives.source(kernel, kind))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipelines, "directives", SimpleNamespace(source=source, prelude=directives.prelude))
        yield


def test_kernels_are_spoiled() -> None:
    wgsl = "var<workgroup> a: array<vec4<f32>, 8>;\nvar<workgroup> n: array<atomic<u32>, 2>;\nfn main(lid: u32) {\n}\n"
    assert spoiled(wgsl) == (
        "var<workgroup> a: array<vec4<f32>, 8>;\nvar<workgroup> n: array<atomic<u32>, 2>;\nfn main(lid: u32) {\n"
        "for (var i = lid; i < 8u; i += WG) { a[i] = vec4<f32>(12345); }\n"
        "for (var i = lid; i < 2u; i += WG) { atomicStore(&n[i], 12345u); }\nworkgroupBarrier();\n}\n"
    )


@pytest.mark.parametrize("case", list(tables()), ids=str)
def test_case(case: Case) -> None:
    check(case)
