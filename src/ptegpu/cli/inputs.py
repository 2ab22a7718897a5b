"""The method that a command runs and the arrays for its inputs, as the command line describes them."""

from __future__ import annotations

import io
import math
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import typer

from ..dtypes import DType
from ..errors import InvalidInput
from ..files import check_regular
from ..format import FileMethod, FileTensor, Value
from ..models.door import ProgramSource
from ..runtime import LoadOptions, Program, open_program
from ..units import counted
from .options import DataFiles
from .values import declared, find_method, writable

GRAMMAR = "random, random:SEED, random:LOW..HIGH, random:SEED:LOW..HIGH, ones, zeros, a number, FILE.npy or FILE.npz"

UNBOUNDED = 1 << 30  # bytes of arrays where the method sets no bounds
WIDEST = 16  # bytes of an element
HEADER = 1 << 16  # bytes at the beginning of an array's file, which hold its dtype and shape

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RANDOM = re.compile(rf"random(?::(\d+))?(?::({_NUMBER})\.\.({_NUMBER}))?")
_SIZES = re.compile(r"\s*(.+?)\s*=\s*(-?\d+(?:\.\.-?\d+)?(?:,-?\d+(?:\.\.-?\d+)?)*)\s*")
_INTS = (0.0, 9.0)  # the default range of random ints


