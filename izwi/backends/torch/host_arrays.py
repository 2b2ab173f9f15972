"""Operations on arrays in the host's memory that numpy computes faster than torch.

For a few rows an operation's time is mostly its dispatch, which costs numpy a third of what it
costs torch. Each result is elementwise or sums within a row, so that a row's bits do not depend on
the other rows (ADR 5). None has a gradient.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Floats = npt.NDArray[np.float32]


def is_host_array(x: Tensor) -> bool:
    """Return whether numpy may compute with an array in place of torch."""
    if type(x) is not Tensor:  # a subclass may have no values
        return False
    return x.dtype == torch.float32 and x.device.type == "cpu" and not torch.is_grad_enabled()


def normed(x: Floats, weight: Floats | None, eps: float) -> Floats:
    """Divide by the root mean square of the last axis, then scale.

    Args:
        x: (..., width).
        weight: Broadcasts to `x`, or None.
        eps: Added to the mean square.

    Returns:
        An array like `x`, in C order, in which sums are pairwise within a row.
    """
    out = np.multiply(x, x, order="C")
    mean = np.add.reduce(out, -1, keepdims=True)
    mean *= np.float32(1.0 / x.shape[-1])
    mean += np.float32(eps)
    np.sqrt(mean, out=mean)
    np.divide(x, mean, out=out)
    if weight is not None:
        out *= weight
    return out


def rotated(x: Floats, cos: Floats, sin: Floats) -> Floats:
    """Rotate (..., tokens, heads, head_dim): the first half of a head pairs with the second.

    Args:
        x: Queries or keys.
        cos: Broadcasts to half of each head.
        sin: The same shape.
    """
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    out = np.empty(x.shape, np.float32)
    np.subtract(first * cos, second * sin, out=out[..., :half])
    np.add(second * cos, first * sin, out=out[..., half:])
    return out


def padded_rows(x: Floats, multiple: int) -> Floats:
    """Append rows of zeros to (rows, ...) up to a multiple."""
    rows = x.shape[0]
    out = np.zeros((-(-rows // multiple) * multiple, *x.shape[1:]), np.float32)
    out[:rows] = x
    return out
