"""The assembly of WGSL modules from kernel bodies: bindings, accessors by dtype, parameters, dispatch folding.

A kernel author writes the body of `main` and names its reads, writes and parameters. This module adds the rest, so no
kernel deals with the storage of bools or halves. GPU buffers hold the same bytes as the host's arrays: bools and 8-bit
ints are packed four to a word, halves two to a word. Therefore:

- every read `x` gets `x_at(i)`, element `i` as its compute type (f32 for halves, i32 for 8-bit ints, bool);
- a read of 4 lanes gets `x_at4(q)`, elements 4q … 4q+3 as a vec4 of the compute type (no `x_at`);
- a write `y` of 1 lane gets `y_put(i, v)`, which only types that fill a word allow (`writable`);
- a write of 4 lanes gets `y_put4(q, v)` and takes any dtype;
- a write of Q8, of any lanes, gets `y_put_block(b, v0, …, v7)` instead (`blocks.py`).

Every module has `P` (the parameters; `P.groups` is always there), `group` (this workgroup's number, folded over two
grid dimensions), `lid` (the invocation within it), `WG` (workgroup size), and `sym(slot)` if a parameter is symbolic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..dtypes import DType
from ..plan.plan import Access, Feature, Kernel
from ..plan.target import Target
from . import blocks

SYM_VECTORS = 64  # vec4s in the uniform of symbolic ints: 256 words

COMPUTE = {
    DType.F32: "f32",
    DType.F16: "f32",
    DType.I32: "i32",
    DType.I8: "i32",
    DType.U8: "i32",
    DType.BOOL: "bool",
}
LOWEST = "-3.4028234663852886e38"  # finite, so that -inf - top is -inf and never NaN
ZERO = {"f32": "0.0", "i32": "0", "bool": "false"}

PARAM_TYPES = {"u32": "u32", "i32": "i32", "f32": "f32", "sym": "u32"}

# The largest of four lanes and their sum, or a single number itself.
LARGEST = {
    "f32": "fn largest(v: f32) -> f32 { return v; }",
    "vec4<f32>": "fn largest(v: vec4<f32>) -> f32 { return max(max(v.x, v.y), max(v.z, v.w)); }",
}
ACROSS = {
    "f32": "fn across(v: f32) -> f32 { return v; }",
    "vec4<f32>": "fn across(v: vec4<f32>) -> f32 { return (v.x + v.y) + (v.z + v.w); }",
}


def u32s(*names: str) -> list[tuple[str, str]]:
    """Return parameters of type u32."""
    return [(name, "u32") for name in names]


@dataclass(frozen=True, slots=True)
class Storage:
    """One storage binding as a kernel sees it: 1 lane (by element) or 4 (by aligned quad).

    With `raw`, the array has that element type, such as "vec4<u32>" for packed weights, and no accessors.
    """

    dtype: DType
    lanes: int = 1
    raw: str = ""


I32 = Storage(DType.I32)


def writable(dtype: DType, target: Target) -> bool:
    """Return True if single elements can be stored without touching their neighbours in the word."""
    return dtype.size == 4 or (dtype is DType.F16 and target.f16)


def store_type(dtype: DType, target: Target) -> DType:
    """Return the dtype that a kernel writes element by element; the lowering adds a cast to the output's own."""
    return dtype if writable(dtype, target) else DType.F32 if dtype is DType.F16 else DType.I32


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """A generated kernel with its bindings and parameters, in their order."""

    kernel: Kernel
    reads: tuple[Storage, ...]
    writes: tuple[Storage, ...]
    params: tuple[tuple[str, str], ...]  # (name, type) after the implicit `groups`

    @property
    def reads_syms(self) -> bool:
        return any(t == "sym" for _, t in self.params)


def build(
    name: str,
    body: str | Sequence[str],
    *,
    target: Target,
    reads: Mapping[str, Storage],
    writes: Mapping[str, Storage],
    params: Sequence[tuple[str, str]] = (),
    workgroup: int | None = None,
    shared: Mapping[str, tuple[str, int]] | None = None,
    helpers: str = "",
    subgroups: bool = False,
    matrices: bool = False,
) -> KernelSpec:
    """Assemble a kernel from the text of its body, or from lines that are not yet indented.

    `shared` maps workgroup arrays to (element type, count); `helpers` is module-scope WGSL. A workgroup has 256
    invocations by default, or fewer if the target's limit is lower.
    """
    body = body if isinstance(body, str) else "\n".join(f"  {line}" for line in body)
    workgroup = workgroup or target.workgroup(256)
    shared = shared or {}
    lines: list[str] = []
    access: list[Access] = []
    if any(s.dtype is DType.Q8 for s in (*reads.values(), *writes.values())):
        lines.append(blocks.READING)
    if any(s.dtype is DType.Q8 for s in writes.values()):
        lines.append(blocks.WRITING)
    for mode, group in (("read", reads), ("read_write", writes)):
        for n, s in group.items():
            element, accessors = _accessors(n, s, target, write=mode == "read_write")
            lines.append(f"@group(0) @binding({len(access)}) var<storage, {mode}> {n}: array<{element}>;")
            lines.extend(accessors)
            access.append("read" if mode == "read" else "write")
    fields = "".join(f" {n}: {PARAM_TYPES[t]}," for n, t in params)
    lines.append(f"struct Params {{ groups: u32,{fields} }}")
    lines.append(f"@group(0) @binding({len(access)}) var<uniform> P: Params;")
    access.append("uniform")
    if any(t == "sym" for _, t in params):
        lines.append(f"@group(0) @binding({len(access)}) var<uniform> syms: array<vec4<i32>, {SYM_VECTORS}>;")
        lines.append("fn sym(slot: u32) -> i32 { return syms[slot >> 2u][slot & 3u]; }")
        access.append("uniform")
    shared_bytes = 0
    for n, (element, count) in shared.items():
        lines.append(f"var<workgroup> {n}: array<{element}, {count}>;")
        shared_bytes += ELEMENT_BYTES[element] * int(count)
    lines.append(f"const WG: u32 = {workgroup}u;")
    if helpers:
        lines.append(helpers)
    builtins = "@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, "
    builtins += "@builtin(local_invocation_index) lid: u32"
    if matrices:
        builtins += ", @builtin(subgroup_id) sg: u32"
    if subgroups:
        builtins += ", @builtin(subgroup_invocation_id) sg_lane: u32, @builtin(subgroup_size) sg_size: u32"
    lines += [
        f"@compute @workgroup_size({workgroup})",
        f"fn main({builtins}) {{",
        "  let group = wid.x + wid.y * nwg.x;",
        "  if (group >= P.groups) { return; }",
        body,
        "}",
    ]
    needs: list[Feature] = []
    if matrices or (target.f16 and any(s.dtype is DType.F16 for g in (reads, writes) for s in g.values())):
        needs.append("f16")
    if subgroups or matrices:
        needs.append("subgroups")
    if matrices:
        needs.append("matrices")
    kernel = Kernel(name, "\n".join(lines) + "\n", tuple(access), int(workgroup), shared_bytes, tuple(needs))
    return KernelSpec(kernel, tuple(reads.values()), tuple(writes.values()), tuple(params))


