"""Files with flipped bytes, all the way to a bundle: what is wrong is one of our errors, and nothing else happens."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptegpu import PtegpuError, compile
from ptegpu.compiler.partition import partition
from ptegpu.compiler.planner import Planner
from ptegpu.compiler.stretches import join
from ptegpu.dtypes import DType
from ptegpu.graph.flat import FlatMethod
from ptegpu.graph.graph import Sym, Tensor
from ptegpu.graph.schema import Kinds
from ptegpu.ops import REGISTRY
from ptegpu.ops.lookup import schema_of
from ptegpu.plan.method import Call, Operand, Var, variables
from ptegpu.plan.target import Target
from ptegpu.portable import PORTABLE, PRIMS

DATA = Path(__file__).parents[1] / "data"
MUTANTS = 300  # of each file


@pytest.mark.parametrize("name", ["mlp", "cnn", "control", "methods"])
def test_flipped_bytes_end_in_a_bundle_or_in_an_error_of_ours(name: str) -> None:
    original = (DATA / f"{name}.pte").read_bytes()
    compile(original)
    rng = random.Random(name)
    refused = 0
    for _ in range(MUTANTS):
        data = bytearray(original)
        for _ in range(rng.choice([1, 1, 2, 4])):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        try:
            compile(bytes(data))
        except PtegpuError as error:
            refused += 1
            assert str(error)
    assert refused > MUTANTS // 10


class Chance:
    """Calls that nearly fit their operators' schemas: kinds are mostly right, shapes, dtypes and numbers are not."""

    def __init__(self, seed: str) -> None:
        self.rng = random.Random(seed)
        self.count = 0

    def var(self, scalar: bool = False) -> Var:
        self.count += 1
        sizes = tuple(self.rng.choices(range(4), k=self.rng.randrange(5)))
        dtype = None if scalar else self.rng.choice([d for d in DType if d.runs])
        return Var(f"v{self.count}", dtype, () if scalar else sizes)

    def tensor(self) -> Var:
        v = self.var()
        if self.rng.random() < 0.25 and v.dtype is not None:
            v.kind, v.data = "constant", np.zeros(v.sizes, v.dtype.numpy)
        return v

    def junk(self) -> Operand:
        return self.rng.choice([None, -1, 2**40, 0.5, float("nan"), "x", (), (None,), self.var(), self.var(True)])

    def operand(self, kinds: Kinds) -> Operand:
        kind = self.rng.choice(sorted(kinds, key=str))
        if self.rng.random() < 0.05:
            return self.junk()
        if isinstance(kind, frozenset):
            return tuple(self.operand(kind) for _ in range(self.rng.randrange(5)))
        if kind in (Tensor, Sym):
            return self.tensor() if kind is Tensor else self.var(True)
        numbers = self.rng.choice([0, 1, -1, 5, -9, 2**40])
        scalars: dict[Any, Operand] = {int: numbers, float: numbers / 2, bool: True, str: "amax"}
        return scalars.get(kind)

    def method(self, op: str) -> FlatMethod:
        schema = schema_of(op)
        assert schema is not None
        args = [self.operand(p.kinds) for p in schema.parameters if p.name != "options"]
        args = args[: self.rng.choice([len(args)] * 9 + [len(args) // 2])]
        outs = tuple(self.var(op in PRIMS) for _ in range(self.rng.choice([0, 1, 1, 1, 1, 2, 3])))
        inputs = [v for v in variables(tuple(args)) if v.kind != "constant"]
        for v in inputs:
            v.kind = "input"
        return FlatMethod("forward", list(inputs), list(outs), [Call(op, tuple(args), outs, f"{op} #0")])


@pytest.mark.slow
@pytest.mark.parametrize("op", sorted({*REGISTRY, *PORTABLE, *PRIMS}))
def test_a_call_ends_in_a_graph_or_in_an_error_of_ours(op: str) -> None:
    chance = Chance(op)
    for _ in range(30):
        linear = chance.method(op)
        try:
            for joined in join(linear, partition(linear)).values():
                Planner(joined.graph, Target(), [True] * len(joined.inputs)).cover()
        except PtegpuError as error:
            assert str(error)
