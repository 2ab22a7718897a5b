"""A reference for a site: inputs, and what they gave here, so that a page can find out whether its GPU is right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import ptegpu

from ..dtypes import DType
from ..errors import PtegpuError
from ..models.text.compiling import GENERATE
from ..models.text.signature import Signature
from ..plan import Bundle, CompiledMethod, DeviceClass, Run, Var, evaluated, from_device, plain, to_device
from ..plan.web import needed
from ..sampling import SETTINGS

Sizes = Mapping[str, Sequence[int]]  # that were planned, by name

FILE = "check.bin"
TOLERANCE = 1e-3  # of the largest value
SECONDS = 1.0  # the most that it may cost, as far as that can be known
MOST_BYTES = 4 << 20
TOKENS = 16
SCORES = 2  # among the outputs of what generates: no token is chosen here
ALIGN = 8  # bytes, of each array in the file


@dataclass(frozen=True, slots=True)
class Check:
    """`told` is for site.json, `content` for the file."""

    told: dict[str, Any]
    content: bytes


def make_check(bundle: Bundle, method: str, signature: Signature | None, sizes: Sizes, uniform: bool) -> Check | str:
    """The reference of a method, or why there is none. `uniform`: inputs are from 0 to 1, as pixels are."""
    alone = Bundle(bundle.file, bundle.targets, bundle.methods)  # without what would plan further sizes
    try:
        from ..gpu import open_device

        device = open_device()
        outer = alone.methods_for(device.target)[method]
        about = device.target.device_class
        refused = "it takes no inputs that were tried"
        for inputs in _language(signature) if signature and method == GENERATE else _inputs(outer, sizes, uniform):
            try:
                if _seconds(outer, inputs, about) > SECONDS:
                    return f"a run on {device.info.name} takes too long"
                with ptegpu.load(alone, device=device, methods=method) as program:
                    outputs = program.method(method).execute(inputs)
            except (ValueError, LookupError) as e:  # also of a plan that holds for no such sizes
                refused = str(e).splitlines()[0]
                continue
            return _check(method, outer, inputs, outputs)
        return refused
    except (PtegpuError, ImportError, OSError, MemoryError) as e:
        return (str(e).splitlines() or [type(e).__name__])[0]


def _language(signature: Signature) -> Iterator[list[Any]]:
    """A few tokens at the start, to be scored. Drivers take long to compile kernels for 2 to 8 rows: there are more."""
    count = min(TOKENS, signature.chunk, signature.context)
    tokens = (np.arange(count + 1) * 37 + 11) % signature.vocabulary
    targets = np.array([tokens[1:] if signature.every else tokens[-1:]], np.int32)
    settings, seen = np.zeros(len(SETTINGS), np.int32), np.zeros(1, np.int32)
    given = np.array([tokens[:-1]], signature.tokens.numpy)
    yield [given, np.zeros(1, signature.position.numpy), settings, seen, 0, targets]


def _inputs(outer: CompiledMethod, sizes: Sizes, uniform: bool) -> Iterator[list[Any]]:
    """Numbers to try: of one batch, of the largest sizes; ints that are likely to be indices of something."""
    for largest in (False, True):
        for most in (2, 1):
            yield [_value(k, v, _sized(v, sizes, largest), most, uniform) for k, v in enumerate(outer.inputs)]


def _sized(v: Any, sizes: Sizes, largest: bool) -> tuple[int, ...]:
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


def _seconds(outer: CompiledMethod, inputs: Sequence[Any], about: DeviceClass) -> float:
    """What a call should take, with the upload; where shapes are known only on the way, at the largest."""
    known = {v: _shape(x) for v, x in zip(outer.inputs, inputs, strict=True) if isinstance(v, Var)}
    total = needed([outer])["buffers"] / about.bandwidth
    for item in (i for i in outer.items if isinstance(i, Run)):
        plan = outer.plans[item.plan]
        shapes = [known.get(v, i.shape if i.dtype else 0) for v, i in zip(item.inputs, plan.inputs, strict=True)]
        for d in evaluated(plan, shapes, lambda _, __: 0).dispatches:
            total += max(plain(d.flops) / about.flops, d.nbytes / about.bandwidth) + about.dispatch_seconds
    return total


def _shape(value: Any) -> Any:
    return value.shape if isinstance(value, np.ndarray) else value


def _check(method: str, outer: CompiledMethod, inputs: Sequence[Any], outputs: Sequence[Any]) -> Check | str:
    content = bytearray()

    def told(v: Any, value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        content.extend(bytes(-len(content) % ALIGN))
        declared = v.dtype if isinstance(v, Var) else None
        data = (to_device(value, DType.BF16, "") if declared is DType.BF16 else value).tobytes()  # as floats, there
        dtype = declared.value if declared else str(value.dtype)
        found = {"dtype": dtype, "shape": list(value.shape), "at": len(content), "length": len(data)}
        content.extend(data)
        return found

    takes = [told(v, value) for v, value in zip(outer.inputs, inputs, strict=True)]
    means = [method != GENERATE or k == SCORES for k in range(len(outputs))]  # the others: null
    gives = [told(v, x) if m else None for v, x, m in zip(outer.outputs, outputs, means, strict=True)]
    if len(content) > MOST_BYTES:
        return f"its inputs and outputs have {len(content):,} bytes"
    if not all(_finite(x) for x, m in zip(outputs, means, strict=True) if m):
        return "its outputs for random inputs are not finite numbers"
    document = {"file": FILE, "method": method, "inputs": takes, "outputs": gives, "tolerance": TOLERANCE}
    return Check(document, bytes(content))


def _finite(value: Any) -> bool:
    return not isinstance(value, np.ndarray) or value.dtype.kind != "f" or bool(np.isfinite(value).all())
