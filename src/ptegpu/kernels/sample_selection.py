"""Radix selection of the least logit to keep, and a draw among the remaining tokens.

Several workgroups compute each digit and the draw for one row; of many rows, each has one workgroup in `each_row`.
"""

from __future__ import annotations

from typing import Literal

from ..dtypes import DType
from ..plan.target import Target
from ..sampling import DRAW, PENALTY, SETTINGS, TOP_K, TOP_P
from ..sizes import cached
from .functions import functions
from .lanes import MAX, SUM, Lanes
from .sample import (
    BEFORE,
    PART_WORDS,
    TAMED,
    WORD,
    best,
    best_memory,
    best_of_parts,
    lanes_of,
    part_loop,
    raw_total,
    setting,
)
from .wgsl import I32, LOWEST, KernelSpec, Storage, build, u32s

Pick = Literal["none", "given", "share"]  # end of the digit before: none, at a remaining weight, or at top_p of all
BINS = 2048
DIGITS = ((21, 2047, 0), (10, 2047, 0xFFE00000), (0, 1023, 0xFFFFFC00))  # shift, mask, settled bits of a key
STATE_WORDS = 3  # per digit, after the bins: the settled bits, the remaining weight, the least key allowed
KEY_OF = "fn key(v: f32) -> u32 { let b = bitcast<u32>(v); return select(b | 0x80000000u, ~b, (b >> 31u) == 1u); }"
_KEY = f"{KEY_OF}\nfn word(w: u32) -> u32 {{ return atomicLoad(&work[w]); }}"
WORK = Storage(DType.I32, raw="atomic<u32>")


def scanned(workgroup: int) -> list[str]:
    """Return lines that compute `upto`, the inclusive prefix sum of the invocations' `own`, and store it in `sums`."""
    lines = ["  var upto = own;", "  sums[lid] = upto;", "  workgroupBarrier();"]
    step = 1
    while step < workgroup:
        lines += [
            f"  if (lid >= {step}u) {{ upto += sums[lid - {step}u]; }}",
            "  workgroupBarrier();",
            "  sums[lid] = upto;",
            "  workgroupBarrier();",
        ]
        step *= 2
    return lines


def _pick(pick: Pick, fresh: bool, lanes: Lanes) -> str:
    """Return lines that declare the state after the digit before: `settled` bits, weight `wanted`, least key `least`.

    That digit ends in the highest bin at which the weight from the top reaches the target. If all bins do not reach it,
    it ends in bin 0, and so on down to key 0, which keeps all tokens. `fresh` begins another selection.
    """
    if pick == "none":
        return "  let settled = 0u; let wanted = word(P.old_state + 1u); let least = 0u;"
    each = BINS // lanes.workgroup
    lines = [
        "  if (lid == 0u) { found[0] = 0u; found[1] = 0u; }",
        f"  var own = 0u; let high = P.old_bins + {BINS - 1}u - lid * {each}u;",
        f"  for (var k = 0u; k < {each}u; k++) {{ own += word(high - k); }}",
        *scanned(lanes.workgroup),
    ]
    share = f"max(1u, u32(f32(sums[{lanes.workgroup - 1}]) * {setting('top_p')}))"
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


_STATE = u32s("length", "span", "old_bins", "old_state", "old_shift")


@cached(64)
def select(pick: Pick, fresh: bool, mass: bool, target: Target) -> KernelSpec:
    """End the digit before as `pick` says, and count tokens, or probability if `mass`, into the bins of the next."""
    lanes, local = lanes_of(target), not target.software  # bins per workgroup, where many workgroups add at once
    weight = "u32(exp(v - summary_at(1u)) * unit + 0.5)" if mass else "1u"
    body = [
        "  let lane = lid; let part = group;",
        f"  for (var b = lid; b < {BINS}u; b += WG) {{ atomicStore(&bins[b], 0u); }}" if local else "",
        _pick(pick, fresh, lanes),
        "  workgroupBarrier();",
        "  let unit = 2147483648.0 / summary_at(2u);" if mass else "",
        part_loop(
            "let v = x_at(i); let k = key(v);"
            " if ((k & P.settled_bits) == settled && k >= least)"
            f" {{ atomicAdd(&{'bins[' if local else 'work[P.bins + '}((k >> P.shift) & P.mask)], {weight}); }}"
        ),
        "  workgroupBarrier();" if local else "",
        f"  for (var b = lid; b < {BINS}u; b += WG) {{ let w = atomicLoad(&bins[b]);" if local else "",
        "    if (w != 0u) { atomicAdd(&work[P.bins + b], w); } }" if local else "",
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
        params=[*_STATE, *u32s("bins", "state", "shift", "mask", "settled_bits")],
        workgroup=lanes.workgroup,
        shared=({"bins": ("atomic<u32>", BINS)} if local else {})
        | {"sums": ("u32", lanes.workgroup), "found": ("u32", 2)},
        helpers=_KEY,
    )


