"""A transposed copy through tiles in workgroup memory: contiguous reads on one side, contiguous writes on the other."""

from __future__ import annotations

from ..dtypes import DType
from ..plan.target import Target
from ..sizes import cached
from .wgsl import COMPUTE, KernelSpec, Storage, build, u32s

TALL, BROAD = 64, 32  # of a tile: elements that are neighbours in x, and in y
_PITCH = TALL + 1  # of the tile's lines: it spreads a column over the banks like a line


@cached(256)
def transposition(dtype: DType, outer: int, quads: bool, target: Target) -> KernelSpec:
    """Transpose (outer, r, c): r is contiguous in x, c in y; `P.c` is a multiple of four.

    With `quads`, the sizes and strides of x are multiples of four as well.
    """
    kind = COMPUTE[dtype]
    tile_type = "u32" if kind == "bool" else kind
    workgroup = target.workgroup(256)
    lines = [
        "  let tile = group % (P.tiles_r * P.tiles_c);",
        f"  let r0 = (tile % P.tiles_r) * {TALL}u;",
        f"  let c0 = (tile / P.tiles_r) * {BROAD}u;",
        "  var rest = group / (P.tiles_r * P.tiles_c);",
        "  var x_base = 0u; var y_base = 0u;",
    ]
    for k in reversed(range(outer)):
        lines.append(f"  x_base += (rest % P.d{k}) * P.x_s{k}; y_base += (rest % P.d{k}) * P.y_s{k}; rest /= P.d{k};")
    across = TALL // 4 if quads else TALL
    for first in range(0, across * BROAD, workgroup):
        lines.append(f"  {{ let e = {first}u + lid; let c = e / {across}u; let r = (e % {across}u){' * 4u' * quads};")
        lines.append("    if (c0 + c < P.c && r0 + r < P.r) {")
        lines.append("      let at = x_base + (c0 + c) * P.x_c + r0 + r;")
        if quads:
            lines.append("      let v = x_at4(at >> 2u);")
            lines += [f"      held[c * {_PITCH}u + r + {k}u] = {tile_type}(v.{'xyzw'[k]});" for k in range(4)]
        else:
            lines.append(f"      held[c * {_PITCH}u + r] = {tile_type}(x_at(at));")
        lines.append("    } }")
    lines.append("  workgroupBarrier();")
    for first in range(0, TALL * BROAD // 4, workgroup):
        four = ", ".join(f"{kind}(held[(c + {k}u) * {_PITCH}u + r])" for k in range(4))
        lines += [
            f"  {{ let e = {first}u + lid; let r = e / {BROAD // 4}u; let c = (e % {BROAD // 4}u) * 4u;",
            "    if (c0 + c < P.c && r0 + r < P.r) {",
            f"      y_put4((y_base + (r0 + r) * P.y_r + c0 + c) >> 2u, vec4<{kind}>({four}));",
            "    } }",
        ]
    names = ("r", "c", "tiles_r", "tiles_c", "x_c", "y_r")
    return build(
        "transpose",
        "\n".join(lines),
        target=target,
        reads={"x": Storage(dtype, 4 if quads else 1)},
        writes={"y": Storage(dtype, 4)},
        params=u32s(*names, *(f"{n}{k}" for k in range(outer) for n in ("d", "x_s", "y_s"))),
        workgroup=workgroup,
        shared={"held": (tile_type, BROAD * _PITCH)},
    )
