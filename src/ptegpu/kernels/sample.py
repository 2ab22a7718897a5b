"""The next token from logits: statistics, radix selection of thresholds, and a draw, by several workgroups each.

A row of logits is cut into parts of `P.span` elements, a workgroup each. `statistics` leaves per part what `choose`,
one workgroup, makes the greedy token of, or a summary for drawing:

- `select`: one digit of a radix selection. It finds the bin that the digit before ended in, counts the tokens that
  share all digits so far into new bins, and so on, until the key of the least token to keep is known. Keys order as
  values do. A bin's weight is a number of tokens (top-k) or of 2⁻³¹ parts of probability (top-p), whole numbers both,
  so that the result does not depend on the order of the workgroups.
- `draw`: the token whose logit plus Gumbel noise is largest, of those kept, is a sample of the softmax over them. The
  noise is a hash of seed, step and token.
- `finish`: the largest of the parts.

`each_row` does all of it for a row with a workgroup, by that row's own settings: for many rows at once.

`likelihood` gives the log-probability of one given token per row. Log-probabilities are those of the logits as they
came: no temperature, no penalty, nothing left out.
"""

from __future__ import annotations

from typing import Literal

from ..dtypes import DType
from ..plan.target import Target
from ..sampling import DRAW, PENALTY, SETTINGS, TOP_K, TOP_P
from ..sizes import cached
from .functions import functions
from .lanes import MAX, SUM, Lanes
from .wgsl import KernelSpec, Storage, build

Pick = Literal["none", "given", "share"]  # no digit to end, towards a remaining weight, or towards top_p of all

BINS = 2048
DIGITS = ((21, 2047, 0), (10, 2047, 0xFFE00000), (0, 1023, 0xFFFFFC00))  # shift, mask, bits of a key already settled
STATE_WORDS = 3  # after the bins, per digit: the settled bits, the weight still wanted, the least key allowed
PART_WORDS = 5  # raw top, raw sum, top, sum, token

LOWEST = "-3.4028234663852886e38"  # finite, so that -inf - top is -inf and never NaN
I32 = Storage(DType.I32)
_BEFORE = "(v > top || (v == top && i < at))"  # of equal logits the first counts


_TAMED = (  # -inf and NaN are never chosen; a zero has one key
    f"fn tamed(v: f32) -> f32 {{\n  return select({LOWEST}, select(v, 0.0, v == 0.0), !is_nan(v) && v > {LOWEST});\n}}"
)


def _setting(name: str) -> str:
    word = f"settings_at({SETTINGS.index(name)}u)"
    return f"bitcast<u32>({word})" if name in ("top_k", "seed", "step") else f"bitcast<f32>({word})"


def _lanes(target: Target) -> Lanes:
    return Lanes(target.team, target.team)


def _best(lanes: Lanes) -> str:
    """The lanes' largest `top` and its token `at` become known to all."""
    merge = (
        "let v = tops[there]; let i = places[there]; let top = tops[lid]; let at = places[lid];"
        f" if {_BEFORE} {{ tops[lid] = v; places[lid] = i; }}"
    )
    return lanes.tree("tops[lid] = top; places[lid] = at;", merge) + "\n  top = tops[0]; at = places[0];"


def _part(body: str) -> str:
    """`body` for every token `i` of this workgroup's part."""
    return (
        "  let first = part * P.span; let end = min(first + P.span, P.length);\n"
        f"  for (var i = first + lid; i < end; i += WG) {{ {body} }}"
    )


@cached(64)
def statistics(logits: DType, draws: bool, penalised: bool, target: Target) -> KernelSpec:
    """Per part: the largest logit and the sum of exponentials, as given and as changed by penalty and temperature.

    With `draws` the changed logits are written too.
    """
    lanes = _lanes(target)
    changed = "l"
    if penalised:
        seen = "((seen_at(i >> 5u) >> (i & 31u)) & 1) == 1"
        changed = f"select(l, select(l * {_setting('relief')}, l * {_setting('penalty')}, l < 0.0), {seen})"
    changed = f"({changed}) * {_setting('scale')}" if draws else changed
    put = "x_put(i, v);" if draws else ""
    body = [
        "  let lane = lid; let part = group % P.parts; let base = P.base + group / P.parts * P.length;",
        f"  var top = {LOWEST}; var raw_top = {LOWEST}; var at = 0x7fffffffu;",
        _part(
            f"let l = logits_at(base + i); let v = tamed({changed}); {put}"
            f" raw_top = max(raw_top, l); if {_BEFORE} {{ top = v; at = i; }}"
        ),
        _best(lanes),
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
    helpers = _TAMED
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
        params=[(n, "u32") for n in ("length", "span", "parts", "base")],
        workgroup=lanes.workgroup,
        shared={
            **lanes.shared("f32", "tops", "highs", "raw_sums", *(["sums"] if draws else [])),
            **lanes.shared("u32", "places"),
        },
        helpers=f"{functions(helpers)}\n{helpers}",
    )


