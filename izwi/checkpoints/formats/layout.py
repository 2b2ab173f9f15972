"""What a format says of a checkpoint: which tensors are one packed weight, and how to read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from izwi.checkpoints.linear_spec import Bytes, Float32, LinearForm, LinearSpec, unpack_nibbles
from izwi.checkpoints.stored_tensor import FLOATS, StoredTensor
from izwi.errors import CheckpointError

# The stored tensors of one packed weight, by what follows the layer's name: ".qweight", ...
Parts = Mapping[str, StoredTensor]
_SCALES = tuple(sorted(FLOATS))


class Layout(Protocol):
    """How a checkpoint stores the packed weights of its linear layers.

    Attributes:
        title: For people: "GPTQ, 4 bits in groups of 128".
        codes: What follows a layer's name in the name of its codes, which are no plain floats.
        suffixes: What follows it in the names of all of its tensors.
        unused: What follows it in those that serve other engines, such as scales of activations.
    """

    @property
    def title(self) -> str: ...
    @property
    def codes(self) -> tuple[str, ...]: ...
    @property
    def suffixes(self) -> tuple[str, ...]: ...
    @property
    def unused(self) -> tuple[str, ...]: ...

    def form(self, shape: tuple[int, int], parts: Parts) -> LinearForm:
        """Return the form of a weight from shapes and dtypes alone.

        Args:
            shape: (outputs, inputs), as the model expects.
            parts: The layer's tensors.

        Raises:
            CheckpointError: A tensor is missing, or of another shape or type; it is named.
        """
        ...

    def read(self, shape: tuple[int, int], parts: Parts) -> LinearSpec:
        """Read a weight; arguments and errors as of `form`."""
        ...


def part(parts: Parts, suffix: str) -> StoredTensor:
    """Return a tensor of a layer. Raises CheckpointError if it is missing."""
    if suffix not in parts:
        codes = next(iter(parts.values()))
        raise CheckpointError(f"{codes.path}: {codes.name!r} has no tensor {suffix!r} beside it")
    return parts[suffix]


def bits_of(codes: StoredTensor, packed: int, inputs: int, *supported: int) -> int:
    """Return the bits of codes packed into 32-bit words along an axis.

    Args:
        codes: The tensor.
        packed: Its length along that axis.
        inputs: Codes along it.
        supported: Bits that can be read.

    Raises:
        CheckpointError: Another number.
    """
    bits = packed * 32 / inputs
    if bits not in supported:
        allowed = " or ".join(map(str, supported))
        raise CheckpointError(
            f"{codes.path}: tensor {codes.name!r} is {codes.shape}: {bits:g} bits for each of "
            f"{inputs} inputs; {allowed} are supported"
        )
    return int(bits)


def group_of_scales(scales: StoredTensor, num_groups: int, inputs: int) -> int:
    """Return the inputs of each of some groups; raises CheckpointError if they are not equal."""
    if num_groups < 1 or inputs % num_groups:
        raise CheckpointError(
            f"{scales.path}: tensor {scales.name!r} is {scales.shape}: its {num_groups} groups do "
            f"not divide {inputs} inputs"
        )
    return inputs // num_groups


def require_scales(tensor: StoredTensor, shape: tuple[int, ...]) -> None:
    """Check that a tensor has floats of this shape. Raises CheckpointError."""
    tensor.require(shape, *_SCALES)


def floats(tensor: StoredTensor) -> Float32:
    """Read a tensor of floats as float32."""
    return np.array(tensor.array(), np.float32)


def words_as_codes(words: npt.NDArray[Any], bits: int) -> Bytes:
    """Return the codes of 32-bit words (..., n), lowest bits first: (..., n * 32 / bits)."""
    parts = np.ascontiguousarray(words).view(np.uint8)
    return unpack_nibbles(parts) if bits == 4 else parts


def common_zero(zeros: Bytes) -> int | None:
    """Return the zero that all groups have, or None."""
    first = int(zeros.flat[0])
    return first if (zeros == first).all() else None


def group_order(order: StoredTensor | None, form: LinearForm) -> npt.NDArray[np.int64] | None:
    """Return the group of each input, (inputs,), or None if groups are adjacent inputs.

    Args:
        order: What the checkpoint says of it, (inputs,), if it does.
        form: Of the weight.

    Raises:
        CheckpointError: It names groups that do not exist.
    """
    if order is None:
        return None
    groups = order.array().astype(np.int64)
    if groups.min(initial=0) < 0 or groups.max(initial=0) >= form.num_groups:
        raise CheckpointError(
            f"{order.path}: tensor {order.name!r} names groups that do not "
            f"exist: there are {form.num_groups}"
        )
    adjacent = np.arange(form.inputs) // form.group
    return None if np.array_equal(groups, adjacent) else groups
