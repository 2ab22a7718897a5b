"""The text of a merged kernel: bodies of several kernels, and a loop over a table of stages.

All its workgroups are resident, so they can wait for each other. Each goes through all stages; in a stage of `groups`
groups, it runs the body for some of them. A stage that depends on an earlier one first waits until all workgroups have
arrived at the end of that stage. Waits are bounded: a workgroup that gives up raises the arrivals to GAVE_UP. Then
nobody waits any more, and stages are left out until the host resets the counter, also in later dispatches.

No workgroup arrives twice without a wait in between, or the count would not tell that all arrived once.

The words of the counter: arrivals in this dispatch, and workgroups that left it. The last one to leave resets them.

A record of the table is a vec4 (body, place of the parameters in vec4s, flags), and vec4s with the places of the
kernel's bindings in their slabs, each in elements of its own type. Names that begin with `m_` are of the merged kernel.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..plan.plan import Access, Feature, Kernel
from .kernel_text import KernelParts, Rewriter, StorageVariable, Unmergeable, parts_of
from .repeats import GAVE_UP

SPINS = 100_000  # looks at the counter until a workgroup gives up: 50 to 100 ms on a GPU
WAITS, ARRIVES, WAITS_LATE = 1, 2, 4  # flags of a stage; late: in the body, after independent loads, and after it
MAX_UNIFORM_BYTES = 65536
COUNTER_BYTES = 16
_SCALARS, _HALVES = {"f32", "i32", "u32"}, {"f16", "vec4<f16>"}


@dataclass(frozen=True, slots=True)
class Body:
    """A kernel with the slab of each of its storage bindings, and its parameter buffer."""

    kernel: Kernel
    slabs: tuple[int, ...]
    words: int
    constants: tuple[tuple[int, int], ...] = ()  # words of the parameters that are the same in all stages, and values


@dataclass(slots=True)
class Slab:
    """A buffer of a merged kernel, with all types in which kernels see it."""

    written: bool
    elements: set[str]

    @property
    def element(self) -> str:
        """Return the type of an element in the merged kernel."""
        if len(self.elements) == 1:
            return next(iter(self.elements))
        if self.elements <= _HALVES:
            return "f16"
        return "u32" if self.elements <= _SCALARS else "vec4<u32>"


def stage_vectors(bindings: int) -> int:
    """Return the vec4s of a record for a kernel with this many storage bindings."""
    return 1 + -(-bindings // 4)


def element_bytes(element: str) -> int:
    """Return the bytes of a WGSL type in an array."""
    lanes = int(element[3]) if element.startswith("vec") else 1
    return (lanes + lanes % 2 * (lanes > 1)) * (2 if "f16" in element else 4)


def _width(element: str) -> str:
    """Return the type that stands for all types of this size in workgroup memory."""
    return re.sub("f32|i32", "u32", element)


@dataclass(slots=True)
class SharedArrays:
    """The workgroup arrays of elements of one size. Bodies run one after another, so all use the same arrays."""

    elements: set[str] = field(default_factory=set)
    counts: list[int] = field(default_factory=list)  # of each array

    @property
    def element(self) -> str:
        return next(iter(self.elements)) if len(self.elements) == 1 else _width(next(iter(self.elements)))

    @property
    def nbytes(self) -> int:
        return sum(-(-element_bytes(self.element) * n // 16) * 16 for n in self.counts)


def shared_arrays(parts: Sequence[KernelParts]) -> dict[str, SharedArrays]:
    """Return the workgroup arrays that serve all bodies, by width."""
    arrays: dict[str, SharedArrays] = {}
    for p in parts:
        for width, own in _by_width(p).items():
            common = arrays.setdefault(width, SharedArrays())
            common.elements |= {element for _, element, _ in own}
            longer, shorter = sorted([common.counts, [n for _, _, n in own]], key=len, reverse=True)
            common.counts = [*map(max, longer, shorter), *longer[len(shorter) :]]
    return arrays


def _by_width(parts: KernelParts) -> dict[str, list[tuple[str, str, int]]]:
    """Return the workgroup arrays of a kernel, the longest first."""
    groups: dict[str, list[tuple[str, str, int]]] = {}
    for array in sorted(parts.shared, key=lambda a: -a[2]):
        groups.setdefault(_width(array[1]), []).append(array)
    return groups


def shared_bytes(parts: Sequence[KernelParts]) -> int:
    """Return the workgroup memory of a merged kernel with these bodies, with a word for waits."""
    return 16 + sum(arrays.nbytes for arrays in shared_arrays(parts).values())


def merged_kernel(
    bodies: Sequence[Body],
    slabs: Sequence[Slab],
    words: Sequence[int],
    stages: int,
    spins: int,
) -> Kernel:
    """Return the kernel; `words` are the bytes of the parameter buffers.

    Its bindings are the slabs, the counter, the table, the parameter buffers, and the symbolic ints if a body has any.
    """
    parts = [parts_of(body.kernel) for body in bodies]
    stride = max(stage_vectors(len(p.storage)) for p in parts)
    lines: list[str] = []
    access: list[Access] = []

    def bind(kind: Access, declaration: str) -> None:
        lines.append(f"@group(0) @binding({len(access)}) var<{declaration};")
        access.append(kind)

    for k, slab in enumerate(slabs):
        mode = "read_write" if slab.written else "read"
        bind("write" if slab.written else "read", f"storage, {mode}> m_slab{k}: array<{slab.element}>")
    bind("write", "storage, read_write> m_counter: array<atomic<u32>>")
    bind("uniform", f"uniform> m_table: array<vec4<u32>, {stages * stride}>")
    for k, nbytes in enumerate(words):
        mode = "uniform" if nbytes <= MAX_UNIFORM_BYTES else "storage, read"
        count = f", {nbytes // 16}" if mode == "uniform" else ""
        bind("uniform" if count else "read", f"{mode}> m_words{k}: array<vec4<u32>{count}>")
    if syms := max(p.syms for p in parts):
        bind("uniform", f"uniform> syms: array<vec4<i32>, {syms}>")
    shared = shared_arrays(parts)
    for width, arrays in shared.items():
        for k, length in enumerate(arrays.counts):
            lines.append(f"var<workgroup> {_shared(width, k)}: array<{arrays.element}, {length}>;")
    lines.append("var<workgroup> m_arrivals: u32;")
    lines.append(_WAIT.replace("SPINS", f"{spins}u").replace("GAVE_UP", f"{GAVE_UP}u"))
    helpers: dict[str, str] = {}
    cases: list[str] = []
    for k, (body, p) in enumerate(zip(bodies, parts, strict=True)):
        text = _BodyText(k, body, p, [slab.element for slab in slabs], shared, helpers)
        lines += text.declarations()
        cases.append(text.case(stride))
    lines += helpers.values()
    builtins = list(dict.fromkeys(name for p in parts for name in p.builtins))
    unknown = set(builtins) - {"sg_lane", "sg_size"}
    if unknown:
        raise Unmergeable(f"builtins {sorted(unknown)}")
    of_subgroups = {"sg_lane": "subgroup_invocation_id", "sg_size": "subgroup_size"}
    arguments = "".join(f", @builtin({of_subgroups[name]}) {name}: u32" for name in builtins)
    workgroup = bodies[0].kernel.workgroup
    main = _MAIN.format(T=workgroup, arguments=arguments, stages=stages, stride=stride, cases="\n".join(cases))
    lines.append(main.replace("GAVE_UP", f"{GAVE_UP}u"))
    needs: tuple[Feature, ...] = tuple(dict.fromkeys(need for body in bodies for need in body.kernel.needs))
    return Kernel(f"{stages} stages", "\n".join(lines) + "\n", tuple(access), workgroup, shared_bytes(parts), needs)


# Invocation 0 keeps the arrivals that it saw last: a wait for what has happened already takes no look at the counter.
_WAIT = """fn m_wait(lid: u32, goal: u32) -> bool {
  if (lid == 0u) {
    var arrivals = m_arrivals;
    for (var looks = 0u; arrivals < goal && looks < SPINS; looks++) { arrivals = atomicLoad(&m_counter[0]); }
    if (arrivals < goal) {
      atomicMax(&m_counter[0], GAVE_UP);
      arrivals = GAVE_UP;
    }
    m_arrivals = arrivals;
  }
  storageBarrier();
  return workgroupUniformLoad(&m_arrivals) < GAVE_UP;
}"""

_MAIN = """@compute @workgroup_size({T})
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, """ + (
    """@builtin(local_invocation_index) lid: u32{arguments}) {{
  if (lid == 0u) {{ m_arrivals = 0u; }}
  var goal = 0u;
  for (var stage = 0u; stage < {stages}u; stage++) {{
    let at = stage * {stride}u;
    let head = m_table[at];
    if ((head.z & 5u) != 0u) {{ goal += nwg.x; }}
    if ((head.z & 1u) != 0u) {{
      if (!m_wait(lid, goal)) {{ break; }}
    }}
    switch (head.x) {{
{cases}
      default: {{}}
    }}
    if ((head.z & 4u) != 0u) {{
      if (!m_wait(lid, goal)) {{ break; }}
    }}
    if ((head.z & 2u) != 0u) {{
      storageBarrier();
      workgroupBarrier();
      if (lid == 0u) {{ atomicAdd(&m_counter[0], 1u); }}
    }}
  }}
  if (lid == 0u) {{
    if (atomicAdd(&m_counter[1], 1u) + 1u == nwg.x) {{
      atomicStore(&m_counter[1], 0u);
      if (atomicLoad(&m_counter[0]) < GAVE_UP) {{ atomicStore(&m_counter[0], 0u); }}
    }}
  }}
}}"""
)


def _shared(element: str, k: int) -> str:
    return f"m_shared_{_word(element)}_{k}"


def _word(element: str) -> str:
    """Return a type as a part of a name."""
    return re.sub(r"\W+", "_", element).strip("_")


class _BodyText:
    """The text of one body; an `Access` to the storage and the parameters of its kernel."""

    def __init__(
        self,
        number: int,
        body: Body,
        parts: KernelParts,
        elements: Sequence[str],
        shared: Mapping[str, SharedArrays],
        helpers: dict[str, str],
    ) -> None:
        self._body, self._parts, self._elements = body, parts, elements
        self._prefix, self._number, self._helpers = f"m_k{number}_", number, helpers
        self._constants: dict[str, str] = {}  # parameters, in the record, with their values
        values = dict(body.constants)
        for name, (word, kind) in parts.params.items():
            value = values.get(word)
            if value is None or (kind == "f32" and not math.isfinite(struct.unpack("f", struct.pack("I", value))[0])):
                continue
            self._constants[name] = f"{value}u" if kind == "u32" else f"bitcast<{kind}>({value}u)"
        self._places = {v.name: k for k, v in enumerate(parts.storage)}
        renamed: dict[str, str] = {}
        self._shared: dict[str, tuple[str, str, str]] = {}  # arrays of other types: name → type, array, its type
        for width, own in _by_width(parts).items():
            for k, (name, element, _) in enumerate(own):
                if element == shared[width].element:
                    renamed[name] = _shared(width, k)
                else:
                    self._shared[name] = element, _shared(width, k), shared[width].element
        rewritten = {*self._places, *self._shared}
        self._rewriter = Rewriter(parts.names, rewritten, renamed, parts.body, self, self._prefix)

    def declarations(self) -> list[str]:
        p, prefix = self._parts, self._prefix
        fields = "".join(f" b{k}: u32," for k in range(len(p.storage)))
        fields += "".join(f" c_{name}: {p.params[name][1]}," for name in self._constants)
        lines = [f"struct {prefix}Stage {{ p: u32,{fields} }}"]
        lines += [self._rewriter.rewrite(tokens).strip() for tokens in p.declarations]
        late = "m_pending: u32, " if p.independent else ""
        builtins = "".join(f", {name}: u32" for name in p.builtins)
        head = f"fn {prefix}main(m_stage: {prefix}Stage, {late}group: u32, lid: u32{builtins}) {{"
        return [*lines, head, self._rewriter.rewrite(p.body), "}"]

    def case(self, stride: int) -> str:
        p = self._parts
        places = [f"m_table[at + {1 + k // 4}u].{'xyzw'[k % 4]}" for k in range(len(p.storage))]
        record = f"{self._prefix}Stage({', '.join(['head.y', *places, *self._constants.values()])})"
        late = "m_pending, " if p.independent else ""
        call = f"{self._prefix}main(record, {late}group, lid{''.join(f', {n}' for n in p.builtins)});"
        pending = "let m_pending = select(0u, goal, (head.z & 4u) != 0u);" if p.independent else ""
        after = "workgroupBarrier(); " if p.shared else ""
        return f"""      case {self._number}u: {{
        let record = {record};
        let groups = {self._constants.get("groups") or f"m_words{self._body.words}[head.y].x"};
        {pending}
        for (var group = wid.x; group < groups; group += nwg.x) {{ {call} {after}}}
      }}"""

    def place(self, name: str, index: str) -> str:
        if name in self._shared:
            return ""
        k = self._places[name]
        if self._elements[self._body.slabs[k]] != self._parts.storage[k].element:
            return ""
        return f"m_slab{self._body.slabs[k]}[m_stage.b{k} + u32({index})]"

    def load(self, name: str, index: str) -> str:
        if name in self._shared:
            element, array, _ = self._shared[name]
            return f"bitcast<{element}>({array}[{index}])"
        k = self._places[name]
        return f"{self._helper(self._parts.storage[k], k, 'load')}(m_stage.b{k} + u32({index}))"

    def store(self, name: str, index: str, path: str, value: str) -> str:
        if name in self._shared:
            element, array, common = self._shared[name]
            if path:
                element, common = (re.sub(r"vec\d<(.*)>", r"\1", t) for t in (element, common))
            return f"{array}[{index}]{path} = bitcast<{common}>({element}({value}))"
        k = self._places[name]
        variable, slab = self._parts.storage[k], self._body.slabs[k]
        if not path:
            return f"{self._helper(variable, k, 'store')}(m_stage.b{k} + u32({index}), {value})"
        if not variable.element.startswith("vec4") or "f16" in variable.element:
            raise Unmergeable(f"a part of {variable.element} is stored")
        scalar = variable.element[5:-1]
        return f"m_slab{slab}[m_stage.b{k} + u32({index})]{path} = bitcast<u32>({scalar}({value}))"

    def param(self, name: str) -> str:
        if name in self._constants:
            return f"m_stage.c_{name}"
        word, kind = self._parts.params[name]
        text = f"m_words{self._body.words}[m_stage.p + {word // 4}u].{'xyzw'[word % 4]}"
        return text if kind == "u32" else f"bitcast<{kind}>({text})"

    def wait(self) -> str:
        return "if (m_pending != 0u) { if (!m_wait(lid, m_pending)) { return; } }"

    def _helper(self, variable: StorageVariable, k: int, verb: str) -> str:
        """Return the name of a function that loads or stores elements of another type than the slab's."""
        slab, element = self._body.slabs[k], variable.element
        name = f"m_slab{slab}_{verb}_{_word(element)}"
        if name not in self._helpers:
            bodies = _BODIES[self._elements[slab]].get((verb, element))
            if bodies is None or (element == "f16" and verb == "store"):
                raise Unmergeable(f"{verb} {element} in {self._elements[slab]}")
            signature = f"(i: u32) -> {element}" if verb == "load" else f"(i: u32, v: {element})"
            self._helpers[name] = f"fn {name}{signature} {{ {bodies.replace('SLAB', f'm_slab{slab}')} }}"
        return name


