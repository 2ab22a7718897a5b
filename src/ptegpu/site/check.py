"""A reference for a site: inputs and the results computed here, against which a page checks the visitor's GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import ptegpu

from ..dtypes import DType
from ..errors import PtegpuError
from ..models.text.compiling import GENERATE
from ..models.text.signature import TextSignature
from ..plan import Bundle, CompiledMethod, DeviceClass, Run, Var, from_device, plain, plan_at, to_device
from ..plan.web import memory_needs
from ..sampling import SETTINGS

Sizes = Mapping[str, Sequence[int]]  # planned sizes by name

FILE = "check.bin"
TOLERANCE = 1e-3  # of the largest value
SECONDS = 1.0  # upper bound on its estimated cost
MOST_BYTES = 4 << 20  # of inputs and outputs
TOKENS = 16
SCORES = 2  # the output of a language model to compare: the scores; no token is sampled here
ALIGN = 8  # bytes, of each array in the file


@dataclass(frozen=True, slots=True)
class SiteCheck:
    """The reference of a site."""

    record: dict[str, Any]  # for site.json
    content: bytes  # of the file


def make_check(
    bundle: Bundle, method: str, signature: TextSignature | None, sizes: Sizes, uniform: bool
) -> SiteCheck | str:
    """Return the reference of a method, or why it has no reference. `uniform` inputs are from 0 to 1, like pixels."""
    fixed = Bundle(bundle.file, bundle.targets, bundle.methods)  # plans no further sizes
    try:
        from ..gpu import open_device

        device = open_device()
        outer = fixed.methods_for(device.target)[method]
        device_class = device.target.device_class
        refusal = "it accepted none of the inputs that were tried"
        for inputs in _language(signature) if signature and method == GENERATE else _inputs(outer, sizes, uniform):
            try:
                if _seconds(outer, inputs, device_class) > SECONDS:
                    return f"a run on {device.info.name} takes too long"
                with ptegpu.load(fixed, device=device, methods=method) as program:
                    outputs = program.method(method).execute(inputs)
            except (ValueError, LookupError) as e:  # also from plans that do not hold at these sizes
                refusal = str(e).splitlines()[0]
                continue
            return _check(method, outer, inputs, outputs)
        return refusal
    except (PtegpuError, ImportError, OSError, MemoryError) as e:
        return (str(e).splitlines() or [type(e).__name__])[0]


def _language(signature: TextSignature) -> Iterator[list[Any]]:
    """Yield a few tokens to be scored: more than 8, since drivers compile kernels for 2 to 8 rows slowly."""
    count = min(TOKENS, signature.chunk, signature.context)
    tokens = (np.arange(count + 1) * 37 + 11) % signature.vocabulary
    targets = np.array([tokens[1:] if signature.every else tokens[-1:]], np.int32)
    settings, history = np.zeros(len(SETTINGS), np.int32), np.zeros(1, np.int32)
    prompt = np.array([tokens[:-1]], signature.tokens.numpy)
    yield [prompt, np.zeros(1, signature.position.numpy), settings, history, 0, targets]


def _inputs(outer: CompiledMethod, sizes: Sizes, uniform: bool) -> Iterator[list[Any]]:
    """Yield inputs to try: one batch, then the largest sizes; ints are small, as they are likely to be indices."""
    for largest in (False, True):
        for most in (2, 1):
            yield [_value(k, v, _planned_shape(v, sizes, largest), most, uniform) for k, v in enumerate(outer.inputs)]


def _planned_shape(v: Any, sizes: Sizes, largest: bool) -> tuple[int, ...]:
    if not isinstance(v, Var) or not v.dynamic:
        return v.sizes if isinstance(v, Var) else ()
    planned = [sizes.get(f"{v.name}[{d}]", range(n + 1)) for d, n in enumerate(v.sizes)]
    first = 1 if not largest and planned and 1 in planned[0] else None
    return tuple(max(values) if d or first is None else first for d, values in enumerate(planned))


def _value(position: int, v: Any, shape: tuple[int, ...], most: int, uniform: bool) -> Any:
    if not isinstance(v, Var):
        return v
    if v.dtype is None:
        return most
    random = np.random.default_rng(position)
    if v.dtype is DType.BF16:
        return from_device(random.standard_normal(shape).astype(np.float32), DType.BF16)
    if v.dtype.is_float:
        return (random.random(shape) if uniform else random.standard_normal(shape)).astype(v.dtype.numpy)
    return random.integers(0, most, shape).astype(v.dtype.numpy)


def _seconds(outer: CompiledMethod, inputs: Sequence[Any], device: DeviceClass) -> float:
    """Estimate the seconds of a call, with the upload. Shapes known only during the call count as the largest."""
    pairs = zip(outer.inputs, inputs, strict=True)
    shapes_by_var = {v: x.shape if isinstance(x, np.ndarray) else x for v, x in pairs if isinstance(v, Var)}
    total = memory_needs([outer])["buffers"] / device.bandwidth
    for item in (i for i in outer.items if isinstance(i, Run)):
        plan = outer.plans[item.plan]
        shapes = [
            shapes_by_var.get(v, i.shape if i.dtype else 0) for v, i in zip(item.inputs, plan.inputs, strict=True)
        ]
        for d in plan_at(plan, shapes, lambda _, __: 0).dispatches:
            total += max(plain(d.flops) / device.flops, d.nbytes / device.bandwidth) + device.dispatch_seconds
    return total


def _check(method: str, outer: CompiledMethod, inputs: Sequence[Any], outputs: Sequence[Any]) -> SiteCheck | str:
    content = bytearray()

    def stored(v: Any, value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        content.extend(bytes(-len(content) % ALIGN))
        declared = v.dtype if isinstance(v, Var) else None
        data = (to_device(value, DType.BF16, "") if declared is DType.BF16 else value).tobytes()  # bfloat16 as float32
        dtype = declared.value if declared else str(value.dtype)
        record = {"dtype": dtype, "shape": list(value.shape), "at": len(content), "length": len(data)}
        content.extend(data)
        return record

    arguments = [stored(v, value) for v, value in zip(outer.inputs, inputs, strict=True)]
    compared = [method != GENERATE or k == SCORES for k in range(len(outputs))]  # the others are null
    results = [stored(v, x) if c else None for v, x, c in zip(outer.outputs, outputs, compared, strict=True)]
    if len(content) > MOST_BYTES:
        return f"its inputs and outputs have {len(content):,} bytes"
    if not all(_finite(x) for x, c in zip(outputs, compared, strict=True) if c):
        return "its outputs for random inputs are not finite numbers"
    document = {"file": FILE, "method": method, "inputs": arguments, "outputs": results, "tolerance": TOLERANCE}
    return SiteCheck(document, bytes(content))


def _finite(value: Any) -> bool:
    return not isinstance(value, np.ndarray) or value.dtype.kind != "f" or bool(np.isfinite(value).all())
