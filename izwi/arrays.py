"""Names of the array types that requests and their output hold."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

Float32 = npt.NDArray[np.float32]
Int64 = npt.NDArray[np.int64]


@runtime_checkable
class Samples(Protocol):
    """(n,) float32 mono, read in parts: an array, or audio that is not in memory."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> Float32: ...