NOISE = """\
fn mixed(n: u32) -> u32 {
  var h = n; h ^= h >> 16u; h *= 0x7feb352du; h ^= h >> 15u; h *= 0x846ca68bu; h ^= h >> 16u;
  return h;
}
fn noise(h: u32) -> f32 { return -log(-log1p(-min((f32(h) + 0.5) * 2.3283064365386963e-10, 0.99999994))); }"""


def seeded(first: str = "") -> list[str]:
    """Return lines that declare the `seed` and `salt` of the noise; the settings begin at `first`."""
    return [
        f"  let seed = mixed({setting('seed', first)} ^ mixed({setting('step', first)} + 0x9e3779b9u));",
        "  let salt = mixed(seed + 1u);",
    ]


@cached(64)
def draw(selects: bool, target: Target) -> KernelSpec:
    """Find the remaining token with the largest sum of changed logit and noise in each part."""
    lanes = lanes_of(target)
    helpers = f"{functions(NOISE)}\n{NOISE}"
    body = [
        "  let lane = lid; let part = group;",
        _pick("given", True, lanes) if selects else "  let least = 0u;",
        f"  let low = summary_at(1u) + {setting('floor')};",
        *seeded(),
        f"  var top = {LOWEST}; var at = 0x7fffffffu;",
        part_loop(
            "let x = x_at(i);"
            + (" if (x >= low && key(x) >= least) {" if selects else " if (x >= low) {")
            + f" let v = x + noise(mixed(mixed(i ^ seed) + salt)); if {BEFORE} {{ top = v; at = i; }} }}"
        ),
        best(lanes),
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
        shared={**best_memory(lanes), **({"sums": ("u32", lanes.workgroup), "found": ("u32", 2)} if selects else {})},
        helpers=f"{_KEY if selects else ''}\n{helpers}",
    )


ROW_WORDS = len(SETTINGS) + 2  # settings, flags, and the sequence that the token is kept for
_CHANGED = "changed(l, i, marks, penalised, relief, penalty, scale)"
_CHANGE = (
    TAMED
    + """
fn changed(l: f32, i: u32, marks: u32, penalised: bool, relief: f32, penalty: f32, scale: f32) -> f32 {
  var v = l;
  if (penalised && ((seen_at(marks + (i >> 5u)) >> (i & 31u)) & 1) == 1) {
    v = select(v * relief, v * penalty, v < 0.0);
  }
  return tamed(v * scale);
}"""
)
_ROW = f"""  let how = u32(settings_at(mine + {len(SETTINGS)}u)); let draws = (how & {DRAW}u) != 0u;
  let scale = select(1.0, {setting("scale", "mine + ")}, draws);
  let relief = {setting("relief", "mine + ")}; let penalty = {setting("penalty", "mine + ")};
  let penalised = (how & {PENALTY}u) != 0u;"""


@cached(64)
def row_parts(logits: DType, target: Target) -> KernelSpec:
    """Compute the statistics of each part of each row of logits, changed by the row's settings."""
    lanes = lanes_of(target)
    body = [
        "  let lane = lid; let part = group % P.parts; let own = group / P.parts; let base = own * P.length;",
        f"  let mine = own * {ROW_WORDS}u; let marks = own * P.words;",
        _ROW,
        f"  var top = {LOWEST}; var raw_top = {LOWEST}; var at = 0x7fffffffu;",
        part_loop(
            f"let l = logits_at(base + i); let v = {_CHANGED};"
            f" raw_top = max(raw_top, l); if {BEFORE} {{ top = v; at = i; }}"
        ),
        best(lanes),
        lanes.agree("raw_high", "raw_top", MAX, "highs"),
        "  var sum = 0.0; var raw_sum = 0.0;",
        "  for (var i = first + lid; i < end; i += WG) {",
        "    let l = logits_at(base + i); raw_sum += exp(l - raw_high);",
        f"    if (draws) {{ sum += exp({_CHANGED} - top); }}",
        "  }",
        lanes.agree("raw_total", "raw_sum", SUM, "raw_sums"),
        lanes.agree("total", "sum", SUM, "sums"),
        f"  if (lid == 0u) {{ let o = group * {PART_WORDS}u;",
        "    parts_put(o, bitcast<i32>(raw_high)); parts_put(o + 1u, bitcast<i32>(raw_total));",
        "    parts_put(o + 2u, bitcast<i32>(top)); parts_put(o + 3u, bitcast<i32>(total));",
        "    parts_put(o + 4u, i32(at)); }",
    ]
    return build(
        "sample_parts",
        "\n".join(body),
        target=target,
        reads={"logits": Storage(logits), "settings": I32, "seen": I32},
        writes={"parts": I32},
        params=u32s("length", "span", "parts", "words"),
        workgroup=lanes.workgroup,
        shared=best_memory(lanes, "highs", "raw_sums", "sums"),
        helpers=f"{functions(_CHANGE)}\n{_CHANGE}",
    )