def _raw_total(lanes: Lanes) -> str:
    """`raw_high` and `raw_total` of a row from its parts; the part of word `o` has its own of each."""
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


_WORD = "fn word(o: u32) -> f32 { return bitcast<f32>(parts_at(o)); }"


@cached(64)
def choose(logits: DType, draws: bool, target: Target) -> KernelSpec:
    """One workgroup: the greedy token with its log-probability, or, with `draws`, the summary and empty bins."""
    lanes = _lanes(target)
    body = [
        "  let lane = lid; let first = 0u;",
        f"  var top = {LOWEST}; var at = 0x7fffffffu;",
        "  for (var p = lid; p < P.parts; p += WG) {",
        f"    let v = word(p * 5u + 2u); let i = u32(parts_at(p * 5u + 4u)); if {_BEFORE} {{ top = v; at = i; }}",
        "  }",
        _best(lanes),
        _raw_total(lanes),
    ]
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
        params=[(n, "u32") for n in (("parts", "words", "wanted") if draws else ("parts", "length", "base"))],
        workgroup=lanes.workgroup,
        shared={
            **lanes.shared("f32", "tops", "highs", "raw_sums", *(["sums"] if draws else [])),
            **lanes.shared("u32", "places"),
        },
        helpers=_WORD,
    )


_KEY_OF = "fn key(v: f32) -> u32 { let b = bitcast<u32>(v); return select(b | 0x80000000u, ~b, (b >> 31u) == 1u); }"
_KEY = f"{_KEY_OF}\nfn word(w: u32) -> u32 {{ return atomicLoad(&work[w]); }}"
WORK = Storage(DType.I32, raw="atomic<u32>")


def _pick(pick: Pick, fresh: bool, lanes: Lanes) -> str:
    """Declares the state after the digit before: `settled` bits, weight `wanted`, least key `least`.

    The bin sought is the highest at which the weight from the top reaches what is wanted. Where all bins together do
    not reach it, it is bin 0, and so on to key 0: everything is kept. `fresh` begins another selection.
    """
    if pick == "none":
        return "  let settled = 0u; let wanted = word(P.old_state + 1u); let least = 0u;"
    each = BINS // lanes.workgroup
    lines = [
        "  if (lid == 0u) { found[0] = 0u; found[1] = 0u; }",
        f"  var own = 0u; let high = P.old_bins + {BINS - 1}u - lid * {each}u;",
        f"  for (var k = 0u; k < {each}u; k++) {{ own += word(high - k); }}",
        "  var upto = own;",
        "  sums[lid] = upto;",
        "  workgroupBarrier();",
    ]
    step = 1
    while step < lanes.workgroup:
        lines += [
            f"  if (lid >= {step}u) {{ upto += sums[lid - {step}u]; }}",
            "  workgroupBarrier();",
            "  sums[lid] = upto;",
            "  workgroupBarrier();",
        ]
        step *= 2
    share = f"max(1u, u32(f32(sums[{lanes.workgroup - 1}]) * {_setting('top_p')}))"
    lines += [
        f"  let target_weight = {share if pick == 'share' else 'word(P.old_state + 1u)'};",
        "  if (upto - own < target_weight && target_weight <= upto) {",
        "    var above = upto - own; var k = 0u;",
        "    while (above + word(high - k) < target_weight) { above += word(high - k); k++; }",
        "    found[0] = high - k - P.old_bins; found[1] = above;",
        "  }",
        "  workgroupBarrier();",
        "  let picked = word(P.old_state) | (found[0] << P.old_shift);",
    ]
    if fresh:
        lines.append("  let settled = 0u; let wanted = 0u; let least = picked;")
    else:
        lines.append(
            "  let settled = picked; let wanted = target_weight - found[1]; let least = word(P.old_state + 2u);"
        )
    return "\n".join(lines)


_STATE = [(n, "u32") for n in ("length", "span", "old_bins", "old_state", "old_shift")]