_IN_WORDS: dict[tuple[str, str], str] = {}  # (verb, type) → body of the function, for slabs of u32
_IN_QUADS: dict[tuple[str, str], str] = {}  # for slabs of vec4<u32>
for _e in ("f32", "i32", "u32"):
    _IN_WORDS["load", _e] = f"return bitcast<{_e}>(SLAB[i]);"
    _IN_WORDS["store", _e] = "SLAB[i] = bitcast<u32>(v);"
    _IN_QUADS["load", _e] = f"return bitcast<{_e}>(SLAB[i >> 2u][i & 3u]);"
    _IN_QUADS["store", _e] = "SLAB[i >> 2u][i & 3u] = bitcast<u32>(v);"
    _IN_QUADS["load", f"vec4<{_e}>"] = f"return bitcast<vec4<{_e}>>(SLAB[i]);"
    _IN_QUADS["store", f"vec4<{_e}>"] = "SLAB[i] = bitcast<vec4<u32>>(v);"
    _IN_QUADS["load", f"vec2<{_e}>"] = (
        f"let w = SLAB[i >> 1u]; return bitcast<vec2<{_e}>>(select(w.xy, w.zw, (i & 1u) == 1u));"
    )
    _IN_QUADS["store", f"vec2<{_e}>"] = (
        "let w = bitcast<vec2<u32>>(v); let c = (i & 1u) * 2u; SLAB[i >> 1u][c] = w.x; SLAB[i >> 1u][c + 1u] = w.y;"
    )
