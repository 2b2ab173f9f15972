"""A GGUF file: its metadata and tensors, through the reader of the package `gguf`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from izwi.checkpoints.formats.gguf_blocks import BLOCK_FORMATS, BlockFormat
from izwi.checkpoints.linear_spec import Float32, LinearForm, LinearSpec
from izwi.checkpoints.stored_tensor import widened_bfloat16
from izwi.errors import CheckpointError

_FLOATS = ("F32", "F16", "BF16")


@dataclass(frozen=True, slots=True, eq=False)
class GgufTensor:
    """One tensor.

    Attributes:
        path: The file.
        name: Its name in the file.
        kind: How it is stored: "F32", "Q4_K", ...
        shape: Its shape, as in other checkpoints: (outputs, inputs).
        data: Its mapped bytes or floats.
    """

    path: Path
    name: str
    kind: str
    shape: tuple[int, ...]
    data: npt.NDArray[Any]

    @property
    def is_float(self) -> bool:
        """Whether it holds plain numbers."""
        return self.kind in _FLOATS

    def numbers(self) -> Float32:
        """Read a tensor of plain numbers as float32."""
        stored = self.data
        if self.kind == "BF16":
            stored = widened_bfloat16(np.ascontiguousarray(stored).view(np.uint16))
        return np.array(stored, np.float32).reshape(self.shape)

    def form(self) -> LinearForm:
        """Return the form of a packed weight. Raises CheckpointError."""
        return self._format().form(*self._matrix())

    def read(self) -> LinearSpec:
        """Read a packed weight. Raises CheckpointError."""
        outputs, _ = self._matrix()
        return self._format().read(self.data.reshape(outputs, -1))

    def _matrix(self) -> tuple[int, int]:
        if len(self.shape) != 2:
            raise CheckpointError(
                f"{self.path}: tensor {self.name!r} is {self.kind} and {self.shape}: only matrices "
                "can be packed"
            )
        return self.shape[0], self.shape[1]

    def _format(self) -> BlockFormat:
        if self.kind not in BLOCK_FORMATS:
            raise CheckpointError(
                f"{self.path}: tensor {self.name!r} has the type {self.kind}, which is not "
                f"supported: {', '.join((*_FLOATS, *BLOCK_FORMATS))} are"
            )
        return BLOCK_FORMATS[self.kind]


@dataclass(frozen=True, slots=True, eq=False)
class GgufFile:
    """A file.

    Attributes:
        path: The file.
        metadata: Values by key: numbers, texts and lists.
        tensors: Tensors by name.
    """

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]

    def get(self, key: str, kind: type | tuple[type, ...]) -> Any:
        """Return a value of the metadata.

        Raises:
            CheckpointError: It is missing, or of another type.
        """
        value = self.metadata.get(key)
        if value is None:
            raise CheckpointError(f"{self.path} lacks the key {key!r}")
        if not isinstance(value, kind) or isinstance(value, bool):
            raise CheckpointError(f"{self.path}: {key} has the value {value!r:.80}")
        return value

    @property
    def title(self) -> str:
        """The kinds of its packed tensors, those with most numbers first: "GGUF, Q4_K, Q6_K"."""
        counts: dict[str, int] = {}
        for tensor in self.tensors.values():
            if len(tensor.shape) == 2:
                counts[tensor.kind] = counts.get(tensor.kind, 0) + int(np.prod(tensor.shape))
        return ", ".join(["GGUF", *sorted(counts, key=lambda kind: -counts[kind])])


# What the package's reader raises for a broken file: it has no errors of its own.
_BROKEN = (ValueError, KeyError, IndexError, OverflowError, TypeError, RecursionError)


def _reader_of(path: Path) -> Any:
    """Open the package's reader, which itself does not notice the end of a file."""
    from gguf import GGUFReader

    class BoundedReader(GGUFReader):  # type: ignore[misc]
        def _get(self, offset: int, dtype: Any, count: int = 1, *rest: Any, **more: Any) -> Any:
            end = int(offset) + np.dtype(dtype).itemsize * int(count)
            if end > len(self.data):  # a length that is not true would be followed for ever
                raise IndexError(f"{end} bytes are needed, there are {len(self.data)}")
            return super()._get(offset, dtype, count, *rest, **more)

    return BoundedReader(path)


def read_gguf(path: Path, *, only: tuple[str, ...] = ()) -> GgufFile:
    """Open a GGUF file.

    Args:
        path: The file.
        only: Prefixes of the keys to read of the metadata; none: all.

    Raises:
        CheckpointError: The package is missing, or the file is no GGUF file, or it is cut off, or
            one part of several; it is named.
    """
    if find_spec("gguf") is None:
        raise CheckpointError(f"{path}: GGUF files need the package gguf: pip install 'izwi[gguf]'")
    try:
        reader = _reader_of(path)
        metadata = {
            name: field.contents()
            for name, field in reader.fields.items()
            if not only or name.startswith(only)
        }
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    except _BROKEN as error:
        raise CheckpointError(f"{path} is not a GGUF file, or it is cut off: {error}") from error
    if int(metadata.get("split.count", 1)) > 1:
        raise CheckpointError(
            f"{path} is one of several parts; join them with llama-gguf-split --merge"
        )
    tensors = {
        tensor.name: GgufTensor(
            path,
            tensor.name,
            tensor.tensor_type.name,
            tuple(int(size) for size in reversed(tensor.shape.tolist())),
            tensor.data,
        )
        for tensor in reader.tensors
    }
    return GgufFile(path, metadata, tensors)