@cached(64)
def select(pick: Pick, fresh: bool, mass: bool, target: Target) -> KernelSpec:
    """Ends the digit before, as `pick` says, and fills the bins of the next with tokens, or with probability `mass`."""
    lanes, apart = _lanes(target), not target.software  # a workgroup has bins of its own, where many add at once
    weight = "u32(exp(v - summary_at(1u)) * unit + 0.5)" if mass else "1u"
    body = [
        "  let lane = lid; let part = group;",
        f"  for (var b = lid; b < {BINS}u; b += WG) {{ atomicStore(&bins[b], 0u); }}" if apart else "",
        _pick(pick, fresh, lanes),
        "  workgroupBarrier();",
        "  let unit = 2147483648.0 / summary_at(2u);" if mass else "",
        _part(
            "let v = x_at(i); let k = key(v);"
            " if ((k & P.settled_bits) == settled && k >= least)"
            f" {{ atomicAdd(&{'bins[' if apart else 'work[P.bins + '}((k >> P.shift) & P.mask)], {weight}); }}"
        ),
        "  workgroupBarrier();" if apart else "",
        f"  for (var b = lid; b < {BINS}u; b += WG) {{ let w = atomicLoad(&bins[b]);" if apart else "",
        "    if (w != 0u) { atomicAdd(&work[P.bins + b], w); } }" if apart else "",
        "  if (group == 0u && lid == 0u) { atomicStore(&work[P.state], settled);",
        "    atomicStore(&work[P.state + 1u], wanted); atomicStore(&work[P.state + 2u], least); }",
    ]
    reads = {"x": Storage(DType.F32)}
    if mass:
        reads["summary"] = Storage(DType.F32)
    if pick == "share":
        reads["settings"] = I32
    return build(
        "sample_select",
        "\n".join(body),
        target=target,
        reads=reads,
        writes={"work": WORK},
        params=[*_STATE, *((n, "u32") for n in ("bins", "state", "shift", "mask", "settled_bits"))],
        workgroup=lanes.workgroup,
        shared=({"bins": ("atomic<u32>", BINS)} if apart else {})
        | {"sums": ("u32", lanes.workgroup), "found": ("u32", 2)},
        helpers=_KEY,
    )


_NOISE = """\
fn mixed(n: u32) -> u32 {
  var h = n; h ^= h >> 16u; h *= 0x7feb352du; h ^= h >> 15u; h *= 0x846ca68bu; h ^= h >> 16u;
  return h;
}
fn noise(h: u32) -> f32 { return -log(-log1p(-min((f32(h) + 0.5) * 2.3283064365386963e-10, 0.99999994))); }"""


@cached(64)
def draw(selects: bool, target: Target) -> KernelSpec:
    """Per part: the token kept whose changed logit plus noise is largest."""
    lanes = _lanes(target)
    helpers = f"{functions(_NOISE)}\n{_NOISE}"
    body = [
        "  let lane = lid; let part = group;",
        _pick("given", True, lanes) if selects else "  let least = 0u;",
        f"  let low = summary_at(1u) + {_setting('floor')};",
        f"  let seed = mixed({_setting('seed')} ^ mixed({_setting('step')} + 0x9e3779b9u));",
        "  let salt = mixed(seed + 1u);",
        f"  var top = {LOWEST}; var at = 0x7fffffffu;",
        _part(
            "let x = x_at(i);"
            + (" if (x >= low && key(x) >= least) {" if selects else " if (x >= low) {")
            + f" let v = x + noise(mixed(mixed(i ^ seed) + salt)); if {_BEFORE} {{ top = v; at = i; }} }}"
        ),
        _best(lanes),
        "  if (lid == 0u) { parts_put(group * 2u, bitcast<i32>(top)); parts_put(group * 2u + 1u, i32(at)); }",
    ]
    return build(
        "sample_draw",
        "\n".join(body),
        target=target,
        reads={"x": Storage(DType.F32), "summary": Storage(DType.F32), "settings": I32},
        writes={**({"work": WORK} if selects else {}), "parts": I32},
        params=_STATE if selects else _STATE[:2],
        workgroup=lanes.workgroup,
        shared={
            **lanes.shared("f32", "tops"),
            **lanes.shared("u32", "places"),
            **({"sums": ("u32", lanes.workgroup), "found": ("u32", 2)} if selects else {}),
        },
        helpers=f"{_KEY if selects else ''}\n{helpers}",
    )


