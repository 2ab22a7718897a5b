"""The next token of each row of logits, by a workgroup per row with its own settings and history."""

from __future__ import annotations

from ..dtypes import DType
from ..plan.target import Target
from ..sampling import DRAW, PENALTY, SETTINGS, TOP_K, TOP_P
from ..sizes import cached
from .functions import functions
from .lanes import MAX, SUM, Lanes
from .sample import BEFORE, TAMED, best, best_memory, setting
from .sample_selection import BINS, KEY_OF, NOISE, scanned, seeded
from .wgsl import I32, LOWEST, KernelSpec, Storage, build, u32s


@cached(64)
def each_row(logits: DType, target: Target) -> KernelSpec:
    """Compute the token and log-probability of each row of logits."""
    room = (target.max_shared_bytes - 4 * BINS - 8) // 24  # maximum invocations
    workgroup = target.team if target.software else max(target.team, target.workgroup(min(1024, room)))
    lanes = Lanes(workgroup, workgroup)
    each, mine = BINS // workgroup, "mine + "

    walk = "for (var i = lid; i < P.length; i += WG)"
    body = [
        f"  let lane = lid; let base = group * P.length; let mine = group * {len(SETTINGS) + 1}u;",
        f"  let how = u32(settings_at(mine + {len(SETTINGS)}u)); let draws = (how & {DRAW}u) != 0u;",
        f"  let scale = select(1.0, {setting('scale', mine)}, draws);",
        f"  let relief = {setting('relief', mine)}; let penalty = {setting('penalty', mine)};",
        f"  let penalised = (how & {PENALTY}u) != 0u; let marks = group * P.words;",
        f"  var top = {LOWEST}; var raw_top = {LOWEST}; var at = 0x7fffffffu;",
        f"  {walk} {{ let l = logits_at(base + i); let v = changed(l, i, marks, penalised, relief, penalty, scale);",
        f"    raw_top = max(raw_top, l); if {BEFORE} {{ top = v; at = i; }} }}",
        best(lanes),
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
        f"      var settled = 0u; var wanted = {setting('top_k', mine)};",
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
        f"    {walk} {{ let x = changed(logits_at(base + i), i, marks, penalised, relief, penalty, scale);",
        "      if (x >= low && key(x) >= least) {",
        f"        let v = x + noise(mixed(mixed(i ^ seed) + salt)); if {BEFORE} {{ top = v; at = i; }}",
        "      } }",
        best(lanes),
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
    helpers = f"{TAMED}\n{changed}\n{KEY_OF}\n{NOISE}"
    return build(
        "sample_rows",
        "\n".join(body),
        target=target,
        reads={"logits": Storage(logits), "settings": I32, "seen": I32},
        writes={"token": I32, "logprob": Storage(DType.F32)},
        params=u32s("length", "words"),
        workgroup=workgroup,
        shared={
            **best_memory(lanes, "highs", "raw_sums", "totals"),
            "bins": ("atomic<u32>", BINS),
            "sums": ("u32", workgroup),
            "found": ("u32", 2),
        },
        helpers=f"{functions(helpers)}\n{helpers}",
    )
