"""Kernels with matrices, run on an adapter that has none: each invocation computes the whole of its subgroup's matrices.

`adapter(gpu)` makes a device pretend to have matrices; `emulate(wgsl)` is what its kernels become. That is slow, and
right only for kernels in which subgroups of 32 load, multiply and store: all that ours do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

from ptegpu.gpu.device import Device
from ptegpu.kernels.matrices import LANES, NEEDS
from ptegpu.plan import dialect
from ptegpu.plan.plan import Kernel

_TYPE = r"subgroup_matrix_(?:left|right|result)<(?:f16|f32), (\d+), (\d+)>"
_LOAD = re.compile(rf"(?:let )?(\w+) = subgroupMatrixLoad<{_TYPE}>\(&(\w+), ")
_STORE = re.compile(r"subgroupMatrixStore\(&(\w+), (.*), (\w+), (true|false), (\w+)\);")
_MULTIPLY = re.compile(r"(\w+) = subgroupMatrixMultiplyAccumulate\((\w+), (\w+), (\w+)\);")
_ZERO = re.compile(rf"var (\w+) = {_TYPE}\(\);")
_DECLARED = re.compile(rf"var (\w+): {_TYPE};")


@contextmanager
def adapter(gpu: Device) -> Iterator[Device]:
    """The device, with a target that has matrices, while the context lasts."""
    real, source = gpu.target, dialect.source

    def emulated(kernel: Kernel, spoken: dialect.Dialect) -> str:
        if "matrices" not in kernel.needs or spoken == "tint":
            return source(kernel, spoken)
        return "enable f16;\n" + emulate(kernel.wgsl)

    target = replace(real, matrices=NEEDS, subgroup_size=LANES, max_shared_bytes=49152)
    with patch.object(gpu, "target", target), patch.object(dialect, "source", emulated):
        yield gpu


def emulate(wgsl: str) -> str:
    """The same module without matrices: each is a part of one array that every invocation has for itself."""
    kinds = dict(re.findall(r"var<(?:workgroup|storage, read)> (\w+): array<(f16|f32)", wgsl))
    found = [m.groups() for p in (_ZERO, _DECLARED) for m in p.finditer(wgsl)]
    found += [(name, c, r) for name, c, r, _ in _LOAD.findall(wgsl)]
    shapes = {name: (int(c), int(r)) for name, c, r in found}
    place = {name: 256 * i for i, name in enumerate(shapes)}
    helpers = [f"var<private> matrices: array<f32, {256 * len(shapes)}>;", _FUNCTIONS]
    helpers += [_load(array, int(c), int(r)) for _, c, r, array in _LOAD.findall(wgsl)]
    helpers += [_store(m[0], *shapes[m[2]], kinds[m[0]]) for m in _STORE.findall(wgsl)]
    wgsl = _LOAD.sub(lambda m: f"load_{m[4]}_{m[2]}x{m[3]}({place[m[1]]}u, ", wgsl)
    wgsl = _STORE.sub(
        lambda m: "store_{}_{}x{}({}u, {}, {}, {});".format(m[1], *shapes[m[3]], place[m[3]], m[2], m[4], m[5]), wgsl
    )
    wgsl = _MULTIPLY.sub(lambda m: f"multiply({place[m[1]]}u, {place[m[2]]}u, {place[m[3]]}u);", wgsl)
    wgsl = _ZERO.sub(lambda m: f"clear({place[m[1]]}u);", _DECLARED.sub("", wgsl))
    wgsl = wgsl.replace(", @builtin(subgroup_id) sg: u32", "")
    wgsl = wgsl.replace("  let group = wid.x", f"  let sg = lid / {LANES}u;\n  let group = wid.x", 1)
    first, last = wgsl.split("@compute", 1)
    return "\n".join([first, *dict.fromkeys(helpers), "@compute" + last])


def _load(array: str, columns: int, rows: int) -> str:
    return f"""fn load_{array}_{columns}x{rows}(m: u32, first: u32, turned: bool, stride: u32) {{
  for (var i = 0u; i < {rows * columns}u; i++) {{
    let r = i / {columns}u; let c = i % {columns}u;
    matrices[m + i] = f32({array}[first + select(r * stride + c, c * stride + r, turned)]);
  }}
}}"""


def _store(array: str, columns: int, rows: int, kind: str) -> str:
    return f"""fn store_{array}_{columns}x{rows}(m: u32, first: u32, turned: bool, stride: u32) {{
  for (var i = 0u; i < {rows * columns}u; i++) {{
    let r = i / {columns}u; let c = i % {columns}u;
    {array}[first + select(r * stride + c, c * stride + r, turned)] = {kind}(matrices[m + i]);
  }}
}}"""


_FUNCTIONS = """fn clear(m: u32) { for (var i = 0u; i < 256u; i++) { matrices[m + i] = 0.0; } }
fn multiply(m: u32, left: u32, right: u32) {
  for (var i = 0u; i < 256u; i++) {
    var sum = matrices[m + i]; let r = i / 16u * 16u; let c = i % 16u;
    for (var k = 0u; k < 16u; k++) { sum += matrices[left + r + k] * matrices[right + k * 16u + c]; }
    matrices[m + i] = sum;
  }
}"""
