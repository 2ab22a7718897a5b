"""The signature of a language model, read from its file alone: shapes, limits, special tokens.

A language model is a method `forward(tokens int [1, S], input_pos int [1]) → logits [1, V] or [1, S, V]` that keeps its
KV cache inside. A model that sees pictures also has a method `vision`, whose rows replace tokens (see `pictures.py`).
`executorch.examples.models.llama` and `ptegpu.export` write such methods.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, TypeGuard

from ...dtypes import DType
from ...errors import UnsupportedProgram
from ...format import FileMethod, FileTensor, ProgramFile
from ..parts import VisionSpec

if TYPE_CHECKING:
    from ..card import Card

METHOD = "forward"
VISION = "vision"  # pixels (1, 3, size, size) → rows (rows, dim)
SHAPE = "forward(tokens int [1, S], input_pos int [1]) → logits [1, V] or [1, S, V]"


@dataclass(frozen=True, slots=True)
class TextSignature:
    vocabulary: int
    context: int  # tokens that the cache holds
    chunk: int  # most tokens of one call
    every: bool  # logits of every position, not only of the last one
    tokens: DType
    position: DType
    eos: tuple[int, ...]
    pictures: VisionSpec | None = None


def read_signature(program: ProgramFile, card: Card) -> TextSignature:
    """Return the signature of a language model; raise UnsupportedProgram, with the reason, for other programs."""
    name = program.path or "the program"
    methods = {m.name: m for m in program.methods}
    if METHOD not in methods:
        _refuse(name, f"it has no method {METHOD!r}")
    forward = methods[METHOD]
    inputs, outputs = ([forward.values[k] for k in numbers] for numbers in (forward.inputs, forward.outputs))
    pictures = card.vision
    if len(inputs) != (4 if pictures else 2):
        _refuse(name, f"its {METHOD} takes {len(inputs)} inputs")
    tokens, position = inputs[:2]
    if not _ints(tokens) or len(tokens.sizes) != 2 or tokens.sizes[0] != 1:
        _refuse(name, f"input 0 of its {METHOD} is {_show(tokens)}")
    if not tokens.dynamic and tokens.sizes[1] != 1:
        _refuse(name, f"input 0 of its {METHOD} is always {_show(tokens)}; export it with a dynamic length")
    if not _ints(position) or position.sizes != (1,):
        _refuse(name, f"input 1 of its {METHOD} is {_show(position)}")
    logits = outputs[-1] if outputs else None
    if not isinstance(logits, FileTensor) or not logits.dtype.is_float or len(logits.sizes) not in (2, 3):
        _refuse(name, f"the output of its {METHOD} is {_show(logits)}")
    if logits.sizes[0] != 1 or logits.sizes[1:-1] not in ((), (1,), tokens.sizes[1:]):
        _refuse(name, f"the output of its {METHOD} is {_show(logits)}")
    if ints_of(methods.get("use_kv_cache"))[:1] == [0]:
        _refuse(name, "it was exported without a KV cache")
    chunk = tokens.sizes[1]
    if pictures:
        _check_pictures(methods, name, pictures, chunk, logits.sizes[-1])
    context = card.context or chunk
    return TextSignature(
        logits.sizes[-1],
        context,
        min(chunk, context),
        len(logits.sizes) == 3 and logits.sizes[1] == chunk,
        tokens.dtype,
        position.dtype,
        card.stop,
        pictures,
    )


def _check_pictures(methods: dict[str, FileMethod], name: str, card: VisionSpec, chunk: int, vocabulary: int) -> None:
    """Raise UnsupportedProgram unless the methods have the shapes that the card declares."""
    shapes = [(1, chunk, 1), (1, chunk, card.dim), (1, 3, card.size, card.size), (card.rows, card.dim)]
    vision, forward = methods.get(VISION), methods[METHOD]
    if vision is None or len(vision.inputs) != 1 or len(vision.outputs) != 1:
        _refuse(name, f"it has no method {VISION!r} that makes rows of a picture")
    values = [forward.values[k] for k in forward.inputs[2:]] + [
        vision.values[k] for k in vision.inputs + vision.outputs
    ]
    for value, shape in zip(values, shapes, strict=True):
        if not isinstance(value, FileTensor) or value.dtype is not DType.F32 or value.sizes != shape:
            _refuse(name, f"for pictures, it has {_show(value)} in place of float32{list(shape)}")
    if card.token >= vocabulary:
        _refuse(name, f"token {card.token} is beyond its vocabulary of {vocabulary}")


def ints_of(method: FileMethod | None) -> list[int]:
    """Return the ints that a constant method returns; an empty list if there is no such method."""
    if method is None:
        return []
    return [int(v) for k in method.outputs if isinstance(v := method.values[k], int)]


def _ints(value: object) -> TypeGuard[FileTensor]:
    return isinstance(value, FileTensor) and value.dtype in (DType.I32, DType.I64)


def _show(value: object) -> str:
    return f"{value.dtype.value}{list(value.sizes)}" if isinstance(value, FileTensor) else f"{value!r}"


def _refuse(name: str, reason: str) -> NoReturn:
    raise UnsupportedProgram(f"{name} is not a language model: {reason}; it needs a method {SHAPE}")
