"""Convolutions over one to three spatial axes, summed in f32; axis `rank - 1` is the innermost.

- `window` presents the input as the matrix of a product with the weights: row (channel, tap), column output position;
- `direct`: four neighbouring outputs per invocation, for groups so narrow that a product would be mostly idle;
- `transposed`: four output channels of a position per invocation, from the inputs that contribute to it;
- `phases` and `interleave` reduce a transposed convolution to an ordinary one: with a stride of s, outputs s apart take
  the same taps, so each of the s phases is a convolution, and all of them see the same windows of the input.

Parameters by axis: sizes of input `i`, output `o` and kernel `k`, stride `s`, padding `p`, dilation `d`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ..dtypes import DType
from ..plan.target import Target
from ..sizes import cached
from .concat import chosen
from .functions import functions
from .matmul import Epilogue, Gather
from .wgsl import KernelSpec, Storage, build, u32s


@dataclass(frozen=True, slots=True)
class Storages:
    """The dtypes of a kernel's tensors, and its epilogue: results may be clamped, and more."""

    x: DType
    weight: DType
    bias: DType | None
    y: DType
    clamped: bool
    epilogue: Epilogue | None = None

    def added(self) -> dict[str, Storage]:
        """Return the bindings in addition to input and weight."""
        bias = {"bias": Storage(self.bias)} if self.bias else {}
        return bias | (self.epilogue.reads if self.epilogue else {})

    def reads(self, *, x_lanes: int = 1) -> dict[str, Storage]:
        return {"x": Storage(self.x, x_lanes), "weight": Storage(self.weight), **self.added()}

    def params(self) -> list[tuple[str, str]]:
        bounds = [("low", "f32"), ("high", "f32")] if self.clamped else []
        return [*bounds, *(self.epilogue.params if self.epilogue else ())]

    def finish(self) -> str:
        """Return `finish(channel, i, sum)`: element i of y, which is `sum` with the channel's bias and the epilogue."""
        result = "sum + bias_at(channel)" if self.bias else "sum"
        if self.clamped:
            result = f"within({result}, P.low, P.high)"
        wgsl, last = (self.epilogue.wgsl, self.epilogue.call) if self.epilogue else ("", "v")
        return (
            f"{functions(result + wgsl)}\n{wgsl}\n"
            f"fn finish(channel: u32, i: u32, sum: f32) -> f32 {{ let v = {result}; return {last}; }}"
        )


def _axes(kind: str, names: str, axes: Iterable[int]) -> list[tuple[str, str]]:
    return [(f"{n}{k}", kind) for k in axes for n in names]


@cached(256)
def window(kernel: tuple[int, ...]) -> Gather:
    """Return the input as the matrix b [channels · taps, positions] of `kernels.matmul`, with zeros for the padding.

    Loads of four columns share the positions of their first taps: coordinates `c`, and `at`, relative to the channel.
    """
    axes = range(len(kernel))
    taps = math.prod(kernel)
    fields = ", ".join([*(f"c{k}: vec4<i32>" for k in axes), "at: vec4<i32>"])
    place = ["  var rest = vec4<u32>(column) + vec4<u32>(0u, 1u, 2u, 3u);"]
    split = [f"  var tap = row % {taps}u;"]
    for k in reversed(axes):
        if k:
            place += [f"  let c{k} = vec4<i32>(rest % P.o{k}) * P.s{k} - P.p{k};", f"  rest = rest / P.o{k};"]
            split += [f"  let t{k} = i32(tap % {kernel[k]}u) * P.d{k};", f"  tap = tap / {kernel[k]}u;"]
        else:
            place.append("  let c0 = vec4<i32>(rest) * P.s0 - P.p0;")
            split.append("  let t0 = i32(tap) * P.d0;")
    inside = " & ".join(f"(bitcast<vec4<u32>>(place.c{k} + t{k}) < vec4<u32>(u32(P.i{k})))" for k in axes)
    lanes = ", ".join(f"b_at(u32(at.{c}))" for c in "xyzw")
    wgsl = [
        f"struct Place {{ {fields} }}",
        "fn b_place(column: u32) -> Place {",
        *place,
        f"  return Place({', '.join(f'c{k}' for k in axes)}, {flat('c', axes)});",
        "}",
        "fn b_quad(row: u32, place: Place) -> vec4<f32> {",
        *split,
        f"  let inside = {inside};",
        f"  let at = select(vec4<i32>(), place.at + (i32(row / {taps}u) * P.plane + {flat('t', axes)}), inside);",
        f"  return select(vec4<f32>(), vec4<f32>({lanes}), inside);",
        "}",
    ]
    params = [("plane", "i32"), *_axes("i32", "ispd", axes), *_axes("u32", "o", axes)]
    return Gather("\n".join(wgsl), tuple(params))


