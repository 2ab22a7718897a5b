"""Matrix products: y[z, row, column] = alpha · Σₖ a[z, row, k] · b[z, k, column] + beta · bias, summed in f32.

Ints, which only `outer` takes, are summed in i32 and wrap.

`a` and the bias may have fewer matrices than `b`: product z takes matrix z modulo `P.sets`.

All kernels share one `GemmForm` (constant per graph) and one block of parameters (live sizes):

- `outer`: an invocation per element, for a K too short to share any work, and for ints;
- `gemv.gemv_rows`: one to eight rows of `a` by b stored [N, K]: a workgroup walks along K for a few rows of b;
- `gemv.gemv_columns`: one to eight rows of `a` by b stored [K, N]: lanes over columns, slices of the workgroup over K;
- `gemm.gemm`: tiles in workgroup memory, a small block of accumulators in registers;
- `gemm.blocks`: the block of accumulators only, for software adapters, where workgroup memory and barriers are
  expensive.

All are unrolled here, because naga emits plain loops: every accumulator has a name. Loads are clamped into the matrix
rather than guarded. Elements beyond K become zero on their way into the tile, and elements beyond M or N are never
stored. `gemv_columns`, `gemm` and `blocks` store quads if the form allows it, and accept a `b` that is not stored as a
matrix (`Gather`); the others store single elements. `gemv_columns` and `gemm` can leave partial sums over parts of K to
`add_parts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..dtypes import DType
from ..plan.target import Target
from ..sizes import cached
from .functions import functions
from .wgsl import COMPUTE, ZERO, KernelSpec, Storage, build, u32s

SIZES = u32s("batch", "sets", "m", "n", "k")
PLACES = u32s("y_batch", "y_row", "y_column", "y_first")  # strides of y, its start
CLAMP = [("low", "f32"), ("high", "f32")]
BIAS = u32s("bias_batch", "bias_row", "bias_column", "bias_first")


@dataclass(frozen=True, slots=True)
class Gather:
    """WGSL that finds the elements of a `b` that is not stored as a matrix.

    `b_place(column) -> Place` is common to all loads of four columns from `column` on, and `b_quad(row, Place)` is one
    such load. Rows count through all matrices of `b`.
    """

    wgsl: str
    params: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Epilogue:
    """Arithmetic on each result before it is stored.

    `apply(i, v, …)` takes its index in y, its value, the elements of further tensors at that index, and numbers.
    """

    wgsl: str  # defines `apply`
    operands: tuple[DType | None, ...]  # None: the kernel's variable `beside` instead of a tensor
    numbers: tuple[str, ...]
    repeated: tuple[int, ...] = ()  # operands that repeat every `P.e…_size` elements
    beside: str = "beside"

    @property
    def reads(self) -> dict[str, Storage]:
        return {f"e{k}": Storage(dtype) for k, dtype in enumerate(self.operands) if dtype}

    @property
    def params(self) -> list[tuple[str, str]]:
        return [*((n, "f32") for n in self.numbers), *((f"e{k}_size", "u32") for k in self.repeated)]

    @property
    def call(self) -> str:
        at = [f"i % P.e{k}_size" if k in self.repeated else "i" for k in range(len(self.operands))]
        operands = [f"e{k}_at({at[k]})" if dtype else self.beside for k, dtype in enumerate(self.operands)]
        return f"apply({', '.join(['i', 'v', *operands, *(f'P.{n}' for n in self.numbers)])})"


@dataclass(frozen=True, slots=True)
class GemmForm:
    """The constants of a kernel. With quads, stored rows can be loaded or stored four elements at a time."""

    a: DType
    b: DType
    y: DType
    bias: DType | None
    transposed: bool  # b is stored [N, K]
    a_quads: bool
    b_quads: bool
    y_quads: bool
    clamped: bool = False  # to P.low … P.high
    gather: Gather | None = None
    epilogue: Epilogue | None = None

    @property
    def kind(self) -> str:
        """The type of sums."""
        return COMPUTE[self.a]


@dataclass(frozen=True, slots=True)
class Loader:
    """Another storage of `b` [N, K]: its bindings, and `b_quad(row, k)`, which loads four elements of a row from k on.

    k is a multiple of four. Beyond K the elements are undefined.
    """

    reads: tuple[tuple[str, Storage], ...]
    params: tuple[tuple[str, str], ...]
    quad: str  # WGSL


def module(
    name: str,
    body: list[str],
    form: GemmForm,
    target: Target,
    *,
    reads: dict[str, Storage],
    helpers: Sequence[str] = (),
    params: Sequence[tuple[str, str]] = (),
    workgroup: int | None = None,
    shared: dict[str, tuple[str, int]] | None = None,
    subgroups: bool = False,
    writes: dict[str, Storage] | None = None,
) -> KernelSpec:
    """Return a kernel with the shared end: `finish` scales and applies bias and epilogue; `put` or `put4` store.

    `reads` and `writes` are bindings in addition to those of the form.
    """
    added = {"bias": Storage(form.bias)} if form.bias else {}
    if form.epilogue:
        added |= form.epilogue.reads
    return build(
        name,
        body,
        target=target,
        reads=reads | added,
        writes={"y": Storage(form.y, 4 if form.y_quads else 1), **(writes or {})},
        params=[
            *SIZES,
            *PLACES,
            ("alpha", form.kind),
            *([("beta", form.kind), *BIAS] if form.bias else []),
            *(CLAMP if form.clamped else []),
            *(form.epilogue.params if form.epilogue else ()),
            *params,
        ],
        workgroup=workgroup,
        shared=shared,
        helpers="\n".join([*helpers, _epilogue(form)]),
        subgroups=subgroups,
    )


def _epilogue(form: GemmForm) -> str:
    bias = ""
    if form.bias:
        place = "P.bias_first + z % P.sets * P.bias_batch + row * P.bias_row + column * P.bias_column"
        bias = f" + P.beta * bias_at({place})"
    result = f"within(P.alpha * v{bias}, P.low, P.high)" if form.clamped else f"P.alpha * v{bias}"
    kind = form.kind
    place = "P.y_first + z * P.y_batch + row * P.y_row"
    library, last = result, result
    if form.epilogue:
        library, last = result + form.epilogue.wgsl, f"finished({place} + column * P.y_column, {result})"
    finish = f"{functions(library)}\n"
    if form.epilogue:
        finish += f"{form.epilogue.wgsl}\nfn finished(i: u32, v: f32) -> f32 {{ return {form.epilogue.call}; }}\n"
    finish += f"fn finish(z: u32, row: u32, column: u32, v: {kind}) -> {kind} {{ return {last}; }}\n"
    if form.y_quads:
        lanes = ", ".join(f"finish(z, row, column + {j}u, v.{c})" for j, c in enumerate("xyzw"))
        return finish + (
            "fn put4(z: u32, row: u32, column: u32, v: vec4<f32>) {\n"
            f"  if (column < P.n) {{ y_put4(({place} + column) >> 2u, vec4<f32>({lanes})); }}\n}}"
        )
    return finish + (
        f"fn put(z: u32, row: u32, column: u32, v: {kind}) {{\n"
        f"  if (column < P.n) {{ y_put({place} + column * P.y_column, finish(z, row, column, v)); }}\n}}\n"
        f"fn put4(z: u32, row: u32, column: u32, v: vec4<{kind}>) {{\n"
        + "".join(f"  put(z, row, column + {j}u, v.{c});\n" for j, c in enumerate("xyzw"))
        + "}"
    )


def row_quad(name: str, width: str, quads: bool) -> str:
    """Return `name_quad(row, i)`: four elements of a row from element i on, where the last repeats beyond `width`."""
    if quads:
        load = f"{name}_at4((row * {width} + min(i, {width} - 4u)) >> 2u)"
    else:
        lanes = ", ".join(f"{name}_at(row * {width} + min(i + {j}u, {width} - 1u))" for j in range(4))
        load = f"vec4<f32>({lanes})"
    return f"fn {name}_quad(row: u32, i: u32) -> vec4<f32> {{ return {load}; }}"


def b_source(form: GemmForm, loader: Loader | None = None) -> tuple[Loader, str]:
    """Return the loader of `b`, by default that of the form, and the argument of `b_quad` for a `column`."""
    place = "b_place({column})" if form.gather else "{column}"
    if loader:
        return loader, place
    if form.gather:
        return Loader((("b", Storage(form.b)),), form.gather.params, form.gather.wgsl), place
    width = "P.k" if form.transposed else "P.n"
    return Loader((("b", Storage(form.b, 4 if form.b_quads else 1)),), (), row_quad("b", width, form.b_quads)), place


@cached(256)
def outer(form: GemmForm, target: Target) -> KernelSpec:
    """Compute an element of y per invocation."""
    b = "(z * P.n + column) * P.k + k" if form.transposed else "(z * P.k + k) * P.n + column"
    body = [
        "let i = group * WG + lid;",
        "if (i >= P.batch * P.m * P.n) { return; }",
        "let column = i % P.n; let zr = i / P.n; let row = zr % P.m; let z = zr / P.m;",
        "let first = (z % P.sets * P.m + row) * P.k;",
        f"var sum = {ZERO[form.kind]};",
        f"for (var k = 0u; k < P.k; k++) {{ sum += a_at(first + k) * b_at({b}); }}",
        "put(z, row, column, sum);",
    ]
    return module("matmul_outer", body, form, target, reads={"a": Storage(form.a), "b": Storage(form.b)})


@cached(64)
def add_parts(form: GemmForm, target: Target) -> KernelSpec:
    """Compute y from partial sums `a` [parts, batch, M, N]."""
    body = [
        "let i = group * WG + lid;",
        "let size = P.batch * P.m * P.n;",
        "if (i >= size) { return; }",
        "var sum = 0.0;",
        "for (var part = 0u; part < P.parts; part++) { sum += a_at(part * size + i); }",
        "put(i / (P.m * P.n), i / P.n % P.m, i % P.n, sum);",
    ]
    return module("matmul_add_parts", body, form, target, reads={"a": Storage(DType.F32)}, params=u32s("parts"))
