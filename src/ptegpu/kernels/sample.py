"""The next token from logits: statistics, radix selection of thresholds, and a draw, by several workgroups each.

A row of logits is split into parts of `P.span` elements, with a workgroup each. `statistics` summarises the parts, and
`choose`, a single workgroup, computes the greedy token from them, or a summary for drawing:

- `sample_selection.select` computes one digit of a radix selection. It finds the bin in which the digit before ended,
  counts the tokens that share all digits so far into new bins, and so on, until it knows the key of the least token to
  keep. Keys have the order of values. The weight of a bin is a number of tokens (top-k), or of 2⁻³¹ parts of
  probability (top-p); both are integers, so that the result does not depend on the order of the workgroups.
- `sample_selection.draw` finds the token with the largest sum of logit and Gumbel noise among the remaining ones, which
  is a sample of their softmax. The noise is a hash of seed, step and token.
- `finish` takes the largest of the parts.

Rows of many sequences have settings of their own: `sample_selection.row_parts` computes the statistics of their parts,
and `each_row` does the rest with a workgroup per row.

`likelihood` computes the log-probability of a token per row. Log-probabilities are those of the original logits,
without temperature, penalty or selection.
"""

from __future__ import annotations

from ..dtypes import DType
from ..plan.target import Target
from ..sampling import SETTINGS
from ..sizes import cached
from .functions import functions
from .lanes import MAX, SUM, Lanes
from .wgsl import I32, LOWEST, KernelSpec, Storage, build, u32s

PART_WORDS = 5  # raw top, raw sum, top, sum, token
BEFORE = "(v > top || (v == top && i < at))"  # the first one of equal logits wins
TAMED = (  # -inf and NaN are never chosen; zeros have one key
    f"fn tamed(v: f32) -> f32 {{\n  return select({LOWEST}, select(v, 0.0, v == 0.0), !is_nan(v) && v > {LOWEST});\n}}"
)


def setting(name: str, first: str = "") -> str:
    """Return the value of a setting; the settings begin at `first`."""
    word = f"settings_at({first}{SETTINGS.index(name)}u)"
    return f"bitcast<u32>({word})" if name in ("top_k", "seed", "step") else f"bitcast<f32>({word})"


def lanes_of(target: Target) -> Lanes:
    return Lanes(target.team, target.team)


def best(lanes: Lanes) -> str:
    """Return lines that set `top` and its token `at` to the largest of all lanes."""
    merge = (
        "let v = tops[there]; let i = places[there]; let top = tops[lid]; let at = places[lid];"
        f" if {BEFORE} {{ tops[lid] = v; places[lid] = i; }}"
    )
    return lanes.tree("tops[lid] = top; places[lid] = at;", merge) + "\n  top = tops[0]; at = places[0];"


def best_memory(lanes: Lanes, *more: str) -> dict[str, tuple[str, int]]:
    """Return the workgroup arrays of `best` and of further agreements on f32."""
    return lanes.shared("f32", "tops", *more) | lanes.shared("u32", "places")


def best_of_parts(lanes: Lanes, value: str, token: str) -> str:
    """Return lines that find `top` and `at` among the parts p, whose words are at `value` and `token`."""
    lines = [
        f"  var top = {LOWEST}; var at = 0x7fffffffu;",
        "  for (var p = lid; p < P.parts; p += WG) {",
        f"    let v = word({value}); let i = u32(parts_at({token})); if {BEFORE} {{ top = v; at = i; }}",
        "  }",
        best(lanes),
    ]
    return "\n".join(lines)


def part_loop(body: str) -> str:
    """Return a loop of `body` over every token `i` of this workgroup's part."""
    return (
        "  let first = part * P.span; let end = min(first + P.span, P.length);\n"
        f"  for (var i = first + lid; i < end; i += WG) {{ {body} }}"
    )


@cached(64)
def statistics(logits: DType, draws: bool, penalised: bool, target: Target) -> KernelSpec:
    """Compute per part the largest logit and the sum of exponentials, before and after penalty and temperature.

    With `draws`, it also writes the changed logits.
    """
    lanes = lanes_of(target)
    changed = "l"
    if penalised:
        is_seen = "((seen_at(i >> 5u) >> (i & 31u)) & 1) == 1"
        changed = f"select(l, select(l * {setting('relief')}, l * {setting('penalty')}, l < 0.0), {is_seen})"
    changed = f"({changed}) * {setting('scale')}" if draws else changed
    put = "x_put(i, v);" if draws else ""
    body = [
        "  let lane = lid; let part = group % P.parts; let base = P.base + group / P.parts * P.length;",
        f"  var top = {LOWEST}; var raw_top = {LOWEST}; var at = 0x7fffffffu;",
        part_loop(
            f"let l = logits_at(base + i); let v = tamed({changed}); {put}"
            f" raw_top = max(raw_top, l); if {BEFORE} {{ top = v; at = i; }}"
        ),
        best(lanes),
        lanes.agree("raw_high", "raw_top", MAX, "highs"),
        "  var sum = 0.0; var raw_sum = 0.0;",
        "  for (var i = first + lid; i < end; i += WG) {",
        "    raw_sum += exp(logits_at(base + i) - raw_high);",
        "    sum += exp(x_at(i) - top);" if draws else "",
        "  }",
        lanes.agree("raw_total", "raw_sum", SUM, "raw_sums"),
        lanes.agree("total", "sum", SUM, "sums") if draws else "  let total = 0.0;",
        f"  if (lid == 0u) {{ let o = group * {PART_WORDS}u;",
        "    parts_put(o, bitcast<i32>(raw_high)); parts_put(o + 1u, bitcast<i32>(raw_total));",
        "    parts_put(o + 2u, bitcast<i32>(top)); parts_put(o + 3u, bitcast<i32>(total));",
        "    parts_put(o + 4u, i32(at)); }",
    ]
    return build(
        "sample_statistics",
        "\n".join(body),
        target=target,
        reads={
            "logits": Storage(logits),
            **({"settings": I32} if draws or penalised else {}),
            **({"seen": I32} if penalised else {}),
        },
        writes={**({"x": Storage(DType.F32)} if draws else {}), "parts": I32},
        params=u32s("length", "span", "parts", "base"),
        workgroup=lanes.workgroup,
        shared=best_memory(lanes, "highs", "raw_sums", *(["sums"] if draws else [])),
        helpers=f"{functions(TAMED)}\n{TAMED}",
    )


