"""How a program is loaded: `LoadOptions`, checked once, where they are made."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import InvalidInput
from ..gpu import Device, Engine, check_engine, open_device
from ..limits import Limits
from ..plan.target import Cache, Precision, Target, check_cache, check_precision
from ..progress import Progress, silent


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Where a program runs, how exactly, and what it may take. See `ptegpu.load`."""

    device: str | int | Device = "auto"  # "auto", an adapter's index, part of its name, or a device that is open
    engine: Engine = "auto"  # what drives the device: "wgpu", "dawn"
    precision: Precision = "auto"  # whether products may round to f16: "exact", "fast"
    cache: Cache = "f32"  # how key-value caches are stored: "f16"
    limits: Limits | None = None  # None: the defaults
    progress: Progress = silent  # perhaps called from another thread

    def __post_init__(self) -> None:
        """Raise InvalidInput for the first option with a wrong value."""
        if not isinstance(self.device, str | int | Device):
            raise InvalidInput(f'device is "auto", an index or part of a name, not {type(self.device).__name__}')
        if self.limits is not None and not isinstance(self.limits, Limits):
            raise InvalidInput(f"limits are ptegpu.Limits(…), not {type(self.limits).__name__}")
        if not callable(self.progress):
            raise InvalidInput(f"progress is a function of (phase, done, of), not {type(self.progress).__name__}")
        check_engine(self.engine)
        check_precision(self.precision)
        check_cache(self.cache)

    def open(self) -> tuple[Device, Target]:
        """Open the device; return it and what to plan for."""
        device = self.device if isinstance(self.device, Device) else open_device(self.device, engine=self.engine)
        return device, replace(device.target, precision=self.precision, cache=self.cache)
