"""The merge of the parts of rows whose keys are split over workgroups (flash decoding).

`Merge` has the WGSL for a separate kernel and for kernels that read the result.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..dtypes import DType
from ..plan.target import Target
from ..sizes import cached
from .attention import OWN, Form, owned, put, strides, used
from .wgsl import I32, LOWEST, KernelSpec, Storage, build, u32s

AT_ONCE = 4  # parts that are loaded at the same time


@dataclass(frozen=True, slots=True)
class Merge:
    """The constants of a kernel that merges parts."""

    quads: int  # of a value
    cached: bool
    paged: bool = False

    @property
    def params(self) -> list[tuple[str, str]]:
        names = ("keys", "splits", "part", "queries", "sharing", "heads", "apart")  # apart: quads from part to part
        start = [("start", "sym")] if self.cached and not self.paged else []
        return [*u32s(*names), ("empty", "f32"), *start]

    def helpers(self, parts: str) -> str:
        """Return `merged(place, d)`: quad d of the row whose first part is at `place` of the binding `parts`."""
        each = range(AT_ONCE)
        lines = [f"let at{k} = place + min(i + {k}u, count - 1u) * P.apart;" for k in each]
        lines += [f"let s{k} = {parts}_at4(at{k} + {self.quads}u).xy;" for k in each]
        lines += [f"let v{k} = {parts}_at4(at{k} + d);" for k in each]
        lines.append(f"var high = top;{''.join(f' high = max(high, s{k}.x);' for k in each)}")
        lines.append("let fade = exp(top - high); top = high; sum *= fade; acc *= fade;")
        for k in each:  # values without a sum are undefined
            lines.append(f"if (i + {k}u < count && !(s{k}.y == 0.0)) {{")
            lines.append(
                f"  let p = exp(s{k}.x - high); sum = fma(p, s{k}.y, sum); acc = fma(vec4<f32>(p), v{k}, acc);"
            )
            lines.append("}")
        return (
            f"{used(self.cached, self.paged)}\n"
            "fn merged(place: u32, d: u32) -> vec4<f32> {\n"
            f"  let count = used(); var top = {LOWEST}; var sum = 0.0; var acc = vec4<f32>();\n"
            f"  for (var i = 0u; i < count; i += {AT_ONCE}u) {{\n    "
            + "\n    ".join(lines)
            + "\n  }\n  return select(acc / sum, vec4<f32>(P.empty), sum == 0.0);\n}"
        )


@cached(64)
def merge(form: Form, target: Target) -> KernelSpec:
    """Merge with an invocation per quad of the result."""
    m, parts = form.value_quads, Merge(form.value_quads, form.cached, form.paged)
    body = [
        f"let i = group * WG + lid; let d = i % {m}u; let at = i / {m}u;",
        "let rows = P.queries * P.sharing; let zh = at / rows;",
        f"if (i < P.apart / {m + 1}u * {m}u) {{",
        f"  {OWN.format(z='zh / P.heads')}" if form.paged else "",
        f"  put(zh / P.heads, zh % P.heads, at % rows, d, merged(at * {m + 1}u, d));",
        "}",
    ]
    return build(
        "attention_merge",
        owned("\n".join(f"  {line}" for line in body if line), form.paged),
        target=target,
        reads={"parts": Storage(DType.F32, 4), **({"rows": I32} if form.paged else {})},
        writes={"y": Storage(form.y, 4 if form.quads else 1)},
        params=[*parts.params, *strides("y")],
        workgroup=target.workgroup(128),
        helpers=owned(f"{parts.helpers('parts')}\n{put(form)}", form.paged),
    )