def raw_total(lanes: Lanes) -> str:
    """Return lines that declare `raw_high` and `raw_total` of a row, from those of its parts."""
    return "\n".join(
        [
            f"  var raw_top = {LOWEST};",
            "  for (var p = lid; p < P.parts; p += WG) { raw_top = max(raw_top, word((first + p) * 5u)); }",
            lanes.agree("raw_high", "raw_top", MAX, "highs"),
            "  var raw_sum = 0.0;",
            "  for (var p = lid; p < P.parts; p += WG) { let o = (first + p) * 5u;",
            "    raw_sum += word(o + 1u) * exp(word(o) - raw_high); }",
            lanes.agree("raw_total", "raw_sum", SUM, "raw_sums"),
        ]
    )


WORD = "fn word(o: u32) -> f32 { return bitcast<f32>(parts_at(o)); }"


@cached(64)
def choose(logits: DType, draws: bool, target: Target) -> KernelSpec:
    """Compute, in one workgroup, the greedy token and its log-probability; with `draws`, a summary and empty bins."""
    lanes = lanes_of(target)
    body = ["  let lane = lid; let first = 0u;", best_of_parts(lanes, "p * 5u + 2u", "p * 5u + 4u"), raw_total(lanes)]
    if draws:
        body += [
            "  var sum = 0.0;",
            "  for (var p = lid; p < P.parts; p += WG) { let o = p * 5u;",
            "    sum += word(o + 3u) * exp(word(o + 2u) - top); }",
            lanes.agree("total", "sum", SUM, "sums"),
            f"  let top_k = settings_at({SETTINGS.index('top_k')}u);",
            "  for (var w = lid; w < P.words; w += WG) { work_put(w, select(0, top_k, w == P.wanted)); }",
            "  if (lid == 0u) {",
            "    summary_put(0u, raw_high + log(raw_total)); summary_put(1u, top); summary_put(2u, total);",
            "  }",
        ]
    else:
        body += [
            "  let token = min(at, P.length - 1u);",
            "  if (lid == 0u) { token_put(0u, i32(token));",
            "    logprob_put(0u, logits_at(P.base + token) - raw_high - log(raw_total)); }",
        ]
    return build(
        "sample_summary" if draws else "sample_greedy",
        "\n".join(body),
        target=target,
        reads={"parts": I32, **({"settings": I32} if draws else {"logits": Storage(logits)})},
        writes={"work": I32, "summary": Storage(DType.F32)} if draws else {"token": I32, "logprob": Storage(DType.F32)},
        params=u32s(*(("parts", "words", "wanted") if draws else ("parts", "length", "base"))),
        workgroup=lanes.workgroup,
        shared=best_memory(lanes, "highs", "raw_sums", *(["sums"] if draws else [])),
        helpers=WORD,
    )


@cached(64)
def finish(logits: DType, target: Target) -> KernelSpec:
    """Compute, in one workgroup, the token and its log-probability from the parts of `draw`."""
    lanes = lanes_of(target)
    body = [
        "  let lane = lid;",
        best_of_parts(lanes, "p * 2u", "p * 2u + 1u"),
        "  let token = min(at, P.length - 1u);",
        "  if (lid == 0u) { token_put(0u, i32(token)); logprob_put(0u, logits_at(P.base + token) - summary_at(0u)); }",
    ]
    return build(
        "sample_finish",
        "\n".join(body),
        target=target,
        reads={"parts": I32, "logits": Storage(logits), "summary": Storage(DType.F32)},
        writes={"token": I32, "logprob": Storage(DType.F32)},
        params=u32s("parts", "length", "base"),
        workgroup=lanes.workgroup,
        shared=best_memory(lanes),
        helpers=WORD,
    )


@cached(64)
def likelihood(logits: DType, target: Target) -> KernelSpec:
    """Compute the log-probability of each row's token from the row's statistics, with a workgroup per row."""
    lanes = lanes_of(target)
    body = [
        "  let lane = lid; let first = group * P.parts;",
        raw_total(lanes),
        "  if (lid == 0u) { let token = min(u32(tokens_at(group)), P.length - 1u);",
        "    y_put(group, logits_at(group * P.length + token) - raw_high - log(raw_total)); }",
    ]
    return build(
        "sample_likelihood",
        "\n".join(body),
        target=target,
        reads={"parts": I32, "logits": Storage(logits), "tokens": I32},
        writes={"y": Storage(DType.F32)},
        params=u32s("parts", "length"),
        workgroup=lanes.workgroup,
        shared=lanes.shared("f32", "highs", "raw_sums"),
        helpers=WORD,
    )
