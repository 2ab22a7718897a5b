"""Reads and writes at positions given by tensors of indices.

Both kernels run over a shape whose coordinates address, by strides, the indices and the tensor: `take` runs over the
output and reads the tensor, `put` runs over the values and writes the output. A negative index counts from the end; one
out of range reads the nearest element and writes nothing.
"""

from __future__ import annotations

from ..dtypes import DType
from ..plan.target import Target
from ..sizes import cached
from .elementwise import WRAPPED, convert, decode, place, sizes
from .wgsl import COMPUTE, I32, KernelSpec, Storage, build


def _walk(rank: int, indices: int) -> list[tuple[str, str]]:
    """Return the parameters of both kernels: the shape, and the strides of the tensor and of each index over it."""
    params = sizes(rank)
    params += [(f"x_s{k}", "i32") for k in range(rank)]
    for j in range(indices):
        params += own_params(j, rank)
    return params


def own_params(j: int, rank: int) -> list[tuple[str, str]]:
    """Return the parameters of index j: its strides, and the size and stride of its dimension."""
    return [*((f"i{j}_s{k}", "i32") for k in range(rank)), (f"i{j}_size", "i32"), (f"i{j}_stride", "i32")]


def from_end(j: int, rank: int) -> list[str]:
    """Return lines that declare `k{j}`, the value of index j; a negative one counts from the end."""
    at = place(f"i{j}", rank)
    return [f"  var k{j} = i{j}_at(u32({at}));", f"  k{j} = select(k{j}, k{j} + P.i{j}_size, k{j} < 0);"]


@cached(1024)
def take(dtype: DType, indices: int, rank: int, rows: bool, target: Target) -> KernelSpec:
    """Set output element c to `x` at Σ c·x_s + Σⱼ index j (at Σ c·ij_s) · ij_stride.

    With `rows`, four outputs share their indices and are an aligned quad of `x`; the innermost size is in quads.
    """
    lanes = [""] if rows else [str(lane) for lane in range(4)]
    lines = ["  let q = group * WG + lid;", "  if (q * 4u >= P.n) { return; }"]
    for lane in lanes:
        c = f"c{lane}_"
        lines += decode(c, "q" if rows else f"min(q * 4u + {lane}u, P.n - 1u)", rank, inner=4 if rows else 1)
        terms = [place("x", rank, c)]
        for j in range(indices):
            terms.append(f"wrapped(i{j}_at(u32({place(f'i{j}', rank, c)})), P.i{j}_size) * P.i{j}_stride")
        lines.append(f"  let at{lane} = u32({' + '.join(terms)});")
    if rows:
        lines.append("  y_put4(q, x_at4(at >> 2u));")
    else:
        values = ", ".join(f"x_at(at{lane})" for lane in lanes)
        lines.append(f"  y_put4(q, vec4<{COMPUTE[dtype]}>({values}));")
    return build(
        "take",
        "\n".join(lines),
        target=target,
        reads={"x": Storage(dtype, 4 if rows else 1), **{f"i{j}": I32 for j in range(indices)}},
        writes={"y": Storage(dtype, 4)},
        params=_walk(rank, indices),
        helpers=WRAPPED,
    )


@cached(1024)
def put(values: DType | None, out: DType, indices: int, rank: int, target: Target) -> KernelSpec:
    """Write value c (at Σ c·v_s, or the number `P.value`) where `take` would read it. Of several values for one
    position, any may win.
    """
    kind = COMPUTE[out]
    params = _walk(rank, indices)
    reads = {f"i{j}": I32 for j in range(indices)}
    if values is None:
        params.append(("value", kind))
        value = "P.value"
    else:
        params += [(f"v_s{k}", "i32") for k in range(rank)]
        reads["v"] = Storage(values)
        value = convert(f"v_at(u32({place('v', rank)}))", COMPUTE[values], kind)
    lines = ["  let e = group * WG + lid;", "  if (e >= P.n) { return; }", *decode("c", "e", rank)]
    terms = [place("x", rank)]
    for j in range(indices):
        lines += from_end(j, rank)
        lines.append(f"  if (k{j} < 0 || k{j} >= P.i{j}_size) {{ return; }}")
        terms.append(f"k{j} * P.i{j}_stride")
    lines.append(f"  y_put(u32({' + '.join(terms)}), {value});")
    return build("put", "\n".join(lines), target=target, reads=reads, writes={"y": Storage(out)}, params=params)