def flat(name: str, axes: Iterable[int]) -> str:
    """Return the index of coordinates in a plane of the input."""
    flat = ""
    for k in axes:
        flat = f"({flat}) * P.i{k} + {name}{k}" if flat else f"{name}{k}"
    return flat


@dataclass(frozen=True, slots=True)
class InnerWindow:
    """The window along the innermost axis, which is unrolled."""

    taps: int
    stride: int
    dilation: int
    padding: int

    def offset(self, output: int, tap: int) -> int:
        """Return the offset of an output's tap from the first output's first tap without padding."""
        return output * self.stride + tap * self.dilation - self.padding


@cached(512)
def direct(s: Storages, line: InnerWindow, rank: int, x_quads: bool, y_quads: bool, target: Target) -> KernelSpec:
    """Compute four neighbouring outputs per invocation, which loads their inputs once per row of the window."""
    last, outer = rank - 1, range(rank - 1)
    offsets = sorted({line.offset(j, t) for j in range(4) for t in range(line.taps)})
    if x_quads:
        names = {e: f"v{e // 4 - offsets[0] // 4}.{'xyzw'[e % 4]}" for e in offsets}
        quads = sorted({e // 4 for e in offsets})
        loads = [(f"v{q - quads[0]}", f"x_tap(row, first + {q})") for q in quads]
        step, width = line.stride, f"P.i{last} / 4"
    else:
        names = {e: f"v{n}" for n, e in enumerate(offsets)}
        loads = [(names[e], f"x_tap(row, first + {e})") for e in offsets]
        step, width = 4 * line.stride, f"P.i{last}"
    kind, at = ("vec4<f32>", "x_at4") if x_quads else ("f32", "x_at")
    tap = (
        f"fn x_tap(row: i32, i: i32) -> {kind} {{\n"
        f"  let inside = bitcast<u32>(i) < u32({width});\n"
        f"  return select({kind}(), {at}(u32(select(0, row * ({width}) + i, inside))), inside);\n}}"
    )
    body = ["let i = group * WG + lid;", "if (i >= P.count) { return; }", "let block = i % P.blocks;"]
    body.append("var rest = i / P.blocks;")
    for k in reversed(outer):
        body += [f"let c{k} = i32(rest % P.o{k}) * P.s{k} - P.p{k};", f"rest = rest / P.o{k};"]
    body += [
        "let channel = rest % P.channels; let image = rest / P.channels;",
        "let start = (image * P.sets + channel / P.per_group) * P.depth;",
        f"let first = i32(block) * {step};",
        *(f"var sum{j} = 0.0;" for j in range(4)),
        "for (var c = 0u; c < P.depth; c++) {",
    ]
    row, taps = "i32(start + c)", "i32(channel * P.depth + c)"
    for k in outer:
        body += [
            f"for (var k{k} = 0; k{k} < P.k{k}; k{k}++) {{",
            f"let r{k} = c{k} + k{k} * P.d{k};",
            f"if (r{k} < 0 || r{k} >= P.i{k}) {{ continue; }}",
        ]
        row, taps = f"({row}) * P.i{k} + r{k}", f"({taps}) * P.k{k} + k{k}"
    body += [f"let row = {row};", f"let taps = u32({taps}) * {line.taps}u;"]
    body += [f"let {name} = {load};" for name, load in loads]
    for t in range(line.taps):
        body.append(f"let w{t} = weight_at(taps + {t}u);")
        body += [f"sum{j} = fma({names[line.offset(j, t)]}, w{t}, sum{j});" for j in range(4)]
    body += ["}"] * rank
    if y_quads:
        body.append(f"y_put4(i, vec4<f32>({', '.join(f'finish(channel, 4u * i + {j}u, sum{j})' for j in range(4))}));")
    else:
        body.append(f"let column = block * 4u; let y_first = i / P.blocks * P.o{last} + column;")
        puts = [f"y_put(y_first + {j}u, finish(channel, y_first + {j}u, sum{j}));" for j in range(4)]
        body += [f"if (column + {j}u < P.o{last}) {{ {put} }}" for j, put in enumerate(puts)]
    return build(
        "convolution_direct",
        body,
        target=target,
        reads=s.reads(x_lanes=4 if x_quads else 1),
        writes={"y": Storage(s.y, 4 if y_quads else 1)},
        params=[
            *u32s("count", "blocks", "channels", "sets", "per_group", "depth"),
            (f"i{last}", "i32"),
            *_axes("i32", "ikspd", outer),
            *_axes("u32", "o", range(rank)),
            *s.params(),
        ],
        helpers=f"{s.finish()}\n{tap}",
    )


@cached(64)
def transposed(s: Storages, rank: int, target: Target) -> KernelSpec:
    """Sum inputs i through taps k with o = i · stride - padding + k · dilation along every axis, for each output o."""
    axes = range(rank)
    body = [
        "let i = group * WG + lid;",
        "if (i >= P.count) { return; }",
        "let position = i % P.positions;",
        "let block = i / P.positions;",
        "let channel = block % P.blocks * 4u;",
        "let matrix = block / P.blocks; let group_ = matrix % P.sets;",
        "var rest = position;",
    ]
    for k in reversed(axes):
        body += [f"let c{k} = i32(rest % P.o{k}) + P.p{k};", f"rest = rest / P.o{k};"]
    body += [f"let o{j} = min(channel + {j}u, P.per_group - 1u) * P.taps;" for j in range(4)]
    body += [f"var sum{j} = 0.0;" for j in range(4)]
    tap = ""
    for k in axes:
        body += [
            f"for (var k{k} = 0; k{k} < P.k{k}; k{k}++) {{",
            f"let t{k} = c{k} - k{k} * P.d{k};",
            f"if (t{k} < 0 || t{k} % P.s{k} != 0 || t{k} / P.s{k} >= P.i{k}) {{ continue; }}",
            f"let r{k} = t{k} / P.s{k};",
        ]
        tap = f"({tap}) * P.k{k} + k{k}" if tap else f"k{k}"
    body += [
        f"var x_next = matrix * P.depth * P.plane + u32({flat('r', axes)});",
        f"var w_next = group_ * P.depth * P.per_group * P.taps + u32({tap});",
        "for (var c = 0u; c < P.depth; c++) {",
        "  let v = x_at(x_next);",
        *(f"  sum{j} = fma(v, weight_at(w_next + o{j}), sum{j});" for j in range(4)),
        "  x_next += P.plane; w_next += P.per_group * P.taps;",
        "}",
        *["}"] * rank,
    ]
    for j in range(4):
        place = f"let at = (matrix * P.per_group + channel + {j}u) * P.positions + position;"
        store = f"y_put(at, finish(group_ * P.per_group + channel + {j}u, at, sum{j}));"
        body.append(f"if (channel + {j}u < P.per_group) {{ {place} {store} }}")
    reads = s.reads()
    writes = {"y": Storage(s.y)}
    params = [
        *u32s("count", "positions", "blocks", "sets", "per_group", "depth", "plane", "taps"),
        *_axes("i32", "ikspd", axes),
        *_axes("u32", "o", axes),
        *s.params(),
    ]
    return build(
        "convolution_transposed", body, target=target, reads=reads, writes=writes, params=params, helpers=s.finish()
    )


@cached(64)
def phases(weight: DType, rank: int, target: Target) -> KernelSpec:
    """Reorder weights [group, channel, out channel, taps] to [group, phase, out channel, channel, reversed taps].

    Along an axis, phase r has `P.t` taps, every s-th one from r on, which are zero beyond the kernel.
    """
    axes = range(rank)
    lines = ["var rest = i;"]
    lines += [f"let t{k} = rest % P.t{k}; rest = rest / P.t{k};" for k in reversed(axes)]
    lines += [
        "let c = rest % P.depth; rest = rest / P.depth;",
        "let channel = rest % P.per_group; rest = rest / P.per_group;",
    ]
    for k in reversed(axes):
        lines.append(f"let k{k} = rest % P.s{k} + (P.t{k} - 1u - t{k}) * P.s{k}; rest = rest / P.s{k};")
    lines.append(f"if ({' || '.join(f'k{k} >= P.k{k}' for k in axes)}) {{ return 0.0; }}")
    at = "(rest * P.depth + c) * P.per_group + channel"
    for k in axes:
        at = f"({at}) * P.k{k} + k{k}"
    lines.append(f"return a_at({at});")
    params = [*u32s("n", "depth", "per_group"), *_axes("u32", "tsk", axes)]
    return chosen("convolution_phases", lines, {"a": weight}, weight, params, False, target)


@cached(64)
def interleave(s: Storages, rank: int, target: Target) -> KernelSpec:
    """Interleave phases [image, group, phase, out channel, `P.q` positions] to outputs, with bias and epilogue."""
    axes = range(rank)
    lines = ["var rest = i;"]
    lines += [f"let o{k} = rest % P.o{k} + P.p{k}; rest = rest / P.o{k};" for k in reversed(axes)]
    phase, position = "rest / P.per_group", "0u"
    for k in axes:
        phase = f"({phase}) * P.s{k} + o{k} % P.s{k}"
        position = f"({position}) * P.q{k} + o{k} / P.s{k} - P.first{k}"
    size = " * ".join(f"P.q{k}" for k in axes)
    lines += [
        f"let row = ({phase}) * P.per_group + rest % P.per_group;",
        f"return finish(rest % P.channels, i, x_at(row * ({size}) + {position}));",
    ]
    params = [*u32s("n", "channels", "per_group"), *_axes("u32", "ospq", axes)]
    params += [*((f"first{k}", "u32") for k in axes), *s.params()]
    reads = {"x": s.x, **{name: storage.dtype for name, storage in s.added().items()}}
    return chosen("convolution_interleave", lines, reads, s.y, params, False, target, s.finish())
