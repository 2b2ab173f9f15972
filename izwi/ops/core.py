"""The core: the operations that every backend implements. Knows no model and no backend.

All other operations that models call are composed of these, unless a backend fuses them
(`protocol.py`). Plain arithmetic (`+`, `*`, `**`, `@`, comparisons, slicing, `.reshape`, `.shape`)
is written on the arrays themselves, because torch and mlx agree on it.

Layouts: sequences are (..., tokens, channels); convolutions are (batch, channels, time), with
weights as the checkpoint has them, (out, in / groups, kernel).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from izwi.ops.attention_spec import AttentionSpec

# A torch.Tensor or an mlx.core.array. Opaque on purpose: naming either type here would tie every
# model to one backend, and a type variable on each function would add no information.
Array: TypeAlias = Any
Weights: TypeAlias = Mapping[str, Array]
# alpha and beta of a Snake; weight and bias of a convolution.
Snake: TypeAlias = tuple[Array, Array]
Conv: TypeAlias = tuple[Array, Array]


class AttentionContext(Protocol):
    """Which keys each query sees, and where they are stored. Made by the backend, opaque to models.

    There are three: dense (no cache), scratch (a short cache of one step, for a head that loops
    inside a frame) and paged (the engine's KV pages, read through block tables).
    """


class ScratchContext(AttentionContext, Protocol):
    """A short KV cache that lives for one step."""

    def advance(self, num_tokens: int) -> None:
        """Move the position of the next call of attention by `num_tokens`."""
        ...


class CoreOps(Protocol):
    """Operations that every backend implements, on one device in one dtype."""

    # -- creating and moving -----------------------------------------------------------------
    def array(self, values: npt.ArrayLike, *, wide: bool = False) -> Array:
        """Copy numbers to the device.

        Integers become int64; floats get the dtype of the weights, or float32 if `wide`.
        """
        ...

    def numpy(self, x: Array) -> npt.NDArray[Any]:
        """Copy an array to the host; bfloat16 and float16 become float32."""
        ...

    def cast(self, x: Array, like: Array | None = None) -> Array:
        """Cast to the dtype of `like`, or to float32."""
        ...

    def concat(self, arrays: Sequence[Array], axis: int) -> Array:
        """Join along an existing axis."""
        ...

    def transpose(self, x: Array, axes: Sequence[int]) -> Array:
        """Permute all axes."""
        ...

    def take(self, x: Array, index: Array) -> Array:
        """Take rows of `x` (rows, width): (*index.shape, width). Embeds ids."""
        ...

    def where(self, mask: Array, x: Array, other: float) -> Array:
        """Return `x` where the mask, which broadcasts to it, is true, and a number elsewhere."""
        ...

    # -- arithmetic --------------------------------------------------------------------------
    def clip(self, x: Array, low: float | None, high: float | None) -> Array: ...
    def exp(self, x: Array) -> Array: ...
    def sin(self, x: Array) -> Array: ...
    def gelu(self, x: Array) -> Array:
        """Compute the exact form, with erf."""
        ...

    def softmax(self, x: Array) -> Array:
        """Compute it over the last axis."""
        ...

    def sum(self, x: Array, axis: int) -> Array:
        """Sum over one axis, which is removed."""
        ...

    def linear(self, x: Array, weight: Array, bias: Array | None = None) -> Array:
        """Compute x @ weight.T + bias over the last axis; weight is (out, in)."""
        ...

    def conv1d(
        self,
        x: Array,
        weight: Array,
        bias: Array | None = None,
        *,
        stride: int = 1,
        dilation: int = 1,
        groups: int = 1,
    ) -> Array:
        """Convolve without padding."""
        ...

    def nearest(self, x: Array, codebook: Array) -> Array:
        """Find the nearest row of `codebook` (codes, dim) for `x` (..., dim): (...) int64.

        Uses the Euclidean distance in float32; the first index wins a tie.
        """
        ...

    # -- attention and other operations over earlier positions -------------------------------
    def dense_context(
        self,
        batch: int,
        length: int,
        *,
        causal: bool = True,
        key_lengths: Array | npt.NDArray[np.int64] | None = None,
    ) -> AttentionContext:
        """Return attention without a cache over (batch, length, channels), positions from 0.

        `key_lengths` (batch,), at least 1 each, hides the keys after each row's length. If it is on
        the device, only the mask depends on its values, so that such attention can be captured.
        """
        ...

    def scratch_context(
        self, batch: int, capacity: int, num_layers: int, spec: AttentionSpec
    ) -> ScratchContext:
        """Return causal attention with an initially empty cache of `capacity` positions."""
        ...

    def attention(
        self,
        q: Array,
        k: Array,
        v: Array,
        *,
        spec: AttentionSpec,
        context: AttentionContext,
        layer: int,
        q_norm: Array | None = None,
        k_norm: Array | None = None,
    ) -> Array:
        """Normalize and rotate queries and keys, write keys and values, and attend.

        Args:
            q: (..., tokens, num_heads * head_dim), directly from its projection.
            k: (..., tokens, num_kv_heads * head_dim).
            v: The same shape as `k`.
            spec: Heads, widths and rotation.
            context: Context that determines the visible keys, and has the cache.
            layer: Index of the layer's cache.
            q_norm: (head_dim,) weight of the norm over each query head, if the model has one.
            k_norm: The same for keys.

        Returns:
            (..., tokens, num_heads * head_dim), ready for the output projection.
        """
        ...

    def short_conv(
        self, x: Array, weight: Array, *, context: AttentionContext, layer: int
    ) -> Array:
        """Compute a depthwise causal convolution over positions, zeros before 0; store its inputs.

        Args:
            x: (positions, channels), packed as for attention, or (..., length, channels) with a
                dense context.
            weight: (channels, width).
            context: The context of attention in the same step.
            layer: Index among the model's short convolutions, from 0.

        Returns:
            Like `x`: sum over j of weight[:, j] * x[p - width + 1 + j], summed in float32.
        """
        ...
