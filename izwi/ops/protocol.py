"""The protocol of operations that models are written over. Knows no model and no backend.

A model is functions over a mapping of weights and this table. What the table hides is what a
backend must be free to fuse or to keep in place: KV writes, convolution state, attention. What
is plain arithmetic (`+`, `*`, slicing, `.reshape`, `.shape`) models write on the arrays
themselves, because torch and mlx agree on it.

Layouts: sequences are (..., tokens, channels); convolutions are (batch, channels, time), with
weights as the checkpoint has them, (out, in / groups, kernel).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from izwi.ops.protocol_audio import AudioOps

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


class Ops(AudioOps, Protocol):
    """The operations of one backend on one device in one dtype."""

    # -- making and moving -------------------------------------------------------------------
    def array(self, values: npt.ArrayLike) -> Array:
        """Copy numbers to the device: floats become the dtype of the weights, integers int64."""
        ...

    def numpy(self, x: Array) -> npt.NDArray[Any]:
        """Copy an array to the host; bfloat16 and float16 become float32."""
        ...

    def zeros(self, shape: Sequence[int]) -> Array:
        """Zeros in the dtype of the weights."""
        ...

    def arange(self, stop: int) -> Array:
        """0 .. stop - 1 as int64, made on the device."""
        ...

    def concat(self, arrays: Sequence[Array], axis: int) -> Array:
        """Join along an axis that exists."""
        ...

    def stack(self, arrays: Sequence[Array], axis: int) -> Array:
        """Join along a new axis."""
        ...

    def transpose(self, x: Array, axes: Sequence[int]) -> Array:
        """Permute all axes."""
        ...

    def take(self, x: Array, index: Array) -> Array:
        """Rows of `x` along its first axis: shape index.shape + x.shape[1:]. Embeds ids."""
        ...

    def take_columns(self, x: Array, index: Array) -> Array:
        """Columns of (batch, channels, time), each row its own: `index` is (batch, n) int64."""
        ...

    def where(self, mask: Array, x: Array, other: float) -> Array:
        """`x` where the mask, which broadcasts to it, is true; elsewhere a number."""
        ...

    def pad(self, x: Array, left: int, right: int, mode: str = "constant") -> Array:
        """Pad the last axis with zeros ("constant"), "reflect" or "replicate"."""
        ...

    def quantize(self, weight: Array) -> Array:
        """Make a (out, in) weight ready for products: in 8 or 4 bits if the backend quantizes.

        Only products (also those behind a norm) take what it returns, and no gradient goes there.
        """
        ...

    def fold_norm(self, norm: Array, weight: Array) -> tuple[Array | None, Array]:
        """Put an RMS norm's weight into the (out, in) weight behind it, if that saves time.

        Rows are then multiplied as they are, and divided by their root mean square afterwards.

        Returns:
            Both for `normed_linear`, `normed_attention` and `gated_linear`, which take a norm of
            None where the weight has it. No gradient goes through them.
        """
        ...

    # -- arithmetic --------------------------------------------------------------------------
    def linear(self, x: Array, weight: Array, bias: Array | None = None) -> Array:
        """X @ weight.T + bias over the last axis; weight is (out, in)."""
        ...

    def rms_norm(self, x: Array, weight: Array, eps: float) -> Array:
        """Normalise by the root mean square in float32, cast back, then scale."""
        ...

    def layer_norm(self, x: Array, weight: Array, bias: Array | None, eps: float) -> Array:
        """Normalise mean and variance over the last axis."""
        ...

    def swiglu(self, gate: Array, up: Array) -> Array:
        """silu(gate) * up."""
        ...

    # What a decode step is mostly made of, as operations of their own: on a GPU each is one pass
    # over its weight, and its small neighbours cost no launch.
    def normed_linear(self, x: Array, norm: Array | None, eps: float, weight: Array) -> Array:
        """rms_norm(x, norm, eps) @ weight.T; a norm of None is in the weight."""
        ...

    def linear_add(self, x: Array, weight: Array, residual: Array) -> Array:
        """Residual + x @ weight.T. The residual is given up: the sum may lie in its memory."""
        ...

    def gated_linear(self, x: Array, norm: Array | None, eps: float, weight: Array) -> Array:
        """Norm, gate and up projection, and their product.

        Args:
            x: (..., in).
            norm: (in,) weight of the RMS norm; None if it is in `weight`.
            eps: Epsilon of the norm.
            weight: (2 * inner, in), the rows of the gate first.

        Returns:
            silu(gate) * up, (..., inner).
        """
        ...

    def silu(self, x: Array) -> Array: ...
    def gelu(self, x: Array) -> Array:
        """The exact form, with erf."""
        ...

    def elu(self, x: Array) -> Array: ...
    def relu(self, x: Array) -> Array: ...
    def sigmoid(self, x: Array) -> Array: ...
    def tanh(self, x: Array) -> Array: ...
    def sqrt(self, x: Array) -> Array: ...
    def softmax(self, x: Array) -> Array:
        """Over the last axis."""
        ...

    def clip(self, x: Array, low: float | None, high: float | None) -> Array: ...
    def mean(self, x: Array, axis: int) -> Array:
        """Mean over one axis, which stays with length 1."""
        ...

    def masked_mean(self, x: Array, mask: Array) -> Array:
        """Mean over the last axis of what the mask keeps; the axis stays with length 1.

        The mask broadcasts to `x` and keeps something of every row. Sums are float32.
        """
        ...

    def sum(self, x: Array, axis: int) -> Array:
        """Sum over one axis, which goes."""
        ...

    def snake(self, x: Array, alpha: Array, beta: Array) -> Array:
        """SnakeBeta per channel: x + sin(x * exp(alpha)) ** 2 / (exp(beta) + 1e-9)."""
        ...

    def nearest(self, x: Array, codebook: Array) -> Array:
        """Index of the nearest row of `codebook` (codes, dim) for each row of `x` (..., dim).

        Euclidean distance in float32; the first index wins a tie.
        """
        ...

    # -- convolutions ------------------------------------------------------------------------
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

    def causal_conv1d(
        self,
        x: Array,
        weight: Array,
        bias: Array | None,
        state: Array,
        *,
        dilation: int = 1,
        groups: int = 1,
        snake: Snake | None = None,
    ) -> tuple[Array, Array]:
        """Convolve a stream: `state` holds the (kernel - 1) * dilation columns before `x`.

        Zeros as state are the start of a stream. With `snake`, its alpha and beta, `x` goes
        through Snake first, and the state is of what comes out. Returns the output, as long as
        `x`, and the state for the next call.
        """
        ...

    def causal_conv_transpose1d(
        self,
        x: Array,
        weight: Array,
        bias: Array | None,
        state: Array,
        *,
        stride: int,
        snake: Snake | None = None,
    ) -> tuple[Array, Array]:
        """Upsample a stream; weight is (in, out, kernel) with kernel stride or 2 * stride.

        `state` holds the input column before `x`, or no column where kernel equals stride;
        `snake` as in `causal_conv1d`. Returns (batch, out, time * stride) and the state for the
        next call.
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

    # -- attention ---------------------------------------------------------------------------
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

    def normed_attention(
        self,
        x: Array,
        norm: Array | None,
        eps: float,
        weight: Array,
        *,
        spec: AttentionSpec,
        context: AttentionContext,
        layer: int,
        q_norm: Array | None = None,
        k_norm: Array | None = None,
    ) -> Array:
        """Norm, projection to queries, keys and values, and `attention` with these.

        Args:
            x: (..., tokens, in).
            norm: (in,) weight of the RMS norm; None if it is in `weight`.
            eps: Epsilon of the norm.
            weight: ((num_heads + 2 * num_kv_heads) * head_dim, in): queries, keys, values.
            spec: As in `attention`, like what follows and what is returned.
            context: Which keys are visible.
            layer: Which layer's cache.
            q_norm: Weight of the norm over each query head.
            k_norm: The same for keys.
        """
        ...

    def window_attention(
        self,
        q: Array,
        k: Array,
        v: Array,
        *,
        spec: AttentionSpec,
        window: int,
        start: Array,
        k_state: Array,
        v_state: Array,
    ) -> tuple[Array, Array, Array]:
        """Causal attention of a stream over its last `window` positions, itself included.

        Args:
            q: (batch, tokens, num_heads * head_dim).
            k: (batch, tokens, num_kv_heads * head_dim).
            v: The same shape as `k`.
            spec: Heads, widths and rotation.
            window: Positions that a query sees.
            start: (batch,) int64, the stream position of the first token of each row.
            k_state: (batch, window - 1, num_kv_heads, head_dim), rotated keys before `start`;
                what lies before position 0 is not looked at.
            v_state: The same for values.

        Returns:
            The output and the two states for the next call.
        """
        ...
