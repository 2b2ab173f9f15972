"""The operations in MLX: Metal, and any CPU by the same code.

Arrays are lazy: an operation adds to a graph, and a copy to the host runs the graph. The engine
keeps each step in one graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from izwi.backends.mlx.attention import MlxAttention, MlxContext
from izwi.backends.mlx.audio import MlxAudioOps
from izwi.backends.mlx.conv import conv1d, conv_transpose1d
from izwi.backends.mlx.quantized import (
    MlxWeight,
    QuantizedMatrix,
    joined_matrix,
    packed_bytes,
    packed_group,
    product,
    quantized_weight,
    ready_weight,
    wide_rows,
)
from izwi.checkpoints.linear_spec import LinearForm
from izwi.ops.arithmetic import padded_columns
from izwi.ops.protocol import AttentionContext, Ops, Snake

DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}


class MlxOps(MlxAttention, MlxAudioOps, Ops):
    """Implements `izwi.ops.protocol.Ops` with MLX functions.

    Only the caches of attention contexts have side effects.
    """

    def __init__(
        self,
        dtype: mx.Dtype = mx.float32,
        weight_bits: int | None = None,
        *,
        packs: bool = True,
    ):
        """Bind the operations.

        Args:
            dtype: Dtype of activations, and of weights that are not quantized.
            weight_bits: Bits of quantized weights: 8 or 4; None does not quantize.
            packs: Whether weights that a checkpoint packs stay packed.
        """
        self.dtype, self.packs = dtype, packs
        self._weight_bits = weight_bits

    # -- making and moving -------------------------------------------------------------------
    def array(self, values: npt.ArrayLike, *, wide: bool = False) -> mx.array:
        host = np.asarray(values)
        dtype = mx.int64
        if host.dtype.kind == "f":
            dtype = mx.float32 if wide else self.dtype
        return mx.array(host, dtype=dtype)

    def numpy(self, x: mx.array) -> npt.NDArray[np.generic]:
        if x.dtype in (mx.bfloat16, mx.float16):
            x = x.astype(mx.float32)
        return np.array(x)

    def cast(self, x: mx.array, like: mx.array | None = None) -> mx.array:
        return x.astype(mx.float32 if like is None else like.dtype)

    def zeros(self, shape: Sequence[int]) -> mx.array:
        return mx.zeros(tuple(shape), dtype=self.dtype)

    def arange(self, stop: int) -> mx.array:
        return mx.arange(stop, dtype=mx.int64)

    # Any: plain arrays give one, and packed weights a packed one
    def concat(self, arrays: Sequence[Any], axis: int) -> Any:
        if not all(isinstance(array, mx.array) for array in arrays):
            return joined_matrix(arrays)
        return mx.concatenate(list(arrays), axis=axis)

    def stack(self, arrays: Sequence[mx.array], axis: int) -> mx.array:
        return mx.stack(list(arrays), axis=axis)

    def transpose(self, x: mx.array, axes: Sequence[int]) -> mx.array:
        return mx.transpose(x, tuple(axes))

    def take(self, x: mx.array | QuantizedMatrix, index: mx.array) -> mx.array:
        if isinstance(x, QuantizedMatrix):
            return wide_rows(x, index)
        return mx.take(x, index, axis=0)

    def take_columns(self, x: mx.array, index: mx.array) -> mx.array:
        batch, channels, _ = x.shape
        each = mx.broadcast_to(index[:, None], (batch, channels, index.shape[1]))
        return mx.take_along_axis(x, each, axis=2)

    def where(self, mask: mx.array, x: mx.array, other: float) -> mx.array:
        return mx.where(mask, x, mx.array(other, dtype=x.dtype))

    def pad(self, x: mx.array, left: int, right: int, mode: str = "constant") -> mx.array:
        if not left and not right:
            return x
        if mode == "constant":
            return mx.pad(x, [(0, 0)] * (x.ndim - 1) + [(left, right)])
        return mx.take(x, mx.array(padded_columns(x.shape[-1], left, right, mode)), axis=-1)

    def quantize(self, weight: MlxWeight) -> MlxWeight:
        if not isinstance(weight, mx.array):
            return weight
        if self._weight_bits is None:
            return ready_weight(weight)
        return quantized_weight(weight, self._weight_bits)

    def keeps_packed(self, form: LinearForm) -> bool:
        """Return whether a checkpoint's packed weight of this form stays packed."""
        return self.packs and packed_group(form) is not None

    def packed_bytes(self, form: LinearForm) -> int:
        """Return what a weight of this form takes, packed or widened."""
        if self.keeps_packed(form):
            return packed_bytes(form, int(self.dtype.size))
        return form.outputs * form.inputs * int(self.dtype.size)

    # -- arithmetic --------------------------------------------------------------------------
    def linear(self, x: mx.array, weight: MlxWeight, bias: mx.array | None = None) -> mx.array:
        return product(x, weight, bias)

    def rms_norm(self, x: mx.array, weight: mx.array | None, eps: float) -> mx.array:
        return mx.fast.rms_norm(x, weight, eps)

    def layer_norm(
        self, x: mx.array, weight: mx.array, bias: mx.array | None, eps: float
    ) -> mx.array:
        return mx.fast.layer_norm(x, weight, bias, eps)

    def gelu(self, x: mx.array) -> mx.array:
        return x * (1.0 + mx.erf(x * 2**-0.5)) * 0.5

    def elu(self, x: mx.array) -> mx.array:
        return mx.where(x > 0, x, mx.expm1(mx.minimum(x, 0)))

    def sigmoid(self, x: mx.array) -> mx.array:
        return mx.sigmoid(x)

    def tanh(self, x: mx.array) -> mx.array:
        return mx.tanh(x)

    def exp(self, x: mx.array) -> mx.array:
        return mx.exp(x)

    def sin(self, x: mx.array) -> mx.array:
        return mx.sin(x)

    def sqrt(self, x: mx.array) -> mx.array:
        return mx.sqrt(x)

    def softmax(self, x: mx.array) -> mx.array:
        return mx.softmax(x, axis=-1, precise=True)

    def clip(self, x: mx.array, low: float | None, high: float | None) -> mx.array:
        return mx.clip(x, low, high)

    def mean(self, x: mx.array, axis: int) -> mx.array:
        return mx.mean(x, axis=axis, keepdims=True)

    def sum(self, x: mx.array, axis: int) -> mx.array:
        return mx.sum(x, axis=axis)

    def nearest(self, x: mx.array, codebook: mx.array) -> mx.array:
        rows, codes = x.astype(mx.float32), codebook.astype(mx.float32)
        # the row's own length is the same for every code
        distances = mx.sum(codes * codes, axis=-1) - 2.0 * (rows @ codes.T)
        return mx.argmin(distances, axis=-1).astype(mx.int64)

    # -- convolutions ------------------------------------------------------------------------
    def conv1d(
        self,
        x: mx.array,
        weight: mx.array,
        bias: mx.array | None = None,
        *,
        stride: int = 1,
        dilation: int = 1,
        groups: int = 1,
    ) -> mx.array:
        return conv1d(x, weight, bias, stride=stride, dilation=dilation, groups=groups)

    def causal_conv_transpose1d(
        self,
        x: mx.array,
        weight: mx.array,
        bias: mx.array | None,
        state: mx.array,
        *,
        stride: int,
        snake: Snake | None = None,
    ) -> tuple[mx.array, mx.array]:
        x = x if snake is None else self.snake(x, *snake)
        past = state.shape[-1]
        joined = mx.concatenate([state, x], axis=-1) if past else x
        start, stop = past * stride, (past + x.shape[-1]) * stride
        out = conv_transpose1d(joined, weight, bias, stride)[..., start:stop]
        return out, joined[..., joined.shape[-1] - past :]

    def short_conv(
        self, x: mx.array, weight: mx.array, *, context: AttentionContext, layer: int
    ) -> mx.array:
        width, taps = weight.shape[1], weight.astype(mx.float32)
        y = x.astype(mx.float32) * taps[:, -1]
        before = cast(MlxContext, context).before(layer, x, width)
        for back, earlier in enumerate(before, 1):
            y = y + earlier.astype(mx.float32) * taps[:, width - 1 - back]
        return y.astype(x.dtype)
