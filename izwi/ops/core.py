"""The core: the operations that every backend implements. Knows no model and no backend.

Everything else that models call is composed of these, until a backend fuses it (`protocol.py`).
What is plain arithmetic (`+`, `*`, `**`, `@`, comparisons, slicing, `.reshape`, `.shape`) is
written on the arrays themselves, because torch and mlx agree on it.

Layouts: sequences are (..., tokens, channels); convolutions are (batch, channels, time), with
weights as the checkpoint has them, (out, in / groups, kernel).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

# A torch.Tensor or an mlx.core.array. Opaque on purpose: naming either type here would tie every
# model to one backend, and a type variable on each function would say nothing more.
Array: TypeAlias = Any
Weights: TypeAlias = Mapping[str, Array]
# alpha and beta of a Snake; weight and bias of a convolution.
Snake: TypeAlias = tuple[Array, Array]
Conv: TypeAlias = tuple[Array, Array]


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """What one attention layer computes, apart from its weights.

    Attributes:
        num_heads: Query heads.
        num_kv_heads: Key and value heads; queries share them in consecutive groups.
        head_dim: Width of one head. Scores are scaled by head_dim ** -0.5.
        rope_theta: Base of the rotary embedding (half-rotation layout), or None for no rotation.
        norm_eps: Epsilon of the RMS norm over each query and key head, where there is one.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float | None
    norm_eps: float = 1e-6


class AttentionContext(Protocol):
    """Which keys each query sees and where they are kept. Made by the backend, opaque to models.

    There are three: dense (no cache), scratch (a short cache of one step, for a head that loops
    inside a frame) and paged (the engine's KV pages, read through block tables).
    """


class ScratchContext(AttentionContext, Protocol):
    """A short KV cache that lives for one step."""

    def advance(self, num_tokens: int) -> None:
        """Say that the next call of attention starts `num_tokens` later."""
        ...


class CoreOps(Protocol):
    """What a backend cannot do without, on one device in one dtype."""

    # -- making and moving -------------------------------------------------------------------
    def array(self, values: npt.ArrayLike, *, wide: bool = False) -> Array:
        """Copy numbers to the device.

        Integers become int64, floats the dtype of the weights, or float32 where it is `wide`.
        """
        ...

    def numpy(self, x: Array) -> npt.NDArray[Any]:
        """Copy an array to the host; bfloat16 and float16 become float32."""
        ...

    def cast(self, x: Array, like: Array | None = None) -> Array:
        """The same numbers in the dtype of `like`, or in float32."""
        ...

    def concat(self, arrays: Sequence[Array], axis: int) -> Array:
        """Join along an axis that exists."""
        ...

    def transpose(self, x: Array, axes: Sequence[int]) -> Array:
        """Permute all axes."""
        ...

    def take(self, x: Array, index: Array) -> Array:
        """Rows of `x` (rows, width): shape (*index.shape, width). Embeds ids."""
        ...

    def where(self, mask: Array, x: Array, other: float) -> Array:
        """`x` where the mask, which broadcasts to it, is true; elsewhere a number."""
        ...

    # -- arithmetic --------------------------------------------------------------------------
    def clip(self, x: Array, low: float | None, high: float | None) -> Array: ...
    def exp(self, x: Array) -> Array: ...
    def sin(self, x: Array) -> Array: ...
    def gelu(self, x: Array) -> Array:
        """The exact form, with erf."""
        ...

    def softmax(self, x: Array) -> Array:
        """Over the last axis."""
        ...

    def sum(self, x: Array, axis: int) -> Array:
        """Sum over one axis, which goes."""
        ...

    def linear(self, x: Array, weight: Array, bias: Array | None = None) -> Array:
        """X @ weight.T + bias over the last axis; weight is (out, in)."""
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
        """Plain convolution without padding."""
        ...

    def nearest(self, x: Array, codebook: Array) -> Array:
        """Index of the nearest row of `codebook` (codes, dim) for each row of `x` (..., dim).

        Euclidean distance in float32; the first index wins a tie.
        """
        ...

    # -- attention, and what else sees earlier positions -------------------------------------
    def dense_context(
        self,
        batch: int,
        length: int,
        *,
        causal: bool = True,
        key_lengths: Array | npt.NDArray[np.int64] | None = None,
    ) -> AttentionContext:
        """Attention without a cache over (batch, length, channels), positions from 0.

        `key_lengths` (batch,) hides the keys past each row's length, which is at least 1. Where it
        is on the device, nothing else depends on its values: such attention can be recorded.
        """
        ...

    def scratch_context(
        self, batch: int, capacity: int, num_layers: int, spec: AttentionSpec
    ) -> ScratchContext:
        """Causal attention with a cache of `capacity` positions, empty at first."""
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
        """Normalise and rotate queries and keys, write keys and values, attend.

        Args:
            q: (..., tokens, num_heads * head_dim), straight from its projection.
            k: (..., tokens, num_kv_heads * head_dim).
            v: The same shape as `k`.
            spec: Heads, widths and rotation.
            context: Which keys are visible, and the cache that is read and written.
            layer: Which layer's cache.
            q_norm: (head_dim,) weight of the norm over each query head, if the model has one.
            k_norm: The same for keys.

        Returns:
            (..., tokens, num_heads * head_dim), ready for the output projection.
        """
        ...

    def short_conv(
        self, x: Array, weight: Array, *, context: AttentionContext, layer: int
    ) -> Array:
        """Depthwise causal convolution over positions, zeros before the first; keeps its inputs.

        Args:
            x: (positions, channels), packed as attention has them, or (..., length, channels) with
                a dense context.
            weight: (channels, width).
            context: That of attention in the same step.
            layer: Which of the model's short convolutions, counted from 0.

        Returns:
            Like `x`: sum over j of weight[:, j] * x[p - width + 1 + j], summed in float32.
        """
        ...
