"""Programs that turn texts into vectors, as an engine: tokens in, rows of length 1 out."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NoReturn

import numpy as np

from ..errors import DeviceLost, UnsupportedProgram
from ..format import ProgramFile
from ..models.door import ProgramSource
from ..models.tokenizer import find_tokenizer
from ..runtime import LoadOptions, MethodSignature, open_program
from .engine import Served, Stats

FORWARD = "forward"


class EmbeddingEngine:
    """An engine whose `forward` takes tokens [B, S] and possibly a mask and the types of tokens, which are all 0.

    It returns floats [B, D], or [B, S, D], whose mean over the tokens of a text is taken.
    """

    def __init__(
        self, source: ProgramSource, name: str, options: LoadOptions, tokenizer: str | os.PathLike[str] | None = None
    ) -> None:
        self._batch, context = _read_inputs(source.file)
        self._tokenizer = find_tokenizer(source.path, tokenizer)
        self._roles = source.card.inputs
        self._program = open_program(source.program, options, methods=[FORWARD])
        self._lock = threading.Lock()
        self._requests = 0
        self._error = ""  # after which nothing runs
        try:
            self._forward = self._program.method(FORWARD)
            self.model = Served(name, context, 1 << 31, False)  # the program checks the tokens itself
        except BaseException:
            self._program.close()
            raise

    @cached_property
    def _kinds(self) -> list[str]:
        """The role of each input: tokens, mask or types."""
        inputs = self._forward.inputs
        if len(self._roles) == len(inputs):
            return list(self._roles)
        swapped = len(inputs) > 1 and "type" in inputs[1].name
        return ["tokens", *(["types", "mask"] if swapped else ["mask", "types"])][: len(inputs)]

    def encode(self, prompt: str) -> list[int]:
        return self._tokenizer.encode(prompt)

    def embed(self, prompts: Sequence[Sequence[int]]) -> np.ndarray:
        """Return a vector for each prompt. Texts of similar length share a run."""
        order = sorted(range(len(prompts)), key=lambda k: len(prompts[k]))
        rows: list[Any] = [None] * len(prompts)
        self._requests += 1
        try:
            for first in range(0, len(order), self._batch):
                batch = order[first : first + self._batch]
                with self._lock:
                    vectors = self._run([prompts[k] for k in batch])
                for k, vector in zip(batch, vectors):
                    rows[k] = vector
        except DeviceLost as e:
            self._error = str(e)
            raise
        finally:
            self._requests -= 1
        return np.stack(rows)

    def _run(self, texts: Sequence[Sequence[int]]) -> np.ndarray:
        """Return unit vectors, float32 (texts, D)."""
        tokens = self._forward.inputs[0]
        shape = (len(texts), max(map(len, texts))) if tokens.dynamic else tokens.shape
        assert shape is not None
        arrays = {kind: np.zeros(shape, np.int64) for kind in ("tokens", "mask", "types")}
        for row, ids in enumerate(texts):
            arrays["tokens"][row, : len(ids)], arrays["mask"][row, : len(ids)] = ids, 1
        arguments = [arrays[kind].astype(i.dtype) for kind, i in zip(self._kinds, self._forward.inputs)]
        vectors = np.asarray(self._forward.execute(arguments)[-1], np.float32)[: len(texts)]
        if vectors.ndim == 3:
            mask = arrays["mask"][: len(texts), :, None]
            vectors = (vectors * mask).sum(1) / mask.sum(1)
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)  # type: ignore[no-any-return]

    def stats(self) -> Stats:
        requests = self._requests
        running = min(1, requests)
        return Stats(requests - running, running, running, 0.0, 0, 0, self._error)

    def close(self) -> None:
        with self._lock:
            self._program.close()


def _read_inputs(program: ProgramFile) -> tuple[int, int]:
    """Return the most texts and tokens of one call; raise UnsupportedProgram if the program is not an encoder."""

    def refuse(reason: str) -> NoReturn:
        raise UnsupportedProgram(f"this is not an encoder: {reason}")

    signature = next((MethodSignature(m) for m in program.methods if m.name == FORWARD), None)
    if signature is None:
        refuse(f"it has no method {FORWARD!r}")
    inputs, output = signature.inputs, signature.outputs[-1] if signature.outputs else None
    shape = inputs[0].shape if inputs else None
    if not inputs or not inputs[0].dtype.startswith("int") or shape is None or len(shape) != 2:
        refuse(f"its first input is not a tensor of tokens but {inputs[0] if inputs else 'missing'}")
    if len(inputs) > 3 or any(i.shape != shape for i in inputs):
        refuse(f"its inputs are {', '.join(map(str, inputs))}, not tokens, mask and types of one shape")
    if len(inputs) == 1 and not inputs[0].dynamic:
        refuse("it takes tokens of one length only, and no mask")
    if (
        output is None
        or not output.dtype.startswith("float")
        or output.shape is None
        or len(output.shape) not in (2, 3)
    ):
        refuse(f"its output is {output}, not a vector for each text or token")
    return shape[0] if len(inputs) > 1 else 1, shape[1]
