"""Custom operators: a PyTorch library defines two, and this file registers them with ptegpu, without changing either.

    python examples/custom_operator.py

`mylib::bump`, elementwise, is one line of WGSL. `mylib::row_norm`, one number for each row, has a shape rule and a
kernel. An operator that is registered before `ptegpu.load` behaves like any other: it is part of plans and supports
dynamic shapes. `ptegpu inspect` also lists it if a program that imports this file starts the command.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch

import ptegpu
from ptegpu.dtypes import DType
from ptegpu.export import export
from ptegpu.ops.custom import Dispatch, KernelSpec, Out, Steps, Storage, Target, Tensor, build, floats, op, unary

# PyTorch: schemas and implementations. ExecuTorch calls the variants with `out`.
library = torch.library.Library("mylib", "DEF")
library.define("bump(Tensor x) -> Tensor")
library.define("bump.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)")
library.define("row_norm(Tensor x, float eps) -> Tensor")
library.define("row_norm.out(Tensor x, float eps, *, Tensor(a!) out) -> Tensor(a!)")


def bump(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(-x * x)


def row_norm(x: torch.Tensor, eps: float) -> torch.Tensor:
    return torch.sqrt(torch.sum(x * x, -1) + eps)


for function in (bump, row_norm):
    library.impl(function.__name__, function, "CompositeExplicitAutograd")
    library.impl(
        f"{function.__name__}.out",
        lambda *args, out, f=function: out.copy_(f(*args)),
        "CompositeExplicitAutograd",
    )

# ptegpu: operators are named by their functional variants, namespace.operator.overload.
unary("mylib.bump.default", floats("exp(-a * a)"))


@op("mylib.row_norm.default", fits="x float32")
def row_norm_rule(x: Tensor, eps: float, *, target: Target) -> Steps:
    out = yield Out(x.shape[:-1], DType.F32)  # (…, D) → (…)
    kernel = row_norm_kernel(target)
    rows, length = math.prod(x.shape[:-1]), x.shape[-1]
    groups = -(-rows // kernel.kernel.workgroup)  # one invocation per row
    yield Dispatch(kernel, [x], [out], groups, {"rows": rows, "length": length, "eps": eps})


@lru_cache
def row_norm_kernel(target: Target) -> KernelSpec:
    body = """
  let row = group * WG + lid;
  if (row >= P.rows) { return; }
  var sum = 0.0;
  for (var k = 0u; k < P.length; k++) {
    let v = x_at(row * P.length + k);
    sum = fma(v, v, sum);
  }
  y_put(row, sqrt(sum + P.eps));
"""
    return build(
        "row_norm",
        body,
        target=target,
        reads={"x": Storage(DType.F32)},
        writes={"y": Storage(DType.F32)},
        params=[("rows", "u32"), ("length", "u32"), ("eps", "f32")],
        workgroup=target.workgroup(64),
    )


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:  # (N, D) → (N)
        return torch.ops.mylib.row_norm(torch.ops.mylib.bump(x) * 2, 1e-6)


def main() -> None:
    module, n = Model(), torch.export.Dim("n", max=64)
    file = export(module, (torch.ones(5, 7),), dynamic_shapes=({0: n},))
    with ptegpu.load(file) as program:
        for rows in (5, 64, 1):
            x = torch.randn(rows, 7)
            error = float(np.abs(program(x.numpy()) - module(x).numpy()).max())
            print(f"{rows} rows: at most {error:.1g} from PyTorch")
        print(f"{len(program.method('forward').plans)} plan on {program.device.info.name}")


if __name__ == "__main__":
    main()
