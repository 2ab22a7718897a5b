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
from ...models.door import Loading, ProgramSource, split_options
from ...runtime import Spec, open_program
from .gpus import assigned

Batch = Mapping[str, np.ndarray]
FITTING = {"f": "buif", "i": "bui", "u": "bui", "b": "b"}  # kind of an input → kinds of columns


class Predictor:
    """A program for `Dataset.map_batches`; each of Ray's actors keeps one loaded.

    `inputs` names the column of each of the method's inputs, in order; by default, columns have the names of the
    inputs. `outputs` names the columns to add or replace; None omits an output. Other arguments are those of
    `ptegpu.load`.

    The first dimension of a column counts rows. If an input has as many dimensions as its column, the program gets as
    many rows at once as it takes, with the last one repeated if it takes no fewer. If an input has one dimension less,
    it gets one row at a time. States are reset before each call of the program.
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
        self._program = open_program(ProgramSource.of(path, options).program, options, methods=[method], **more)
        self._method = self._program.method(method)
        specs = [s for s in self._method.inputs if s.value is None and s.dtype != "None"]
        if not specs:
            raise InvalidInput(f"{method} has no input that could be a column")
        self._inputs = self._named(specs, inputs, "inputs")
        self._outputs = self._named(self._method.outputs, outputs, "outputs")

    def __call__(self, batch: Batch) -> dict[str, np.ndarray]:
        """Return the batch with the outputs as columns."""
        if not isinstance(batch, Mapping):
            kind = type(batch).__name__
            raise InvalidInput(f'a batch must be a dict of NumPy arrays, not {kind}: use batch_format="numpy"')
        columns = [self._column(batch, name, spec) for name, spec in self._inputs]
        try:
            outputs = self._by_batch(columns) if self._in_batches(columns) else self._by_row(columns)
        except DeviceLost:
            _leave()
            raise
        return {**batch, **{name: outputs[k] for k, (name, _) in enumerate(self._outputs) if name is not None}}

    def _named(self, specs: Sequence[Spec], names: Sequence[Any] | None, parameter: str) -> list[tuple[Any, Spec]]:
        if names is None:
            return [(s.name, s) for s in specs]
        if isinstance(names, str) or len(names) != len(specs):
            value = repr(names) if isinstance(names, str) else f"{len(names)}"
            listed = ", ".join(f"{s.name}: {s}" for s in specs)
            raise InvalidInput(
                f"{parameter} must be a list of {len(specs)} columns, one for each of {listed}; not {value}"
            )
        return list(zip(names, specs))

    def _described(self, spec: Spec) -> str:
        return f"{spec.name} of {self._method.name} ({spec})"

    def _column(self, batch: Batch, name: str, spec: Spec) -> np.ndarray:
        """Return a column as an array of the input's dtype, if all its numbers fit: Arrow has fewer dtypes."""
        if name not in batch:
            missing = f"there is no column {name!r} for {self._described(spec)}, only {', '.join(batch)}"
            raise InvalidInput(f"{missing}: name columns with inputs=")
        column = np.asarray(batch[name])
        if column.dtype == object:
            shapes = {np.shape(row): None for row in column}
            if len(shapes) > 1:
                first, second, *_ = shapes
                differ = f"column {name!r} has rows of shape {[*first]} and of {[*second]}"
                raise InvalidInput(f"{differ}: pad them to one shape")
            column = np.stack([np.asarray(row) for row in column])
        if spec.dtype in (column.dtype.name, "bfloat16"):
            return column
        dtype = np.dtype("int64" if spec.dtype == "int" else spec.dtype)
        if column.dtype.kind not in FITTING[dtype.kind]:
            unfit = f"column {name!r} is of {column.dtype}, which {self._described(spec)} does not take"
            raise InvalidInput(f"{unfit}: convert it")
        if dtype.kind in "iu":
            bounds = np.iinfo(dtype)
            for value in (int(column.min()), int(column.max())):
                if not bounds.min <= value <= bounds.max:
                    raise InvalidInput(f"column {name!r} has {value}, which does not fit {self._described(spec)}")
        return column.astype(dtype)

    def _in_batches(self, columns: Sequence[np.ndarray]) -> bool:
        """Return whether a row of a column is a row of the input, not a complete input; all columns must agree."""
        differences = set[int]()  # of the ranks of columns and inputs
        for column, (name, spec) in zip(columns, self._inputs):
            rank = len(spec.shape) if spec.shape is not None else 0 if spec.dtype == "int" else column.ndim
            differences.add(column.ndim - rank)
            if differences not in ({0}, {1}):
                shape, others = [*column.shape[1:]], ", as it does those of other columns" * (len(differences) > 1)
                refused = f"column {name!r} has rows of shape {shape}, which {self._described(spec)} does not take"
                raise InvalidInput(f"{refused}{others}")
        return differences == {0}

    def _by_row(self, columns: Sequence[np.ndarray]) -> list[np.ndarray]:
        rows = [[np.asarray(value) for value in self._run([*map(np.asarray, row)])] for row in zip(*columns)]
        return [_stacked(values) for values in zip(*rows)]

    def _by_batch(self, columns: Sequence[np.ndarray]) -> list[np.ndarray]:
        rows = len(columns[0])
        size = min((s.shape[0] for _, s in self._inputs if s.shape), default=rows)
        parts = [self._part([c[k : k + size] for c in columns], size) for k in range(0, rows, size)]
        return [np.concatenate(values) for values in zip(*parts)]

    def _part(self, columns: Sequence[np.ndarray], size: int) -> list[np.ndarray]:
        """Run at most `size` rows. Files do not say which dimensions are dynamic, so this tries fewer rows first."""
        rows = expected = len(columns[0])
        try:
            outputs = self._run(columns)
        except InvalidInput:
            if rows == size:
                raise
            expected = size
            outputs = self._run([np.concatenate([c, np.repeat(c[-1:], size - rows, 0)]) for c in columns])
        for value, (name, spec) in zip(outputs, self._outputs):
            if name is not None and np.shape(value)[:1] != (expected,):
                shape = f"{spec.name} of {self._method.name} has shape {[*np.shape(value)]}, not {expected} rows"
                raise InvalidInput(f"{shape}: leave it out, with None in place of {name!r} in outputs=")
        return [np.asarray(value)[:rows] for value in outputs]

    def _run(self, columns: Sequence[Any]) -> list[Any]:
        """Return all outputs, with those to omit."""
        by_name = {spec.name: value for (_, spec), value in zip(self._inputs, columns)}
        arguments = [by_name.get(s.name, s.value) for s in self._method.inputs]
        arguments = [int(a) if s.dtype == "int" else a for a, s in zip(arguments, self._method.inputs)]
        self._program.reset()
        try:
            return self._method.execute(arguments)
        except InvalidInput as e:
            names = ", ".join(f"{spec.name} is column {name!r}" for name, spec in self._inputs)
            raise type(e)(f"{e} ({names})") from None


def _stacked(values: Sequence[np.ndarray]) -> np.ndarray:
    """Stack rows; if their shapes differ, return an array of arrays, as Ray does."""
    if len({v.shape for v in values}) == 1:
        return np.stack(values)
    rows = np.empty(len(values), object)
    rows[:] = values
    return rows


def _leave() -> None:
    """End an actor whose GPU is lost: Ray starts another one with the same rows, while an error would end the job."""
    if ray.is_initialized() and ray.get_runtime_context().get_actor_id():
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
