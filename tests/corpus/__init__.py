"""Small modules across all features: tables, exported once with and without partitions to `tests/data/corpus.zip`.

A file in the archive never changes: every later version of ptegpu must run it and return PyTorch's results.
`python -m tools.corpus make` adds the entries that the archive lacks.
"""

from __future__ import annotations

from .control import CONTROL
from .dtypes import BEYOND_32, DTYPES
from .dynamic import DYNAMIC, UNBOUNDED
from .layers import HALVES, LAYERS, PLACES
from .making import Entry, programs
from .others import METHODS, QUANTIZED
from .sizes import SIZES
from .states import STATES
from .structures import DELEGATES, STRUCTURES

__all__ = ["TABLES", "Entry", "programs"]

TABLES: dict[str, dict[str, Entry]] = {
    "sizes from data": SIZES,
    "states": STATES,
    "control flow": CONTROL,
    "dtypes": DTYPES,
    "ints beyond 32 bits": BEYOND_32,
    "sizes that change": DYNAMIC,
    "sizes without a bound": UNBOUNDED,
    "structures": STRUCTURES,
    "host and delegates": DELEGATES,
    "layers": LAYERS,
    "f16": HALVES,
    "in place": PLACES,
    "methods": METHODS,
    "quantized weights": QUANTIZED,
}