_IN_QUADS["load", "f16"] = (
    "let h = unpack2x16float(SLAB[i >> 3u][(i >> 1u) & 3u]); return f16(select(h.x, h.y, (i & 1u) == 1u));"
)
_IN_QUADS["load", "vec4<f16>"] = (
    "let w = SLAB[i >> 1u]; let h = select(w.xy, w.zw, (i & 1u) == 1u); "
    "return vec4<f16>(vec4<f32>(unpack2x16float(h.x), unpack2x16float(h.y)));"
)
_IN_QUADS["store", "vec4<f16>"] = (
    "let f = vec4<f32>(v); let c = (i & 1u) * 2u; "
    "SLAB[i >> 1u][c] = pack2x16float(f.xy); SLAB[i >> 1u][c + 1u] = pack2x16float(f.zw);"
)
_IN_HALVES = {
    ("load", "vec4<f16>"): "let q = i * 4u; return vec4<f16>(SLAB[q], SLAB[q + 1u], SLAB[q + 2u], SLAB[q + 3u]);",
    ("store", "vec4<f16>"): "let q = i * 4u; " + "".join(f"SLAB[q + {k}u] = v[{k}]; " for k in range(4)).strip(),
}
_BODIES = {"u32": _IN_WORDS, "vec4<u32>": _IN_QUADS, "f16": _IN_HALVES}
