"""A tensor of a safetensors file as stored, read without an array library's dtypes."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from izwi.errors import CheckpointError

# What numpy reads; bfloat16 becomes float32, and 8-bit floats stay codes.
_DTYPES = {
    "U8": "u1", "I8": "i1", "F8_E4M3": "u1", "I16": "<i2", "U16": "<u2", "F16": "<f2",
    "BF16": "<u2", "I32": "<i4", "U32": "<u4", "F32": "<f4", "I64": "<i8", "F64": "<f8",
}  # fmt: skip
# Those of published checkpoints have less than 2 MiB; a parsed one takes ten times as much memory.
_MOST_HEADER_BYTES = 16 << 20
FLOATS = frozenset({"F16", "BF16", "F32", "F64"})


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a file, not read yet.

    Attributes:
        name: Its name in the file.
        path: The file.
        dtype: Its dtype as safetensors name it: "F8_E4M3", "I32", ...
        shape: Its shape.
        start: Where it begins in the file, in bytes.
    """

    name: str
    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int

    @property
    def is_float(self) -> bool:
        """Whether it holds plain numbers of 16 bits or more."""
        return self.dtype in FLOATS

    @property
    def num_values(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)

    def array(self) -> npt.NDArray[Any]:
        """Map the tensor, read-only; bfloat16 becomes float32, and 8-bit floats their codes."""
        if self.dtype not in _DTYPES:
            raise CheckpointError(f"{self.path}: tensor {self.name!r} has the type {self.dtype}")
        dtype = np.dtype(_DTYPES[self.dtype])
        if 0 in self.shape:
            return np.zeros(self.shape, dtype)
        mapped = np.memmap(self.path, dtype, "r", self.start, self.shape)
        return widened_bfloat16(mapped) if self.dtype == "BF16" else np.asarray(mapped)

    def require(self, shape: tuple[int, ...], *dtypes: str) -> None:
        """Check shape and dtype.

        Raises:
            CheckpointError: One of them is another; the message has both.
        """
        if self.shape != shape:
            raise CheckpointError(
                f"{self.path}: tensor {self.name!r} is {self.shape}, expected {shape}"
            )
        if dtypes and self.dtype not in dtypes:
            expected = " or ".join(dtypes)
            raise CheckpointError(
                f"{self.path}: tensor {self.name!r} is {self.dtype}, expected {expected}"
            )


def widened_bfloat16(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """Return the numbers of bfloat16 bits, exactly."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def stored_tensors(path: Path) -> Iterator[StoredTensor]:
    """List the tensors of a safetensors file.

    Raises:
        CheckpointError: It is not one, or it is cut off; it is named.
    """
    try:
        with path.open("rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            if size > _MOST_HEADER_BYTES:
                raise ValueError(f"its header has {size} bytes, at most {_MOST_HEADER_BYTES} may")
            with safe_open(path, framework="numpy"):  # which checks offsets and the file's size
                pass
            header = json.loads(file.read(size))
    except (SafetensorError, OSError, ValueError, struct.error) as error:
        raise CheckpointError(f"{path} is not a safetensors file: {error}") from error
    for name, entry in header.items():
        if name != "__metadata__":
            start = 8 + size + int(entry["data_offsets"][0])
            yield StoredTensor(name, path, str(entry["dtype"]), tuple(entry["shape"]), start)
