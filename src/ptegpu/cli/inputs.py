"""Arrays for a method's inputs, as the command line describes them: files, random numbers, one number everywhere."""

from __future__ import annotations

import io
import math
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import typer

from ..dtypes import DType
from ..errors import InvalidInput
from ..files import check_regular
from ..format import Tensor, Value
from ..units import counted
from .values import writable

GRAMMAR = "random, random:SEED, random:LOW..HIGH, random:SEED:LOW..HIGH, ones, zeros, a number, FILE.npy or FILE.npz"

UNBOUNDED = 1 << 30  # bytes of arrays where the method sets no bounds
WIDEST = 16  # bytes of an element
HEAD = 1 << 16  # bytes of an array's file that its dtype and shape are in

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RANDOM = re.compile(rf"random(?::(\d+))?(?::({_NUMBER})\.\.({_NUMBER}))?")
_INTS = (0.0, 9.0)  # what random ints are between, unless a range is given


@dataclass(frozen=True, slots=True)
class Random:
    """Floats are normal, or uniform in the range; ints are in the range, ends included."""

    seed: int = 0
    range: tuple[float, float] | None = None

    def array(self, position: int, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
        rng = np.random.default_rng([self.seed, position])
        if dtype is DType.BOOL:
            return rng.random(shape) < 0.5
        if dtype.is_float:
            found = rng.standard_normal(shape) if self.range is None else rng.uniform(*self.range, shape)
            return found.astype(np.float32 if dtype is DType.BF16 else dtype.numpy)
        low, high = self.range or _INTS
        return rng.integers(int(low), int(high), shape, endpoint=True).astype(dtype.numpy)


@dataclass(frozen=True, slots=True)
class Fill:
    """The same number everywhere."""

    value: float

    def array(self, position: int, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
        return np.full(shape, self.value, np.float32 if dtype is DType.BF16 else dtype.numpy)


Source = Random | Fill | Path


def parse_source(text: str) -> Source:
    """One `--input`; a usage error if it is nothing known."""
    if text.lower().endswith((".npy", ".npz")):
        return Path(text)
    if text in ("ones", "zeros"):
        return Fill(float(text == "ones"))
    if re.fullmatch(_NUMBER, text):
        return Fill(float(text))
    match = re.fullmatch(_RANDOM, text)
    if match is None:
        raise typer.BadParameter(f"{text!r} is not one of {GRAMMAR}", param_hint="--input")
    seed, low, high = match.groups()
    if low is not None and float(low) > float(high):
        raise typer.BadParameter(f"{text!r}: the range is empty", param_hint="--input")
    return Random(int(seed or 0), None if low is None else (float(low), float(high)))


def parse_shapes(texts: Sequence[str], count: int) -> dict[int, tuple[int, ...]]:
    """`0=1x17` for each input given a shape."""
    shapes = {}
    for text in texts:
        match = re.fullmatch(r"(\d+)=((?:\d+(?:[x,×]\d+)*)?)", text)
        if match is None:
            raise typer.BadParameter(f"{text!r} is not of the form 0=1x17", param_hint="--shape")
        position = int(match[1])
        if position >= count:
            raise typer.BadParameter(f"{text!r}: the method has {count} inputs, counted from 0", param_hint="--shape")
        shapes[position] = tuple(int(n) for n in re.split("[x,×]", match[2]) if n)
    return shapes


def make_inputs(wanted: Sequence[Value], texts: Sequence[str], shapes: Mapping[int, tuple[int, ...]]) -> list[Any]:
    """An argument for each input. A single source that is not a file, or a single `.npz`, is used for all of them.

    Without any they are random, but single ints are 0: they are mostly positions, of which only the first always fits.
    """
    default: list[Source] = [Fill(0) if _is_int(v) else Random() for v in wanted]
    sources = [parse_source(text) for text in texts] or default
    if len(sources) == 1 and len(wanted) != 1:
        (source,) = sources
        if isinstance(source, Path):
            sources = list(read_arrays(source, "input", len(wanted), largest(wanted)))  # type: ignore[arg-type]
        else:
            sources = [source] * len(wanted)
    if len(sources) != len(wanted):
        given = counted(len(sources), "time")
        raise InvalidInput(f"the method has {counted(len(wanted), 'input')}, but --input is given {given}")
    return [_input(k, value, source, shapes.get(k)) for k, (value, source) in enumerate(zip(wanted, sources))]


def _is_int(value: Value) -> bool:
    if not isinstance(value, Tensor) or value.dtype is DType.BF16:
        return False
    return value.bounded and math.prod(value.sizes) == 1 and value.dtype.numpy.kind in "iu"


def _input(position: int, value: Value, source: Source | np.ndarray, shape: tuple[int, ...] | None) -> Any:
    if isinstance(source, Path):
        (source,) = read_arrays(source, "input", 1, largest([value]))
    if isinstance(source, np.ndarray):
        return writable(source, value) if isinstance(value, Tensor) else source.item()
    if not isinstance(value, Tensor):
        if isinstance(source, Fill):
            return int(source.value) if source.value.is_integer() else source.value
        return int(source.array(position, DType.I64, ())) if value is None else value
    if shape is None and not value.bounded:
        raise InvalidInput(f"input {position} has no bounds: give its shape with --shape {position}=…")
    return writable(source.array(position, value.dtype, value.sizes if shape is None else shape), value)


def largest(values: Sequence[Value]) -> int:
    """Return the most bytes that arrays for these may have, of any dtype."""
    tensors = [v for v in values if isinstance(v, Tensor)]
    if not all(v.bounded for v in tensors):
        return UNBOUNDED
    return WIDEST * sum(math.prod(v.sizes) if isinstance(v, Tensor) else 1 for v in values)


def read_arrays(path: Path, prefix: str, count: int, most: int = UNBOUNDED) -> list[np.ndarray]:
    """`count` arrays of a NumPy file: by the names `prefix0`, `prefix1`, … or `arr_0`, …, else in the file's order.

    Raise InvalidInput before any is read if they have more than `most` bytes: a small file can hold large arrays of
    zeros. What takes no more than the file itself is always read.
    """
    check_regular(path, InvalidInput)
    try:
        sizes = _declared_sizes(path)
    except OSError:
        raise
    except Exception as e:  # NumPy and zipfile raise many kinds
        raise InvalidInput(f"{path} is not a NumPy file of plain arrays: {e}") from None
    if len(sizes) != count:
        raise InvalidInput(f"{path} holds {len(sizes)} arrays, the method has {count} {prefix}s")
    if sum(sizes) > max(most, path.stat().st_size):
        raise InvalidInput(f"{path} holds arrays of {sum(sizes):,} bytes, more than the {most:,} expected here")
    try:
        loaded = np.load(path, allow_pickle=False)
        arrays = dict(loaded) if isinstance(loaded, np.lib.npyio.NpzFile) else {f"{prefix}0": loaded}
    except OSError:
        raise
    except Exception as e:
        raise InvalidInput(f"{path} is not a NumPy file of plain arrays: {e}") from None
    for names in ([f"{prefix}{k}" for k in range(count)], [f"arr_{k}" for k in range(count)]):
        if set(names) == set(arrays):
            return [arrays[name] for name in names]
    return list(arrays.values())


def _declared_sizes(path: Path) -> list[int]:
    """Return the bytes of each array of a file, as their heads declare them."""
    with open(path, "rb") as file:
        head = file.read(HEAD)
    if not head.startswith(b"PK"):
        return [_declared_size(head)]
    with zipfile.ZipFile(path) as archive:
        sizes = []
        for entry in archive.infolist():
            if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # others unpack all at once
                raise ValueError(f"{entry.filename} is compressed in another way than NumPy does")
            with archive.open(entry) as part:
                sizes.append(_declared_size(part.read(HEAD)))
        return sizes


def _declared_size(head: bytes) -> int:
    if not head.startswith(b"\x93NUMPY"):
        raise ValueError("it does not begin as one")
    file = io.BytesIO(head)
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    return math.prod(shape) * dtype.itemsize
