"""Attention of a few rows: a workgroup multiplies keys by all rows, then its slices add up weighted values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..dtypes import BLOCK, DType
from ..plan.plan import INDEPENDENT
from ..plan.target import Target
from ..sizes import cached
from .attention import AttentionForm, module, workgroup_range
from .attention_slices import MOST_SLICES, SPARE, RowVectors, Slices
from .blocks import QUADS, WORDS
from .wgsl import ELEMENT_BYTES, KernelSpec

MOST_ROWS = 8  # maximum rows of a workgroup
MOST_QUERY_QUADS = 256  # maximum quads of a query in workgroup memory; longer queries are loaded again for every key
KEY_LANES = 4  # invocations that share a key
KEYS_EACH = 2  # keys of an invocation in a step, if its registers suffice, so that more loads are in flight
KEYS_RESIDENT = 1  # the same where dispatches may become one, which loads the first keys while it waits
UNROLLED = 16  # maximum successive loads that are unrolled


def rows_of_block(most: int, rows: int) -> int:
    """Return the smallest power of two, at most `most`, that covers the rows with the same number of blocks."""
    blocks = -(-rows // most)
    return 1 << (-(-rows // blocks) - 1).bit_length()


def most_rows(dim: int) -> int:
    """Return the maximum rows of `dim` elements per workgroup, a power of two."""
    return 1 << (max(1, min(MOST_ROWS, MOST_QUERY_QUADS // -(-dim // 4))).bit_length() - 1)


def _each(count: int, start: str, step: int, limit: int, body: Callable[[str], list[str]]) -> list[str]:
    """Return `body(index)` for `count` indices start, start + step, … below `limit`, unrolled if these are few."""
    if count > UNROLLED:
        return [f"for (var at = {start}; at < {limit}u; at += {step}u) {{", *body("at"), "}"]
    lines = []
    for j in range(count):
        index = f"{start} + {j * step}u"
        beyond = j == count - 1 and limit % step
        lines += [f"if ({index} < {limit}u) {{" if beyond else "{", *body(f"({index})"), "}"]
    return lines


@dataclass(frozen=True, slots=True)
class Division:
    """The division of the work on `rows` among the invocations of a workgroup."""

    form: AttentionForm
    rows: RowVectors
    workgroup: int
    new_keys: int  # upper bound
    most_keys: int  # of an invocation in a step

    @staticmethod
    def of(form: AttentionForm, count: int, sharing: int, target: Target) -> Division:
        most_keys = KEYS_RESIDENT if target.resident else KEYS_EACH
        return Division(form, RowVectors(count), target.team, -(-count // sharing) if form.new else 0, most_keys)

    @property
    def loads(self) -> int:
        """The loads of a key by an invocation."""
        return -(-self.form.key_quads // KEY_LANES)

    @property
    def each(self) -> int:
        """The keys of an invocation in a step."""
        keys = self.workgroup // KEY_LANES * self.most_keys
        unrolled = max(self.loads * self.most_keys, self._values(keys)) <= UNROLLED
        return self.most_keys if unrolled and len(self.rows.vectors) * keys * KEY_LANES <= SPARE else 1

    @property
    def keys(self) -> int:
        return self.workgroup // KEY_LANES * self.each

    @property
    def slices(self) -> Slices:
        return self._slices(self.keys)

    @property
    def early(self) -> bool:
        """True if values are loaded before their weights are computed."""
        return self._values(self.keys) <= UNROLLED

    @property
    def ahead(self) -> bool:
        """True if keys are loaded one step ahead."""
        return self.loads * self.each <= UNROLLED

    @property
    def staged(self) -> bool:
        """True if queries are in workgroup memory."""
        return self.form.key_quads <= MOST_QUERY_QUADS

    def _slices(self, keys: int) -> Slices:
        return Slices.of(self.rows, self.form.value_quads, self.workgroup, min(keys, MOST_SLICES))

    def _values(self, keys: int) -> int:
        """Return the loads of values by an invocation in a step of `keys` keys."""
        slices = self._slices(keys)
        return keys // slices.count * slices.held

    @property
    def dots(self) -> str:
        """The array in which products are added up, which is shared with the slices if the types agree."""
        return "spare" if self.rows.width == 4 else "dots"

    def shared(self) -> dict[str, tuple[str, int]]:
        kind, vectors, n = self.rows.type, len(self.rows.vectors), self.form.key_quads
        arrays = self.slices.shared() | {"scores": (kind, vectors * self.keys)}
        arrays[self.dots] = (kind, max(arrays.get(self.dots, ("", 0))[1], vectors * self.keys * KEY_LANES))
        if self.staged:
            arrays["queries"] = ("vec4<f32>", self.rows.count * n)
        if self.new_keys:
            arrays |= {f"new_{name}": ("vec4<f32>", self.new_keys * n) for name in "kv"}
        return arrays


def takes_new(form: AttentionForm, rows: int, sharing: int, target: Target) -> bool:
    """Return True if `rows` can take new keys and values: one workgroup has all rows and enough memory."""
    if DType.Q8 in (form.k, form.v) and form.dim % BLOCK:
        return False  # a block would belong to several heads
    if not form.quads or form.key_quads > MOST_QUERY_QUADS or rows > most_rows(form.dim):
        return False
    shared = Division.of(form, rows_of_block(most_rows(form.dim), rows), sharing, target).shared().values()
    return sum(ELEMENT_BYTES[kind] * count for kind, count in shared) <= target.max_shared_bytes


@cached(256)
def rows(form: AttentionForm, count: int, sharing: int, target: Target) -> KernelSpec:
    """Compute `count` rows per workgroup, a power of two.

    In each step, four invocations multiply parts of a key by all rows; then the slices of the workgroup take turns in
    adding values to the rows' softmaxes. Loads of values overlap with the sums of scores, and loads of the next keys
    with the products before. New keys and values are read from workgroup memory, without waiting for the caches, to
    which the first workgroup of a head writes them. Only these depend on `sharing`.
    """
    s = Division.of(form, count, sharing, target)
    n, all_rows, slices, keys, dots = form.key_quads, s.rows, s.slices, s.keys, s.dots
    vectors, apart = all_rows.vectors, s.workgroup // KEY_LANES
    body = workgroup_range(count, keys, form.split, "group % P.blocks", form.paged)
    body.append(f"let key = lid / {KEY_LANES}u; let part = lid % {KEY_LANES}u;")
    places = [f"part + {j * KEY_LANES}u" for j in range(s.loads)]
    own = [(e, j) for e in range(s.each) for j in range(s.loads)] if s.ahead else []
    values = [(i, j) for i in range(keys // slices.count) for j in range(slices.held)] if s.early else []
    cells = [(e, r) for e in range(s.each) for r in range(count)]
    key_loads = [(f"k{e}_{j}", f"key + {e * apart}u", f"min({places[j]}, {n - 1}u)") for e, j in own]
    body += [f"var {k} = vec4<f32>();" for k, _, _ in key_loads]
    value_loads = [(f"v{i}_{j}", f"slice + {i * slices.count}u", slices.quad(j)) for i, j in values]
    first_values = value_loads if s.new_keys and target.resident else []  # before the wait for the queries
    body += slices.start()
    body += [f"var {v} = vec4<f32>();" for v, _, _ in first_values]
    first_loads = [*key_loads, *first_values]
    body += [
        "if (from_ < to) {",
        *(f"{x} = {_loaded(x[0], f'from_ * {keys}u', t, d)};" for x, t, d in first_loads),
        "}",
    ]
    ends = [all_rows.vector(v, lambda r: f"seen(min(first + {r}u, last))").replace("f32", "u32") for v in vectors]
    body += [f"let seen{v} = {value};" for v, value in enumerate(ends)]
    body += [*_staged(s), "for (var step = from_; step < to; step++) {", f"let base = step * {keys}u;"]
    body += [f"var dot{e}_{r} = vec4<f32>();" for e, r in cells]
    body += [f"var {v} = {_loaded('v', 'base', t, d)};" for v, t, d in ([] if first_values else value_loads)]
    body += _renewed(s, [*key_loads, *value_loads])
    for j, d in enumerate(places if s.ahead else ()):
        beyond = n % KEY_LANES and j == s.loads - 1
        body.append(f"if ({d} < {n}u) {{" if beyond else "{")
        body += [f"let q{r} = queries[{r * n}u + {d}];" for r in range(count)]
        body += [*(f"dot{e}_{r} = fma(k{e}_{j}, q{r}, dot{e}_{r});" for e, r in cells), "}"]
    body += [f"{k} = {_loaded('k', f'(step + 1u) * {keys}u', t, d)};" for k, t, d in key_loads]
    body += [] if s.ahead else _multiplied(s)
    for e in range(s.each):
        for v in vectors:
            value = all_rows.vector(v, lambda r, e=e: f"across(dot{e}_{r})")  # type: ignore[misc]
            body.append(f"{dots}[{v * keys * KEY_LANES + e * s.workgroup}u + lid] = {value};")
    body += [
        "workgroupBarrier();",
        f"for (var i = lid; i < {keys}u; i += WG) {{",
        "  let t = base + i;",
        *(f"  {_judged(v, s)}" for v in vectors),
        "}",
        "workgroupBarrier();",
        f"if (slice < {slices.count}u) {{",
        *(line for v in vectors for line in (_weigh(v, slices, keys) if s.early else _weigh_one_by_one(v, s))),
        "}",
        *(f"{v} = {_loaded('v', f'(step + 1u) * {keys}u', t, d)};" for v, t, d in first_values),
        "}",
        *slices.finish("first"),
    ]
    return module("attention_rows", body, form, target, s.workgroup, s.shared())


def _staged(s: Division) -> list[str]:
    """Return lines that copy queries, new keys and values to workgroup memory, and the latter two to the caches."""
    n, count, turned = s.form.key_quads, s.rows.count, s.form.turn is not None
    if not s.staged:
        return [f"let q_row{r} = q_place(z, head, min(first + {r}u, last));" for r in range(count)]
    query = f"q_turned(place, i % {n}u, row / P.sharing)" if turned else f"q_quad(place, i % {n}u)"
    lines = [INDEPENDENT] if s.new_keys else []  # otherwise another dispatch writes the caches
    lines += [
        f"for (var i = lid; i < {count * n}u; i += WG) {{",
        f"  let row = min(first + i / {n}u, last); let place = q_place(z, head, row);",
        f"  queries[i] = {query};",
        "}",
    ]
    if s.new_keys:
        key = f"n_turned(place, i % {n}u, s)" if turned else f"n_quad(place, i % {n}u)"
        key, value = _rounded(key, s.form.k), _rounded(f"nv_at4((place >> 2u) + i % {n}u)", s.form.v)
        stored = {"k": s.form.k, "v": s.form.v}
        puts = " ".join(f"x{name}_put4(to, {name}4);" for name, dtype in stored.items() if dtype is not DType.Q8)
        slot, inside, place = _destination(s, "k")
        put = [
            *slot,
            f"  if (split == 0u && {inside}) {{",
            f"    let to = (({place}) >> 2u) + i % {n}u;",
            f"    {puts}",
            "  }",
        ]
        lines += [
            f"for (var i = WG - 1u - lid; i < P.queries * {n}u; i += WG) {{",  # invocations without a query first
            f"  let s = i / {n}u; let t = start() + s; let place = z * P.new_batch + head * P.k_head + s * P.k_row;",
            f"  let k4 = {key}; let v4 = {value};",
            "  new_k[i] = k4; new_v[i] = v4;",
            *(put if puts else ()),
            "}",
        ]
        lines += ["workgroupBarrier();"] if DType.Q8 in stored.values() else []
        for name, first in (("k", "lid"), ("v", "WG - 1u - lid")):
            lines += _new_blocks(s, name, first, n) if stored[name] is DType.Q8 else []
    return [*lines, "workgroupBarrier();"]


def _destination(s: Division, name: str) -> tuple[list[str], str, str]:
    """Return lines, the condition on which a cache stores the key or value of position `t`, and its place there."""
    if s.form.paged:
        return ["  let slot = new_row();"], "slot >= 0", f"head * P.{name}_head + u32(slot) * P.{name}_row"
    return [], "t < P.keys", f"z * P.{name}_batch + head * P.{name}_head + t * P.{name}_row"


def _rounded(value: str, dtype: DType) -> str:
    """Return the value as read back from a cache of that type."""
    return f"quantizeToF16({value})" if dtype is DType.F16 else value


def _new_blocks(s: Division, name: str, first: str, quads: int) -> list[str]:
    """Return lines that round new keys or values in workgroup memory, of `quads` quads each, as a cache of blocks does.

    They also write them to the cache; an invocation has a block.
    """
    each = quads // QUADS
    at = [f"new_{name}[{QUADS}u * i + {j}u]" for j in range(QUADS)]
    words = [f"let word{j} = block_word({quad}, lift);" for j, quad in enumerate(at)]
    slot, inside, place = _destination(s, name)
    return [
        f"for (var i = {first}; i < P.queries * {each}u; i += WG) {{",
        f"  let t = start() + i / {each}u;",
        f"  let unit = block_unit(block_top({', '.join(at)})); let lift = block_lift(unit);",
        *(f"  {word}" for word in words),
        *slot,
        f"  if (split == 0u && {inside}) {{",
        f"    let to = ((({place}) >> 5u) + i % {each}u) * {WORDS}u;",
        f"    x{name}[to] = unit;",
        *(f"    x{name}[to + {j + 1}u] = word{j};" for j in range(QUADS)),
        "  }",
        *(f"  {quad} = block_quad(word{j}, unit);" for j, quad in enumerate(at)),
        "}",
    ]


def _renewed(s: Division, quads: list[tuple[str, str, str]]) -> list[str]:
    """Return lines that replace loads from the start on, which the caches lack: (variable, key in the step, quad)."""
    if not s.new_keys:
        return []
    lines = [f"if (base + {s.keys}u > start()) {{"]
    for variable, t, d in quads:
        at = f"(min(base + {t}, end - 1u) - start()) * {s.form.key_quads}u + {d}"
        lines.append(f"  if (min(base + {t}, end - 1u) >= start()) {{ {variable} = new_{variable[0]}[{at}]; }}")
    return [*lines, "}"]


def _judged(v: int, s: Division) -> str:
    """Return a line that stores the scores of key `t` for a vector of rows."""
    summed = " + ".join(f"{s.dots}[{v * s.keys * KEY_LANES}u + i * {KEY_LANES}u + {j}u]" for j in range(KEY_LANES))
    kind, below, value = s.rows.type, f"{s.rows.type.replace('f32', 'u32')}(t) < seen{v}", f"dot{v}"
    if s.form.mask:
        value = s.rows.vector(v, lambda r: f"masked(z, head, min(first + {r}u, last), t, {s.rows.of('dot', r)})")
    store = f"scores[{v * s.keys}u + i] = select({kind}(P.hidden), {value}, {below});"
    return f"let dot{v} = ({summed}) * P.scale; {store}"


def _multiplied(s: Division) -> list[str]:
    """Return the products of a key with all rows, in a loop over its quads."""
    n, each_row = s.form.key_quads, range(s.rows.count)

    def multiply(d: str) -> list[str]:
        q = [f"queries[{r * n}u + {d}]" if s.staged else f"q_quad(q_row{r}, {d})" for r in each_row]
        load = [f"var k4 = {_loaded('k', 'base', 'key', d)};", *_renewed(s, [("k4", "key", d)])]
        return [*load, *(f"dot0_{r} = fma(k4, {q[r]}, dot0_{r});" for r in each_row)]

    return _each(s.loads, "part", KEY_LANES, n, multiply)


def _loaded(name: str, base: str, t: str, d: str) -> str:
    """Return quad d of key or value t of the step that begins at `base`."""
    return f"{name}_quad(z, head, min({base} + {t}, end - 1u), {d})"


def _weigh(v: int, slices: Slices, keys: int) -> list[str]:
    """Return lines that add the loaded values of a slice to its softmaxes of one vector of rows."""
    each, rows_ = range(keys // slices.count), slices.rows
    cells = [(r, j) for r in range(v * rows_.width, (v + 1) * rows_.width) for j in range(slices.held)]
    lines = ["{", f"var high{v} = top{v};"]
    for i in each:
        lines.append(f"let s{i} = scores[{v * keys + i * slices.count}u + slice]; high{v} = max(high{v}, s{i});")
    lines.append(f"let fade{v} = exp(top{v} - high{v}); top{v} = high{v}; sum{v} *= fade{v};")
    lines += [f"acc{r}_{j} *= {rows_.of('fade', r)};" for r, j in cells]
    for i in each:
        lines.append(f"{{ let p{v} = exp(s{i} - high{v}); sum{v} += p{v};")
        lines += [f"acc{r}_{j} = fma(vec4<f32>({rows_.of('p', r)}), v{i}_{j}, acc{r}_{j});" for r, j in cells]
        lines.append("}")
    return [*lines, "}"]


def _weigh_one_by_one(v: int, s: Division) -> list[str]:
    """Return lines that load the values of a slice one by one and add them to its softmaxes of one vector of rows."""
    slices, rows_ = s.slices, s.rows
    lines = [
        f"for (var i = 0u; i < {s.keys // slices.count}u; i++) {{",
        f"let s{v} = scores[{v * s.keys}u + i * {slices.count}u + slice]; let high{v} = max(top{v}, s{v});",
        f"let fade{v} = exp(top{v} - high{v}); let p{v} = exp(s{v} - high{v});",
        f"top{v} = high{v}; sum{v} = sum{v} * fade{v} + p{v};",
    ]
    for j in range(slices.held):
        value = (f"v{j}", f"slice + i * {slices.count}u", slices.quad(j))
        lines += [f"var v{j} = {_loaded('v', 'base', *value[1:])};", *_renewed(s, [value])]
        for r in range(v * rows_.width, (v + 1) * rows_.width):
            lines.append(f"acc{r}_{j} = acc{r}_{j} * {rows_.of('fade', r)} + {rows_.of('p', r)} * v{j};")
    return [*lines, "}"]
