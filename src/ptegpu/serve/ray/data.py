"""Any program over the rows of a Ray dataset: columns in, columns out."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import ray

from ...errors import DeviceLost, InvalidInput
from ...models.door import Loading, Source, split_options
from ...runtime import Spec, open_program
from .gpus import assigned

Batch = Mapping[str, np.ndarray]
FITTING = {"f": "buif", "i": "bui", "u": "bui", "b": "b"}  # by the kind of an input, the kinds of columns


class Predictor:
    """A program for `Dataset.map_batches`: each of Ray's actors has one, and keeps it loaded.

    `inputs` names the column of each of the method's inputs, in their order; without it, columns have the names of the
    inputs. `outputs` names the columns that are added, or replaced; an output whose name is None is left out. Other
    arguments are those of `ptegpu.load`.

    The first dimension of a column counts rows. Where the inputs have as many dimensions, the program gets as many rows
    at once as it takes; if it takes no fewer, the last row is repeated. Where they have one less, it gets one row at a
    time. States start anew with each call of the program.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        inputs: Sequence[str] | None = None,
        outputs: Sequence[str | None] | None = None,
        *,
        method: str = "forward",
        options: Loading = None,
        **more: Any,
    ) -> None:
        options = split_options(options, more)
        options = replace(options, device=assigned(options.device, options.engine))
        self._program = open_program(Source.of(path, options).program, options, methods=[method], **more)
        self._method = self._program.method(method)
        taken = [s for s in self._method.inputs if s.value is None and s.dtype != "None"]
        if not taken:
            raise InvalidInput(f"{method} takes nothing that a column could be")
        self._inputs = self._named(taken, inputs, "inputs")
        self._outputs = self._named(self._method.outputs, outputs, "outputs")

    def __call__(self, batch: Batch) -> dict[str, np.ndarray]:
        """The batch, and the outputs as columns."""
        if not isinstance(batch, Mapping):
            raise InvalidInput(
                f'a batch is a dict of NumPy arrays here, not {type(batch).__name__}: say batch_format="numpy"'
            )
        columns = [self._column(batch, name, spec) for name, spec in self._inputs]
        try:
            made = self._by_batch(columns) if self._in_batches(columns) else self._by_row(columns)
        except DeviceLost:
            _leave()
            raise
        return {**batch, **{name: made[k] for k, (name, _) in enumerate(self._outputs) if name is not None}}

    def _named(self, specs: Sequence[Spec], names: Sequence[Any] | None, what: str) -> list[tuple[Any, Spec]]:
        if names is None:
            return [(s.name, s) for s in specs]
        if isinstance(names, str) or len(names) != len(specs):
            given = repr(names) if isinstance(names, str) else f"{len(names)}"
            all = ", ".join(f"{s.name}: {s}" for s in specs)
            raise InvalidInput(f"{what} must be a list of {len(specs)} columns, one for each of {all}; not {given}")
        return list(zip(names, specs))

    def _of(self, spec: Spec) -> str:
        return f"{spec.name} of {self._method.name} ({spec})"

    def _column(self, batch: Batch, name: str, spec: Spec) -> np.ndarray:
        """As an array of the dtype that the input has, where all its numbers fit: Arrow has fewer dtypes."""
        if name not in batch:
            raise InvalidInput(
                f"there is no column {name!r} for {self._of(spec)}, only {', '.join(batch)}: name columns with inputs="
            )
        column = np.asarray(batch[name])
        if column.dtype == object:
            shapes = {np.shape(row): None for row in column}
            if len(shapes) > 1:
                one, other, *_ = shapes
                raise InvalidInput(
                    f"column {name!r} has rows of shape {[*one]} and of {[*other]}: pad them to one shape"
                )
            column = np.stack([np.asarray(row) for row in column])
        if spec.dtype in (column.dtype.name, "bfloat16"):
            return column
        want = np.dtype("int64" if spec.dtype == "int" else spec.dtype)
        if column.dtype.kind not in FITTING[want.kind]:
            raise InvalidInput(
                f"column {name!r} is of {column.dtype}, which {self._of(spec)} does not take: convert it"
            )
        if want.kind in "iu":
            known = np.iinfo(want)
            for value in (int(column.min()), int(column.max())):
                if not known.min <= value <= known.max:
                    raise InvalidInput(f"column {name!r} has {value}, which does not fit {self._of(spec)}")
        return column.astype(want)

    def _in_batches(self, columns: Sequence[np.ndarray]) -> bool:
        """Whether a row of a column is a row of the input, and not all of it; this is the same for all of them."""
        found = set[int]()
        for column, (name, spec) in zip(columns, self._inputs):
            rank = len(spec.shape) if spec.shape is not None else 0 if spec.dtype == "int" else column.ndim
            found.add(column.ndim - rank)
            if found not in ({0}, {1}):
                raise InvalidInput(
                    f"column {name!r} has rows of shape {[*column.shape[1:]]}, which {self._of(spec)} does not take"
                    f"{', as it does those of other columns' if len(found) > 1 else ''}"
                )
        return found == {0}

    def _by_row(self, columns: Sequence[np.ndarray]) -> list[np.ndarray]:
        each = [[np.asarray(value) for value in self._run([*map(np.asarray, row)])] for row in zip(*columns)]
        return [_stacked(values) for values in zip(*each)]

    def _by_batch(self, columns: Sequence[np.ndarray]) -> list[np.ndarray]:
        rows = len(columns[0])
        size = min((s.shape[0] for _, s in self._inputs if s.shape), default=rows)
        parts = [self._part([c[k : k + size] for c in columns], size) for k in range(0, rows, size)]
        return [np.concatenate(values) for values in zip(*parts)]

    def _part(self, columns: Sequence[np.ndarray], size: int) -> list[np.ndarray]:
        """At most `size` rows. Files do not say which dimensions may be less than they declare: trying tells."""
        rows = asked = len(columns[0])
        try:
            made = self._run(columns)
        except InvalidInput:
            if rows == size:
                raise
            asked = size
            made = self._run([np.concatenate([c, np.repeat(c[-1:], size - rows, 0)]) for c in columns])
        for value, (name, spec) in zip(made, self._outputs):
            if name is not None and np.shape(value)[:1] != (asked,):
                raise InvalidInput(
                    f"{spec.name} of {self._method.name} has shape {[*np.shape(value)]}, and not one of {asked} rows: "
                    f"leave it out, with None in place of {name!r} in outputs="
                )
        return [np.asarray(value)[:rows] for value in made]

    def _run(self, columns: Sequence[Any]) -> list[Any]:
        """All outputs; those that are to be left out may be anything."""
        given = {spec.name: value for (_, spec), value in zip(self._inputs, columns)}
        arguments = [given.get(s.name, s.value) for s in self._method.inputs]
        arguments = [int(a) if s.dtype == "int" else a for a, s in zip(arguments, self._method.inputs)]
        self._program.reset()
        try:
            return self._method.execute(arguments)
        except InvalidInput as e:
            names = ", ".join(f"{spec.name} is column {name!r}" for name, spec in self._inputs)
            raise type(e)(f"{e} ({names})") from None


def _stacked(values: Sequence[np.ndarray]) -> np.ndarray:
    """Of each row; where shapes differ, an array of arrays, as Ray has them."""
    if len({v.shape for v in values}) == 1:
        return np.stack(values)
    rows = np.empty(len(values), object)
    rows[:] = values
    return rows


def _leave() -> None:
    """Ends an actor whose GPU is lost: Ray starts another and gives it the same rows. An error would end the job."""
    if ray.is_initialized() and ray.get_runtime_context().get_actor_id():
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