@cached(64)
def each_row(logits: DType, keeps: bool, target: Target) -> KernelSpec:
    """Compute the token and log-probability of each row of logits from its parts; it may keep it for its sequence."""
    room = (target.max_shared_bytes - 4 * BINS - 8) // 24  # maximum invocations
    workgroup = target.team if target.software else max(target.team, target.workgroup(min(1024, room)))
    lanes = Lanes(workgroup, workgroup)
    each, mine = BINS // workgroup, "mine + "
    words = [f"(first + p) * {PART_WORDS}u + {k}u" for k in range(PART_WORDS)]
    walk = "for (var i = lid; i < P.length; i += WG)"
    body = [
        f"  let lane = lid; let base = group * P.length; let mine = group * {ROW_WORDS}u; let marks = group * P.words;",
        "  let first = group * P.parts;",
        _ROW,
        best_of_parts(lanes, words[2], words[4]),
        raw_total(lanes),
        "  var sum = 0.0;",
        f"  for (var p = lid; p < P.parts; p += WG) {{ sum += word({words[3]}) * exp(word({words[2]}) - top); }}",
        lanes.agree("total", "sum", SUM, "totals"),
        "  let unit = 2147483648.0 / total; var least = 0u; let highest = top;",
        "  for (var selection = 0u; selection < 2u; selection++) {",
        f"    let wants = select({TOP_P}u, {TOP_K}u, selection == 0u); let mass = selection == 1u;",
        "    if (draws && (how & wants) != 0u) {",
        f"      var settled = 0u; var wanted = {setting('top_k', mine)};",
        "      for (var digit = 0u; digit < 3u; digit++) {",
        "        let shift = select(select(0u, 10u, digit == 1u), 21u, digit == 0u);",
        "        let mask = select(2047u, 1023u, digit == 2u);",
        "        let known = select(select(0xFFFFFC00u, 0xFFE00000u, digit == 1u), 0u, digit == 0u);",
        f"        for (var b = lid; b < {BINS}u; b += WG) {{ atomicStore(&bins[b], 0u); }}",
        "        if (lid == 0u) { found[0] = 0u; found[1] = 0u; }",
        "        workgroupBarrier();",
        f"        {walk} {{",
        f"          let l = logits_at(base + i); let v = {_CHANGED}; let k = key(v);",
        "          if ((k & known) == settled && k >= least) {",
        "            let weight = select(1u, u32(exp(v - highest) * unit + 0.5), mass);",
        "            atomicAdd(&bins[(k >> shift) & mask], weight);",
        "          }",
        "        }",
        "        workgroupBarrier();",
        f"        var own = 0u; let high = {BINS - 1}u - lid * {each}u;",
        f"        for (var k = 0u; k < {each}u; k++) {{ own += atomicLoad(&bins[high - k]); }}",
        *(f"      {line}" for line in scanned(workgroup)),
        f"        let all_of_it = sums[{workgroup - 1}];",
        "        if (mass && digit == 0u) {",
        f"          wanted = max(1u, u32(f32(all_of_it) * {setting('top_p', mine)}));",
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
        f"    let low = highest + {setting('floor', mine)};",
        *(f"  {line}" for line in seeded(mine)),
        f"    top = {LOWEST}; at = 0x7fffffffu;",
        f"    {walk} {{ let l = logits_at(base + i); let x = {_CHANGED};",
        "      if (x >= low && key(x) >= least) {",
        f"        let v = x + noise(mixed(mixed(i ^ seed) + salt)); if {BEFORE} {{ top = v; at = i; }}",
        "      } }",
        best(lanes),
        "  }",
        "  let token = min(at, P.length - 1u);",
        "  if (lid == 0u) { token_put(group, i32(token));",
        "    logprob_put(group, logits_at(base + token) - raw_high - log(raw_total));",
        *(
            [
                f"    let sequence = settings_at(mine + {len(SETTINGS) + 1}u);",
                "    if (u32(sequence) < P.sequences) { latest_put(u32(sequence), i32(token)); } }",
            ]
            if keeps
            else ["  }"]
        ),
    ]
    helpers = f"{_CHANGE}\n{KEY_OF}\n{NOISE}\n{WORD}"
    return build(
        "sample_rows",
        "\n".join(body),
        target=target,
        reads={"logits": Storage(logits), "settings": I32, "seen": I32, "parts": I32},
        writes={"token": I32, "logprob": Storage(DType.F32), **({"latest": I32} if keeps else {})},
        params=u32s("length", "words", "parts", *(["sequences"] if keeps else [])),
        workgroup=workgroup,
        shared={
            **best_memory(lanes, "highs", "raw_sums", "totals"),
            "bins": ("atomic<u32>", BINS),
            "sums": ("u32", workgroup),
            "found": ("u32", 2),
        },
        helpers=f"{functions(helpers)}\n{helpers}",
    )
