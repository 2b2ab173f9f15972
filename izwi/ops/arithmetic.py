"""Arithmetic that is composed of the core, unless a backend has a faster implementation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from izwi.ops.core import Array, CoreOps
from izwi.ops.ranks import ALONE, Ranks


class ArithmeticOps(CoreOps, Protocol):
    """Creation of arrays, norms, activations, means, and products fused with neighbours."""

    ranks: Ranks = ALONE  # that share the models of this backend

    # -- creating and moving -----------------------------------------------------------------
    def zeros(self, shape: Sequence[int]) -> Array:
        """Return zeros in the dtype of the weights."""
        return self.array(np.zeros(tuple(shape)))

    def arange(self, stop: int) -> Array:
        """Return 0 .. stop - 1 as int64. A backend that captures steps does it on the device."""
        return self.array(np.arange(stop))

    def stack(self, arrays: Sequence[Array], axis: int) -> Array:
        """Join along a new axis."""
        shape = list(arrays[0].shape)
        axis %= len(shape) + 1
        shape.insert(axis, 1)
        return self.concat([one.reshape(shape) for one in arrays], axis)

    def pad(self, x: Array, left: int, right: int, mode: str = "constant") -> Array:
        """Pad the last axis with zeros ("constant"), "reflect" or "replicate"."""
        if mode == "constant":
            ends = (self.cast(self.zeros((*x.shape[:-1], width)), x) for width in (left, right))
            before, after = ends
            return self.concat([before, x, after], -1)
        at = padded_columns(x.shape[-1], left, right, mode)
        columns = self.transpose(x.reshape(-1, x.shape[-1]), (1, 0))
        padded = self.transpose(self.take(columns, self.array(at)), (1, 0))
        return padded.reshape(*x.shape[:-1], len(at))

    def take_columns(self, x: Array, index: Array) -> Array:
        """Take columns of (batch, channels, time) for each row: `index` is (batch, n) int64."""
        batch, channels, columns = x.shape
        rows = self.transpose(x, (0, 2, 1)).reshape(batch * columns, channels)
        first = self.array(np.arange(batch)[:, None] * columns)
        return self.transpose(self.take(rows, index + first), (0, 2, 1))

    def quantize(self, weight: Array) -> Array:
        """Prepare a (out, in) weight for products: quantized to 8 or 4 bits if the backend does so.

        The result is only for products (also after a norm), and has no gradient.
        """
        return weight

    def fold_norm(self, norm: Array, weight: Array) -> tuple[Array | None, Array]:
        """Multiply an RMS norm's weight into the (out, in) weight after it, if that saves time.

        Rows are then multiplied without scaling, and divided by their root mean square afterwards.

        Returns:
            Both for `normed_linear`, `normed_attention` and `gated_linear`, which accept None as
            norm if its weight is included. They have no gradient.
        """
        return norm, weight

    # -- norms -------------------------------------------------------------------------------
    def rms_norm(self, x: Array, weight: Array | None, eps: float) -> Array:
        """Normalize by the root mean square in float32, cast back, then scale."""
        wide = self.cast(x)
        normed = self.cast(wide * (self.mean(wide * wide, -1) + eps) ** -0.5, x)
        return normed if weight is None else normed * weight

    def layer_norm(self, x: Array, weight: Array, bias: Array | None, eps: float) -> Array:
        """Normalize mean and variance over the last axis, in float32."""
        wide = self.cast(x)
        centred = wide - self.mean(wide, -1)
        scaled = centred * (self.mean(centred * centred, -1) + eps) ** -0.5 * self.cast(weight)
        return self.cast(scaled if bias is None else scaled + self.cast(bias), x)

    # -- products ---------------------------------------------------------------------------- Most
    # of a decode step, as separate operations: on a GPU each is one pass over its weight, and the
    # fused neighbours cost no launch.
    def normed_linear(self, x: Array, norm: Array | None, eps: float, weight: Array) -> Array:
        """Compute rms_norm(x, norm, eps) @ weight.T; with None, the weight includes the norm."""
        return self.linear(self.rms_norm(x, norm, eps), weight)

    def linear_add(self, x: Array, weight: Array, residual: Array) -> Array:
        """Compute residual + x @ weight.T. The sum may overwrite the residual."""
        return residual + self.linear(x, weight)

    def split_linear_add(self, x: Array, weight: Array, residual: Array) -> Array:
        """Compute `linear_add` with inputs that are split over the ranks.

        Args:
            x: (..., part of in), this rank's.
            weight: (out, part of in).
            residual: (..., out), the same on all ranks; the sum may overwrite it.
        """
        if self.ranks.index == 0:  # the residual is added once, where that costs no pass of its own
            return self.ranks.all_reduce(self.linear_add(x, weight, residual))
        return self.ranks.all_reduce(self.linear(x, weight))

    def gated_linear(self, x: Array, norm: Array | None, eps: float, weight: Array) -> Array:
        """Compute norm, gate and up projection, and their product.

        Args:
            x: (..., in).
            norm: (in,) weight of the RMS norm; None if it is in `weight`.
            eps: Epsilon of the norm.
            weight: (2 * inner, in), the rows of the gate first.

        Returns:
            silu(gate) * up, (..., inner).
        """
        both = self.normed_linear(x, norm, eps, weight)
        inner = both.shape[-1] // 2
        return self.swiglu(both[..., :inner], both[..., inner:])

    # -- activations -------------------------------------------------------------------------
    def swiglu(self, gate: Array, up: Array) -> Array:
        """Compute silu(gate) * up."""
        return self.silu(gate) * up

    def silu(self, x: Array) -> Array:
        return x * self.sigmoid(x)

    def gelu_tanh(self, x: Array) -> Array:
        """Compute the approximation of `gelu` with tanh, in float32."""
        wide = self.cast(x)
        inner = (wide + 0.044715 * wide * wide * wide) * (2.0 / math.pi) ** 0.5
        return self.cast(0.5 * wide * (1.0 + self.tanh(inner)), x)

    def elu(self, x: Array) -> Array:
        return self.relu(x) + self.exp(self.clip(x, None, 0.0)) - 1.0

    def relu(self, x: Array) -> Array:
        return self.clip(x, 0.0, None)

    def sigmoid(self, x: Array) -> Array:
        return 1.0 / (1.0 + self.exp(-x))

    def tanh(self, x: Array) -> Array:
        return 2.0 * self.sigmoid(2.0 * x) - 1.0

    def sqrt(self, x: Array) -> Array:
        return x**0.5

    # -- means -------------------------------------------------------------------------------
    def mean(self, x: Array, axis: int) -> Array:
        """Average over one axis, which stays with length 1."""
        shape = list(x.shape)
        count, shape[axis] = shape[axis], 1
        return self.sum(x, axis).reshape(shape) / count

    def masked_mean(self, x: Array, mask: Array) -> Array:
        """Average the masked values over the last axis, which stays with length 1.

        The mask broadcasts to `x` and must select a value in each row. Sums are float32.
        """
        total = self.sum(self.cast(self.where(mask, x, 0.0)), -1)
        mean = self.cast(total / self.sum(self.cast(mask), -1), x)
        return mean.reshape(*mean.shape, 1)


def padded_columns(length: int, left: int, right: int, mode: str) -> npt.NDArray[Any]:
    """Return the column at each index of a padded row.

    Args:
        length: Columns of the row.
        left: Columns added before it.
        right: Columns added after it.
        mode: "replicate", or "reflect", which does not repeat the ends.
    """
    at, last = np.arange(-left, length + right), length - 1
    return at.clip(0, last) if mode == "replicate" else last - np.abs(last - np.abs(at))