ELEMENT_BYTES = {
    "f32": 4,
    "i32": 4,
    "u32": 4,
    "atomic<u32>": 4,
    "vec4<f32>": 16,
    "vec4<i32>": 16,
    "vec4<u32>": 16,
    "vec2<f32>": 8,
    "vec2<u32>": 8,
    "f16": 2,
    "vec4<f16>": 8,
}


def _accessors(n: str, s: Storage, target: Target, *, write: bool) -> tuple[str, list[str]]:
    """Return the element type of the binding's array, and functions that load and store elements by dtype."""
    if s.raw:
        return s.raw, []
    if s.dtype is DType.Q8:
        return "u32", blocks.accessors(n, s.lanes, write=write)
    d, four = s.dtype, s.lanes == 4
    c, index = COMPUTE[d], "q" if four else "i"
    i = f"{index}: u32"
    result = f"vec4<{c}>" if four else c
    at = f"fn {n}_at{'4' if four else ''}({i}) -> {result}"
    put = f"fn {n}_put{'4' if four else ''}({i}, v: {result})"
    if d in (DType.F32, DType.I32):
        element = f"vec4<{c}>" if four else c
        load, store = f"return {n}[{index}];", f"{n}[{index}] = v;"
    elif d is DType.F16 and target.f16:
        element = "vec4<f16>" if four else "f16"
        load, store = f"return {result}({n}[{index}]);", f"{n}[{index}] = {element}(v);"
    elif d is DType.F16 and four:
        element = "vec2<u32>"
        load = f"let w = {n}[q]; return vec4<f32>(unpack2x16float(w.x), unpack2x16float(w.y));"
        store = f"{n}[q] = vec2<u32>(pack2x16float(v.xy), pack2x16float(v.zw));"
    elif d is DType.F16:
        element, store = "u32", ""
        load = f"let h = unpack2x16float({n}[i >> 1u]); return select(h.x, h.y, (i & 1u) == 1u);"
    elif four:
        element, load, store = "u32", _UNPACK4[d].format(w=f"{n}[q]"), _PACK4[d].format(n=n)
    else:
        element, load, store = "u32", _UNPACK1[d].format(w=f"{n}[i >> 2u]"), ""
    functions = [f"{at} {{ {load} }}"]
    if write and store:
        functions.append(f"{put} {{ {store} }}")
    elif write:
        raise TypeError(f"{n}: single elements of {d.value} share a word; write quads or another type")
    return element, functions


_UNPACK1 = {
    DType.BOOL: "return (({w} >> ((i & 3u) * 8u)) & 255u) != 0u;",
    DType.U8: "return i32(({w} >> ((i & 3u) * 8u)) & 255u);",
    DType.I8: "return extractBits(bitcast<i32>({w}), (i & 3u) * 8u, 8u);",
}
_UNPACK4 = {
    DType.BOOL: "let w = vec4<u32>({w}) >> vec4<u32>(0u, 8u, 16u, 24u); return (w & vec4<u32>(255u)) != vec4<u32>(0u);",
    DType.U8: "let w = vec4<u32>({w}) >> vec4<u32>(0u, 8u, 16u, 24u); return vec4<i32>(w & vec4<u32>(255u));",
    DType.I8: "return (vec4<i32>(bitcast<i32>({w})) << vec4<u32>(24u, 16u, 8u, 0u)) >> vec4<u32>(24u);",
}
_PACK_BYTES = "let b = (w & vec4<u32>(255u)) << vec4<u32>(0u, 8u, 16u, 24u); {n}[q] = b.x | b.y | b.z | b.w;"
_PACK4 = {
    DType.BOOL: "let w = select(vec4<u32>(0u), vec4<u32>(1u), v); " + _PACK_BYTES,
    DType.U8: "let w = bitcast<vec4<u32>>(v); " + _PACK_BYTES,
    DType.I8: "let w = bitcast<vec4<u32>>(v); " + _PACK_BYTES,
}
