"""A result that stayed on the GPU: to be read later, or handed to another session without passing the host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..dtypes import DType
from ..errors import Closed, InvalidInput
from .buffers import GpuBuffer

if TYPE_CHECKING:
    from .session import Session


class DeviceTensor:
    """An output of the session's last run. The next run, reset or close of that session ends it; so does the release of
    its plan, if no other plan has its buffer."""

    __slots__ = ("_generation", "_owners", "buffer", "dtype", "session", "shape")

    def __init__(
        self, session: Session, buffer: GpuBuffer, dtype: DType, shape: tuple[int, ...], generation: int
    ) -> None:
        self.session, self.buffer, self.dtype, self.shape = session, buffer, dtype, shape
        self._generation, self._owners = generation, buffer.owners

    def __repr__(self) -> str:
        return f"<DeviceTensor {self.dtype.value}{list(self.shape)} on {self.session.device.target.name}>"

    @property
    def nbytes(self) -> int:
        n = self.dtype.size
        for d in self.shape:
            n *= d
        return n

    def check_fresh(self) -> None:
        """Raise unless the bytes are still those of the run that made them."""
        if self.session.closed:
            raise Closed("the session of this device tensor is closed")
        if (self._generation, self._owners) != (self.session.generation, self.buffer.owners):
            raise InvalidInput("this device tensor is from an earlier run: read it or pass it on before the next one")

    def numpy(self) -> np.ndarray:
        """Read the values back into a fresh array."""
        with self.session.device.lock:
            self.check_fresh()
            self.session.flush()
            if not self.nbytes:
                return np.empty(self.shape, self.dtype.numpy)
            data = self.session.device.read(self.buffer, (self.nbytes + 3) & ~3)
            return np.ndarray(self.shape, self.dtype.numpy, data)
