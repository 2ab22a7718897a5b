"""Kernels for training on the device: requantisation of a 4-bit weight, cross entropy with its gradient, AdamW."""

from __future__ import annotations

from ..dtypes import DType
from ..plan.target import Target
from ..sizes import cached
from .functions import functions
from .lanes import MAX, SUM, Lanes, Sweep
from .wgsl import ACROSS, LARGEST, LOWEST, KernelSpec, Storage, build, u32s

STEP = ("lr", "decay", "beta1", "rest1", "beta2", "rest2", "eps", "correction1", "correction2")

_CODE = """\
fn code(v: f32, row: u32, column: u32) -> i32 {
  let scale = scales_at(column / P.group * P.scale_stride + row);
  if (scale == 0.0) { return 8; }
  let q = round(v / scale);
  return select(i32(within(q, -8.0, 7.0)) + 8, 8, is_nan(q));
}"""


@cached(16)
def requantise(latent: DType, scales: DType, quads: bool, target: Target) -> KernelSpec:
    """Compute four bytes of two codes per invocation. With `quads`, rows are whole words, so codes share a row."""
    if quads:
        lines = [
            "  let row = q * 4u / P.row_bytes; let column = (q * 4u - row * P.row_bytes) * 2u;",
            "  let low = latent_at4(q * 2u); let high = latent_at4(q * 2u + 1u);",
        ]
        values = [f"{part}.{c}" for part in ("low", "high") for c in "xyzw"]
        codes = [f"code({v}, row, column + {j}u)" for j, v in enumerate(values)]
        results = [f"{codes[j]} | ({codes[j + 1]} << 4u)" for j in range(0, 8, 2)]
    else:
        lines = []
        results = [f"pair(min(q * 4u + {j}u, P.n - 1u))" for j in range(4)]
    body = [
        "  let q = group * WG + lid;",
        "  if (q * 4u >= P.n) { return; }",
        *lines,
        f"  y_put4(q, vec4<i32>({', '.join(results)}));",
    ]
    pair = """\
fn pair(byte: u32) -> i32 {
  let row = byte / P.row_bytes; let column = byte % P.row_bytes * 2u; let at = row * P.width + column;
  let low = code(latent_at(at), row, column);
  if (column + 1u >= P.width) { return low; }
  return low | (code(latent_at(at + 1u), row, column + 1u) << 4u);
}"""
    return build(
        "requantise",
        "\n".join(body),
        target=target,
        reads={"latent": Storage(latent, 4 if quads else 1), "scales": Storage(scales)},
        writes={"y": Storage(DType.U8, 4)},
        params=u32s("n", "width", "row_bytes", "group", "scale_stride"),
        helpers="\n".join([functions(_CODE), _CODE, *([] if quads else [pair])]),
    )


@cached(64)
def cross_entropy(
    x: DType, labels: DType, out: DType, quads: bool, registers: int, lanes: Lanes, target: Target
) -> KernelSpec:
    """Compute the loss of each row and its gradient, both over `P.n_valid`; zero for a row with a negative label.

    Lanes walk as in a softmax. `P.length` counts loads, of four elements if `quads`. Labels are clamped to the row, so
    that exactly one lane meets the label and writes the loss.
    """
    four, element = ("4", "vec4<f32>") if quads else ("", "f32")
    sweep = Sweep(lanes, registers, f"x_at{four}(row * P.length + j)")
    place = "label / 4u" if quads else "label"
    picked = "v[label % 4u]" if quads else "v"
    hot = "vec4<u32>(j * 4u) + vec4<u32>(0u, 1u, 2u, 3u) == vec4<u32>(label)" if quads else "j == label"
    slope = f"exp(v - top) * scale - select({element}(), {element}(1.0), {hot})"
    body = [
        lanes.place(),
        "  let given = labels_at(row); let counts = given >= 0;",
        f"  let label = min(u32(max(given, 0)), P.length * {4 if quads else 1}u - 1u);",
        sweep.start(element),
        f"  var high = {element}({LOWEST});",
        sweep.each("high = max(high, v);"),
        lanes.agree("top", "largest(high)", MAX, "tops"),
        f"  var part = {element}();",
        sweep.each("part += exp(v - top);"),
        lanes.agree("total", "across(part)", SUM, "totals"),
        "  let scale = select(1.0 / total, P.blank, total == 0.0);",
        "  let level = select(log(total), P.blank, total == 0.0);",
        "  if (live) {",
        sweep.each(
            f"y_put{four}(row * P.length + j, select({element}(), ({slope}) / P.n_valid, counts));"
            f" if (j == {place}) {{"
            f" losses_put(row, select(0.0, (top - {picked} + level) / P.n_valid, counts)); }}"
        ),
        "  }",
    ]
    return build(
        "cross_entropy",
        "\n".join(body),
        target=target,
        reads={"x": Storage(x, 4 if quads else 1), "labels": Storage(labels)},
        writes={"losses": Storage(DType.F32), "y": Storage(out, 4 if quads else 1)},
        params=[*u32s("rows", "length"), ("n_valid", "f32"), ("blank", "f32")],
        workgroup=lanes.workgroup,
        shared=lanes.shared("f32", "tops", "totals"),
        helpers=f"{LARGEST[element]}\n{ACROSS[element]}",
        subgroups=lanes.by_subgroup,
    )


@cached(16)
def adamw(param: DType, m: DType, v: DType, grad: DType, target: Target) -> KernelSpec:
    """Update four elements per invocation in place, and copy them to `y_param`, `y_mean` and `y_square`."""
    states = {"param": Storage(param, 4), "mean": Storage(m, 4), "square": Storage(v, 4)}
    body = """\
  let q = group * WG + lid;
  if (q * 4u >= P.n) { return; }
  let slope = grad_at4(q);
  let mean_now = mean_at4(q) * P.beta1 + slope * P.rest1;
  let square_now = square_at4(q) * P.beta2 + slope * slope * P.rest2;
  let size = sqrt(square_now / P.correction2) + vec4<f32>(P.eps);
  let moved = param_at4(q) * P.decay - P.lr * (mean_now / P.correction1) / size;
  param_put4(q, moved); mean_put4(q, mean_now); square_put4(q, square_now);
  y_param_put4(q, moved); y_mean_put4(q, mean_now); y_square_put4(q, square_now);"""
    reads = {"grad": Storage(grad, 4)}
    writes = states | {f"y_{name}": storage for name, storage in states.items()}
    params = [("n", "u32"), *((p, "f32") for p in STEP)]
    return build("adamw", body, target=target, reads=reads, writes=writes, params=params)