@cached(64)
def finish(logits: DType, target: Target) -> KernelSpec:
    """One workgroup: the token of the parts that `draw` left, with its log-probability."""
    lanes = _lanes(target)
    body = [
        "  let lane = lid;",
        f"  var top = {LOWEST}; var at = 0x7fffffffu;",
        "  for (var p = lid; p < P.parts; p += WG) {",
        f"    let v = word(p * 2u); let i = u32(parts_at(p * 2u + 1u)); if {_BEFORE} {{ top = v; at = i; }}",
        "  }",
        _best(lanes),
        "  let token = min(at, P.length - 1u);",
        "  if (lid == 0u) { token_put(0u, i32(token)); logprob_put(0u, logits_at(P.base + token) - summary_at(0u)); }",
    ]
    return build(
        "sample_finish",
        "\n".join(body),
        target=target,
        reads={"parts": I32, "logits": Storage(logits), "summary": Storage(DType.F32)},
        writes={"token": I32, "logprob": Storage(DType.F32)},
        params=[(n, "u32") for n in ("parts", "length", "base")],
        workgroup=lanes.workgroup,
        shared={**lanes.shared("f32", "tops"), **lanes.shared("u32", "places")},
        helpers=_WORD,
    )


@cached(64)
def each_row(logits: DType, target: Target) -> KernelSpec:
    """A workgroup per row of logits: its token and log-probability, by its own settings and its own tokens seen."""
    room = (target.max_shared_bytes - 4 * BINS - 8) // 24  # invocations that it is enough for
    workgroup = target.team if target.software else max(target.team, target.workgroup(min(1024, room)))
    lanes = Lanes(workgroup, workgroup)
    each = BINS // workgroup

    def setting(name: str) -> str:
        return _setting(name).replace("settings_at(", "settings_at(mine + ")

    walk = "for (var i = lid; i < P.length; i += WG)"
    scan = ["  var upto = own;", "  sums[lid] = upto;", "  workgroupBarrier();"]
    step = 1
    while step < workgroup:
        scan += [
            f"  if (lid >= {step}u) {{ upto += sums[lid - {step}u]; }}",
            "  workgroupBarrier();",
            "  sums[lid] = upto;",
            "  workgroupBarrier();",
        ]
        step *= 2
    body = [
        f"  let lane = lid; let base = group * P.length; let mine = group * {len(SETTINGS) + 1}u;",
        f"  let how = u32(settings_at(mine + {len(SETTINGS)}u)); let draws = (how & {DRAW}u) != 0u;",
        f"  let scale = select(1.0, {setting('scale')}, draws);",
        f"  let relief = {setting('relief')}; let penalty = {setting('penalty')};",
        f"  let penalised = (how & {PENALTY}u) != 0u; let marks = group * P.words;",
        f"  var top = {LOWEST}; var raw_top = {LOWEST}; var at = 0x7fffffffu;",
        f"  {walk} {{ let l = logits_at(base + i); let v = changed(l, i, marks, penalised, relief, penalty, scale);",
        f"    raw_top = max(raw_top, l); if {_BEFORE} {{ top = v; at = i; }} }}",
        _best(lanes),
        lanes.agree("raw_high", "raw_top", MAX, "highs"),
        "  var sum = 0.0; var raw_sum = 0.0;",
        f"  {walk} {{ let l = logits_at(base + i); raw_sum += exp(l - raw_high);",
        "    sum += exp(changed(l, i, marks, penalised, relief, penalty, scale) - top); }",
        lanes.agree("raw_total", "raw_sum", SUM, "raw_sums"),
        lanes.agree("total", "sum", SUM, "totals"),
        "  let unit = 2147483648.0 / total; var least = 0u; let highest = top;",
        "  for (var selection = 0u; selection < 2u; selection++) {",
        f"    let wants = select({TOP_P}u, {TOP_K}u, selection == 0u); let mass = selection == 1u;",
        "    if (draws && (how & wants) != 0u) {",
        f"      var settled = 0u; var wanted = {setting('top_k')};",
        "      for (var digit = 0u; digit < 3u; digit++) {",
        "        let shift = select(select(0u, 10u, digit == 1u), 21u, digit == 0u);",
        "        let mask = select(2047u, 1023u, digit == 2u);",
        "        let known = select(select(0xFFFFFC00u, 0xFFE00000u, digit == 1u), 0u, digit == 0u);",
        f"        for (var b = lid; b < {BINS}u; b += WG) {{ atomicStore(&bins[b], 0u); }}",
        "        if (lid == 0u) { found[0] = 0u; found[1] = 0u; }",
        "        workgroupBarrier();",
        f"        {walk} {{",
        "          let v = changed(logits_at(base + i), i, marks, penalised, relief, penalty, scale); let k = key(v);",
        "          if ((k & known) == settled && k >= least) {",
        "            let weight = select(1u, u32(exp(v - highest) * unit + 0.5), mass);",
        "            atomicAdd(&bins[(k >> shift) & mask], weight);",
        "          }",
        "        }",
        "        workgroupBarrier();",
        f"        var own = 0u; let high = {BINS - 1}u - lid * {each}u;",
        f"        for (var k = 0u; k < {each}u; k++) {{ own += atomicLoad(&bins[high - k]); }}",
        *(f"      {line}" for line in scan),
        f"        let all_of_it = sums[{workgroup - 1}];",
        "        if (mass && digit == 0u) {",
        f"          wanted = max(1u, u32(f32(all_of_it) * {setting('top_p')}));",
        "        }",
        "        if (upto - own < wanted && wanted <= upto) {",
        "          var above = upto - own; var k = 0u;",
        "          while (above + atomicLoad(&bins[high - k]) < wanted) { above += atomicLoad(&bins[high - k]); k++; }",
        "          found[0] = high - k; found[1] = above;",
        "        }",
        "        workgroupBarrier();",
        "        settled |= found[0] << shift; wanted -= found[1];",
        "        workgroupBarrier();",
        "      }",
        "      least = settled;",
        "    }",
        "  }",
        "  if (draws) {",
        f"    let low = highest + {setting('floor')};",
        f"    let seed = mixed({setting('seed')} ^ mixed({setting('step')} + 0x9e3779b9u));",
        "    let salt = mixed(seed + 1u);",
        f"    top = {LOWEST}; at = 0x7fffffffu;",
        f"    {walk} {{ let x = changed(logits_at(base + i), i, marks, penalised, relief, penalty, scale);",
        "      if (x >= low && key(x) >= least) {",
        f"        let v = x + noise(mixed(mixed(i ^ seed) + salt)); if {_BEFORE} {{ top = v; at = i; }}",
        "      } }",
        _best(lanes),
        "  }",
        "  let token = min(at, P.length - 1u);",
        "  if (lid == 0u) { token_put(group, i32(token));",
        "    logprob_put(group, logits_at(base + token) - raw_high - log(raw_total)); }",
    ]
    changed = (
        "fn changed(l: f32, i: u32, marks: u32, penalised: bool, relief: f32, penalty: f32, scale: f32) -> f32 {\n"
        "  var v = l;\n"
        "  if (penalised && ((seen_at(marks + (i >> 5u)) >> (i & 31u)) & 1) == 1) {\n"
        "    v = select(v * relief, v * penalty, v < 0.0);\n  }\n"
        "  return tamed(v * scale);\n}"
    )
    helpers = f"{_TAMED}\n{changed}\n{_KEY_OF}\n{_NOISE}"
    return build(
        "sample_rows",
        "\n".join(body),
        target=target,
        reads={"logits": Storage(logits), "settings": I32, "seen": I32},
        writes={"token": I32, "logprob": Storage(DType.F32)},
        params=[("length", "u32"), ("words", "u32")],
        workgroup=workgroup,
        shared={
            **lanes.shared("f32", "tops", "highs", "raw_sums", "totals"),
            **lanes.shared("u32", "places"),
            "bins": ("atomic<u32>", BINS),
            "sums": ("u32", workgroup),
            "found": ("u32", 2),
        },
        helpers=f"{functions(helpers)}\n{helpers}",
    )


@cached(64)
def likelihood(logits: DType, target: Target) -> KernelSpec:
    """One workgroup per row: the log-probability of the row's given token, from the row's statistics."""
    lanes = _lanes(target)
    body = [
        "  let lane = lid; let first = group * P.parts;",
        _raw_total(lanes),
        "  if (lid == 0u) { let token = min(u32(tokens_at(group)), P.length - 1u);",
        "    y_put(group, logits_at(group * P.length + token) - raw_high - log(raw_total)); }",
    ]
    return build(
        "sample_likelihood",
        "\n".join(body),
        target=target,
        reads={"parts": I32, "logits": Storage(logits), "tokens": I32},
        writes={"y": Storage(DType.F32)},
        params=[("parts", "u32"), ("length", "u32")],
        workgroup=lanes.workgroup,
        shared=lanes.shared("f32", "highs", "raw_sums"),
        helpers=_WORD,
    )