@dataclass(frozen=True, slots=True)
class Random:
    """Random values: floats are normal, or uniform in the range; ints are in the range, both ends included."""

    seed: int = 0
    range: tuple[float, float] | None = None

    def array(self, position: int, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
        rng = np.random.default_rng([self.seed, position])
        if dtype is DType.BOOL:
            return rng.random(shape) < 0.5
        if dtype.is_float:
            values = rng.standard_normal(shape) if self.range is None else rng.uniform(*self.range, shape)
            return values.astype(np.float32 if dtype is DType.BF16 else dtype.numpy)
        low, high = self.range or _INTS
        return rng.integers(int(low), int(high), shape, endpoint=True).astype(dtype.numpy)


@dataclass(frozen=True, slots=True)
class Fill:
    """An array filled with one number."""

    value: float

    def array(self, position: int, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
        return np.full(shape, self.value, np.float32 if dtype is DType.BF16 else dtype.numpy)


InputSource = Random | Fill | Path


@dataclass(frozen=True, slots=True)
class MethodCall:
    """A method of a program that was read but not loaded, with its arguments."""

    source: ProgramSource
    method: FileMethod
    arguments: list[Any]

    def load(self, options: LoadOptions, data: Sequence[Path] | None) -> Program:
        return open_program(self.source.program, options, data or None, methods=[self.method.name])


@dataclass(frozen=True, slots=True)
class CallFlags:
    """The method to run and its inputs."""

    PANEL: ClassVar[str] = "What to run"

    method: Annotated[str | None, typer.Option(help="The method to run.", show_default="forward, or the only one")] = (
        None
    )
    data: DataFiles = None
    input: Annotated[
        list[str] | None,
        typer.Option(
            help="In input order: FILE.npy, FILE.npz (all inputs, arr_0 … or input0 …), random, random:SEED, "
            "random:LOW..HIGH, ones, zeros, or a number. A single value other than a .npy is used for all inputs.",
            show_default="random:0, a single int 0",
        ),
    ] = None
    shape: Annotated[
        list[str] | None,
        typer.Option(help="Shape of a dynamic input, such as 0=1x17; repeat for more.", show_default="the maximum"),
    ] = None

    def prepare(self, model: Path, options: LoadOptions) -> MethodCall:
        """Read the program, find the method and make its arguments."""
        source = ProgramSource.of(model, options)
        method = find_method(source, self.method)
        inputs, _ = declared(method)
        shapes = parse_shapes(self.shape or [], len(inputs))
        return MethodCall(source, method, make_inputs(inputs, self.input or [], shapes))


def parse_source(text: str) -> InputSource:
    """Parse one `--input`."""
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
    """Parse each `--shape`, such as `0=1x17`; return the shapes by input."""
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


def parse_sizes(texts: Sequence[str]) -> dict[str, list[int]]:
    """Parse each `--size`: `input 0[1]=1..512`, `input 0[1]=1,2,8..16`; values of repeated names add up."""
    sizes: dict[str, list[int]] = {}
    for text in texts:
        match = _SIZES.fullmatch(text)
        if match is None:
            raise typer.BadParameter(f"{text!r} is not of the form 'input 0[1]=1..512'", param_hint="--size")
        for part in match[2].split(","):
            low, _, high = part.partition("..")
            values = range(int(low), int(high or low) + 1)
            if not values:
                raise typer.BadParameter(f"{text!r}: the range is empty", param_hint="--size")
            sizes.setdefault(match[1], []).extend(values)
    return sizes


def one_size_each(texts: Sequence[str]) -> dict[str, int]:
    """Parse each `--size` as `parse_sizes` does, and check that each name has one value."""
    sizes = parse_sizes(texts)
    for name, values in sizes.items():
        if len(values) != 1:
            raise typer.BadParameter(f"{name} has {len(values)} values; expected one", param_hint="--size")
    return {name: value for name, (value,) in sizes.items()}


def make_inputs(inputs: Sequence[Value], texts: Sequence[str], shapes: Mapping[int, tuple[int, ...]]) -> list[Any]:
    """Return an argument for each input. A single source other than a `.npy` file is used for all of them.

    By default they are random, but single ints are 0: most are positions, where only the first is always valid.
    """
    default: list[InputSource] = [Fill(0) if _is_single_int(v) else Random() for v in inputs]
    sources = [parse_source(text) for text in texts] or default
    if len(sources) == 1 and len(inputs) != 1:
        (source,) = sources
        if isinstance(source, Path):
            sources = list(read_arrays(source, "input", len(inputs), largest(inputs)))  # type: ignore[arg-type]
        else:
            sources = [source] * len(inputs)
    if len(sources) != len(inputs):
        times = counted(len(sources), "time")
        raise InvalidInput(f"the method has {counted(len(inputs), 'input')}, but --input is given {times}")
    return [_input(k, value, source, shapes.get(k)) for k, (value, source) in enumerate(zip(inputs, sources))]


def _is_single_int(value: Value) -> bool:
    if not isinstance(value, FileTensor) or value.dtype is DType.BF16:
        return False
    return value.bounded and math.prod(value.sizes) == 1 and value.dtype.numpy.kind in "iu"


def _input(position: int, value: Value, source: InputSource | np.ndarray, shape: tuple[int, ...] | None) -> Any:
    if isinstance(source, Path):
        (source,) = read_arrays(source, "input", 1, largest([value]))
    if isinstance(source, np.ndarray):
        return writable(source, value) if isinstance(value, FileTensor) else source.item()
    if not isinstance(value, FileTensor):
        if isinstance(source, Fill):
            return int(source.value) if source.value.is_integer() else source.value
        return int(source.array(position, DType.I64, ())) if value is None else value
    if shape is None and not value.bounded:
        raise InvalidInput(f"input {position} has no bounds: give its shape with --shape {position}=…")
    return writable(source.array(position, value.dtype, value.sizes if shape is None else shape), value)


def largest(values: Sequence[Value]) -> int:
    """Return an upper bound on the bytes of arrays for these values, of any dtype."""
    if not all(v.bounded for v in values if isinstance(v, FileTensor)):
        return UNBOUNDED
    return WIDEST * sum(math.prod(v.sizes) if isinstance(v, FileTensor) else 1 for v in values)


def read_arrays(path: Path, prefix: str, count: int, most: int = UNBOUNDED) -> list[np.ndarray]:
    """Read `count` arrays of a NumPy file: named `prefix0`, `prefix1`, … or `arr_0`, …, or else in the file's order.

    Raise InvalidInput before reading any if they have more than `most` bytes, because a small file can hold large
    arrays of zeros. Arrays no larger than the file itself are always read.
    """
    check_regular(path, InvalidInput)
    try:
        sizes = _declared_sizes(path)
        if len(sizes) != count:
            raise InvalidInput(f"{path} holds {len(sizes)} arrays, the method has {count} {prefix}s")
        if sum(sizes) > max(most, path.stat().st_size):
            raise InvalidInput(f"{path} holds arrays of {sum(sizes):,} bytes, more than the {most:,} expected here")
        loaded = np.load(path, allow_pickle=False)
        arrays = dict(loaded) if isinstance(loaded, np.lib.npyio.NpzFile) else {f"{prefix}0": loaded}
    except (OSError, InvalidInput):
        raise
    except Exception as e:  # NumPy and zipfile raise many kinds
        raise InvalidInput(f"{path} is not a NumPy file of plain arrays: {e}") from None
    for names in ([f"{prefix}{k}" for k in range(count)], [f"arr_{k}" for k in range(count)]):
        if set(names) == set(arrays):
            return [arrays[name] for name in names]
    return list(arrays.values())


def _declared_sizes(path: Path) -> list[int]:
    """Return the bytes of each array of a file, as the arrays' headers declare them."""
    with open(path, "rb") as file:
        header = file.read(HEADER)
    if not header.startswith(b"PK"):
        return [_declared_size(header)]
    with zipfile.ZipFile(path) as archive:
        sizes = []
        for entry in archive.infolist():
            if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # others unpack all at once
                raise ValueError(f"{entry.filename} is compressed in another way than NumPy does")
            with archive.open(entry) as part:
                sizes.append(_declared_size(part.read(HEADER)))
        return sizes


def _declared_size(header: bytes) -> int:
    if not header.startswith(b"\x93NUMPY"):
        raise ValueError("it does not begin as one")
    file = io.BytesIO(header)
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    return math.prod(shape) * dtype.itemsize
