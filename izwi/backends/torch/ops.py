"""The operations in plain torch: CPU, CUDA and Metal (MPS) by the same code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own name for it)
from torch import Tensor

from izwi.backends.torch.attention.dense import (
    DenseContext,
    ScratchCache,
    TorchContext,
    WindowView,
    attend,
    rotate,
    split_heads,
)
from izwi.backends.torch.audio import TorchAudioOps
from izwi.backends.torch.conv import conv1d, conv_transpose1d, linear_in_fours
from izwi.backends.torch.grouped import (
    GroupedWeight,
    JoinedWeight,
    Weight,
    joined_weight,
    widen,
)
from izwi.backends.torch.host_arrays import is_host_array, normed
from izwi.backends.torch.host_frames import HostFrames
from izwi.backends.torch.quantized import quantized_dtype, quantized_weight
from izwi.backends.torch.row_blocks import linear_by_rows, row_multiple
from izwi.backends.torch.transfer import to_device
from izwi.checkpoints.linear_spec import LinearForm
from izwi.config import ATTENTIONS, require_one_of
from izwi.errors import InvalidRequest
from izwi.ops.frames import FrameStack
from izwi.ops.protocol import AttentionContext, AttentionSpec, Ops, Snake


class TorchOps(TorchAudioOps, Ops):
    """Implements `izwi.ops.protocol.Ops` with torch functions.

    All operations are differentiable and, except for the caches of attention contexts, free of side
    effects, so that the training recipes of the embedded checkpoints run the same models.
    """

    captures = False  # whether steps can be captured as graphs
    attentions: tuple[str, ...] = ("torch",)  # those that need no more packages, the default first

    def __init__(
        self,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        weights: str = "auto",
        attention: str = "auto",
    ):
        """Bind the operations.

        Args:
            device: Device of the arrays.
            dtype: Dtype of activations, and of weights that are not quantized.
            weights: Storage of quantized weights: one of WEIGHTS; "auto" quantizes nothing, but
                keeps what checkpoints pack, and "float" widens that, too.
            attention: Attention of the decoders: one of ATTENTIONS.

        Raises:
            InvalidRequest: `weights` or `attention` is unknown, or unavailable on this device.
        """
        self.device = torch.device(device)
        self.dtype = dtype
        self._quantized_dtype = quantized_dtype(weights, self.device)
        self.packs = weights != "float"  # whether weights that a checkpoint packs may stay so
        self.attends_with = _choose_attention(attention, self.available_attentions())
        self._last_view: WindowView | None = None
        self._host_frames = HostFrames()
        self._block_sizes: set[tuple[int, int]] = set()  # of packed weights, see `try_products`

    @property
    def reads_tables(self) -> bool:
        """Whether decoders attend with kernels that find pages through tables on the device."""
        return self.attends_with != "torch"

    def available_attentions(self) -> tuple[str, ...]:
        """List the implementations of attention that run on this device, the default first."""
        return self.attentions

    @contextmanager
    def own_stream(self) -> Iterator[None]:
        """Run this thread's launches on a stream of its own, concurrent to other work."""
        if self.device.type != "cuda":
            yield
            return
        torch.cuda.synchronize(self.device)  # the weights were written from another stream
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            yield

    # -- making and moving -------------------------------------------------------------------
    def array(self, values: npt.ArrayLike, *, wide: bool = False) -> Tensor:
        host = np.asarray(values)
        dtype = torch.int64
        if host.dtype.kind == "f":
            dtype = torch.float32 if wide else self.dtype
        return to_device(torch.tensor(host, dtype=dtype), self.device)

    def numpy(self, x: Tensor) -> npt.NDArray[np.generic]:
        if x.dtype in (torch.bfloat16, torch.float16):
            x = x.float()
        return x.detach().cpu().numpy()

    def cast(self, x: Tensor, like: Tensor | None = None) -> Tensor:
        return x.to(torch.float32 if like is None else like.dtype)

    def zeros(self, shape: Sequence[int]) -> Tensor:
        return torch.zeros(tuple(shape), dtype=self.dtype, device=self.device)

    def arange(self, stop: int) -> Tensor:
        return torch.arange(stop, device=self.device)

    # Any: plain arrays give one, and packed weights a packed one
    def concat(self, arrays: Sequence[Any], axis: int) -> Any:
        if all(isinstance(array, Tensor) for array in arrays):
            return torch.cat(list(arrays), dim=axis)
        return joined_weight(arrays)  # along the outputs

    def stack(self, arrays: Sequence[Tensor], axis: int) -> Tensor:
        return torch.stack(list(arrays), dim=axis)

    def transpose(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        return x.permute(tuple(axes))

    def take(self, x: Tensor | GroupedWeight, index: Tensor) -> Tensor:
        if isinstance(x, GroupedWeight):
            return x.rows(index).wide(self.dtype)
        return F.embedding(index, x)

    def take_columns(self, x: Tensor, index: Tensor) -> Tensor:
        return x.gather(2, index[:, None].expand(-1, x.shape[1], -1))

    def where(self, mask: Tensor, x: Tensor, other: float) -> Tensor:
        return x.masked_fill(~mask, other)  # torch.where would copy the number from the host

    def pad(self, x: Tensor, left: int, right: int, mode: str = "constant") -> Tensor:
        return F.pad(x, (left, right), mode=mode)

    def quantize(self, weight: Weight) -> Weight:
        if isinstance(weight, GroupedWeight | JoinedWeight):
            self._block_sizes.update(weight.block_sizes)
        if self._quantized_dtype is None or not isinstance(weight, Tensor):
            return weight
        return quantized_weight(weight, self._quantized_dtype)

    def try_products(self) -> None:
        """Ask a CPU's library how it rounds products of the packed weights' sizes.

        Each takes some 10 to 90 ms, which the first request would wait for otherwise. Threads must
        be set before.
        """
        if self.device.type == "cpu":
            for outputs, inputs in sorted(self._block_sizes):
                row_multiple(outputs, inputs, self.dtype, torch.get_num_threads())

    def keeps_packed(self, form: LinearForm) -> bool:
        """Return whether a checkpoint's packed weight of this form stays packed."""
        del form  # every form can be widened a few outputs at a time
        return self.packs

    def packed_bytes(self, form: LinearForm) -> int:
        """Return what a weight of this form takes, packed or widened."""
        if self.keeps_packed(form):
            return form.num_bytes
        return form.outputs * form.inputs * self.dtype.itemsize

    def _wide(self, weight: Weight, dtype: torch.dtype) -> Tensor:
        return widen(weight, dtype)

    # -- arithmetic --------------------------------------------------------------------------
    def linear(self, x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
        if isinstance(weight, GroupedWeight | JoinedWeight) and x.device.type == "cpu":
            return linear_by_blocks(x, weight, bias)
        weight = self._wide(weight, x.dtype)
        if x.device.type != "cpu":
            # otherwise columns of a transposed array are read one by one, at a fifth of the speed
            return F.linear(x if x.stride(-1) == 1 else x.contiguous(), weight, bias)
        # as a matrix: torch adds the bias elsewhere where a batch is not contiguous
        flat = linear_in_fours(x.reshape(-1, x.shape[-1]), weight, bias)
        return flat.view(*x.shape[:-1], -1)

    def rms_norm(self, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        return rms_norm(x, weight, eps)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        return F.layer_norm(x, weight.shape, weight, bias, eps)

    def silu(self, x: Tensor) -> Tensor:
        return F.silu(x)

    def gelu(self, x: Tensor) -> Tensor:
        return F.gelu(x)

    def gelu_tanh(self, x: Tensor) -> Tensor:
        return F.gelu(x, approximate="tanh")

    def elu(self, x: Tensor) -> Tensor:
        return F.elu(x)

    def relu(self, x: Tensor) -> Tensor:
        return F.relu(x)

    def sigmoid(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x)

    def tanh(self, x: Tensor) -> Tensor:
        return torch.tanh(x)

    def exp(self, x: Tensor) -> Tensor:
        return torch.exp(x)

    def sin(self, x: Tensor) -> Tensor:
        return torch.sin(x)

    def sqrt(self, x: Tensor) -> Tensor:
        return torch.sqrt(x)

    def softmax(self, x: Tensor) -> Tensor:
        return torch.softmax(x, dim=-1)

    def clip(self, x: Tensor, low: float | None, high: float | None) -> Tensor:
        return torch.clamp(x, low, high)

    def mean(self, x: Tensor, axis: int) -> Tensor:
        return x.mean(dim=axis, keepdim=True)

    def masked_mean(self, x: Tensor, mask: Tensor) -> Tensor:
        total = self.where(mask, x, 0.0).sum(-1, keepdim=True, dtype=torch.float32)
        return (total / mask.sum(-1, keepdim=True)).to(x.dtype)

    def sum(self, x: Tensor, axis: int) -> Tensor:
        return x.sum(dim=axis)

    def snake(self, x: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
        frequency = torch.exp(alpha)[:, None]
        amplitude = 1.0 / (torch.exp(beta) + 1e-9)[:, None]
        if torch.is_grad_enabled():
            return x + amplitude * torch.sin(x * frequency).square()
        wave = (x * frequency).sin_()  # most of a codec's time: one buffer instead of four
        return wave.mul_(wave).mul_(amplitude).add_(x)

    def nearest(self, x: Tensor, codebook: Tensor) -> Tensor:
        rows = x.float().reshape(-1, x.shape[-1])
        return torch.cdist(rows[None], codebook.float()[None])[0].argmin(-1).reshape(x.shape[:-1])

    # -- convolutions ------------------------------------------------------------------------
    def conv1d(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        stride: int = 1,
        dilation: int = 1,
        groups: int = 1,
    ) -> Tensor:
        if stride > 1:
            return F.conv1d(x, weight, bias, stride=stride, dilation=dilation, groups=groups)
        return conv1d(x, weight, bias, dilation, groups)

    def causal_conv_transpose1d(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        state: Tensor,
        *,
        stride: int,
        snake: Snake | None = None,
    ) -> tuple[Tensor, Tensor]:
        x = x if snake is None else self.snake(x, *snake)
        past = state.shape[-1]
        joined = torch.cat([state, x], dim=-1) if past else x
        out = conv_transpose1d(joined, weight, bias, stride)
        start = past * stride
        return out[..., start : start + x.shape[-1] * stride], joined[
            ..., joined.shape[-1] - past :
        ]

    def short_conv(
        self, x: Tensor, weight: Tensor, *, context: AttentionContext, layer: int
    ) -> Tensor:
        width, taps = weight.shape[1], weight.float()
        y = x.float() * taps[:, -1]
        before = cast(TorchContext, context).before(layer, x, width)
        for back, earlier in enumerate(
            before, 1
        ):  # one after the other: the same bits in any batch
            y = y + earlier.float() * taps[:, width - 1 - back]
        return y.to(x.dtype)

    # -- frames ------------------------------------------------------------------------------
    def draw_codes(
        self,
        stack: Callable[[], FrameStack],
        x: Tensor,
        pick: Callable[[Tensor, int], Tensor],
    ) -> Tensor | None:
        if not is_host_array(x):
            return None
        return self._host_frames.draw(stack(), x, pick)

    # -- attention ---------------------------------------------------------------------------
    def dense_context(
        self,
        batch: int,
        length: int,
        *,
        causal: bool = True,
        key_lengths: Tensor | npt.NDArray[np.int64] | None = None,
    ) -> DenseContext:
        return DenseContext(batch, length, causal, key_lengths, self.device)

    def scratch_context(
        self, batch: int, capacity: int, num_layers: int, spec: AttentionSpec
    ) -> ScratchCache:
        return ScratchCache(batch, capacity, num_layers, spec, self.device, self.dtype)

    def attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        spec: AttentionSpec,
        context: AttentionContext,
        layer: int,
        q_norm: Tensor | None = None,
        k_norm: Tensor | None = None,
    ) -> Tensor:
        view = cast(TorchContext, context)  # all contexts of this backend are
        q, k, v = split_heads(q, k, v, spec)
        if q_norm is not None and k_norm is not None:
            q = self.rms_norm(q, q_norm, spec.norm_eps)
            k = self.rms_norm(k, k_norm, spec.norm_eps)
        if spec.rope_theta is not None:
            table = view.rope(q.shape[-3], spec, q.dtype)
            q, k = rotate(q, table), rotate(k, table)
        return view.attend(layer, q, k, v).flatten(-2)

    def window_attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        spec: AttentionSpec,
        window: int,
        start: Tensor,
        k_state: Tensor,
        v_state: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = split_heads(q, k, v, spec)
        tokens = q.shape[1]
        view = self._window_view(start, tokens, window, spec)
        if view.rope is not None:
            q, k = rotate(q, view.rope), rotate(k, view.rope)
        keys = torch.cat([k_state, k], dim=1)  # (batch, window - 1 + tokens, kv_heads, head_dim)
        values = torch.cat([v_state, v], dim=1)
        out = attend(q, keys, values, view.mask)
        return out.flatten(-2), keys[:, tokens:], values[:, tokens:]

    def _window_view(
        self, start: Tensor, tokens: int, window: int, spec: AttentionSpec
    ) -> WindowView:
        """Return rotation and mask of one chunk, computed once for all layers."""
        if torch.compiler.is_compiling():  # the compiler removes the repetition itself
            return WindowView(start, tokens, window, spec)
        last = self._last_view
        # comparing identity is enough: the view keeps the tensor alive, and its values are fixed
        if last is None or last.key != (tokens, window, spec) or last.start is not start:
            self._last_view = last = WindowView(start, tokens, window, spec)
        return last


def linear_by_blocks(
    x: Tensor, weight: GroupedWeight | JoinedWeight, bias: Tensor | None
) -> Tensor:
    """Multiply with a packed weight on a CPU, of which a few outputs are widened at a time."""
    flat = x.reshape(-1, x.shape[-1])
    out = x.new_empty((flat.shape[0], weight.shape[0]))
    start = 0
    for block in weight.blocks(x.dtype):
        stop = start + block.shape[0]
        out[:, start:stop] = linear_by_rows(flat, block, None if bias is None else bias[start:stop])
        start = stop
    return out.view(*x.shape[:-1], -1)


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Root-mean-square norm with float32 statistics, cast back before the weight is applied."""
    if is_host_array(x):
        return torch.from_numpy(normed(x.numpy(), None if weight is None else weight.numpy(), eps))
    if x.dtype == torch.float32:
        return F.rms_norm(x, x.shape[-1:], weight, eps)
    wide = x.float()
    wide = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)
    return wide if weight is None else wide * weight


_NEEDED = {
    "triton": "a CUDA device and the package triton",
    "sgl-kernel": "a CUDA device of compute capability 8 or 9 and the packages triton and "
    "sglang-kernel",
}


def _choose_attention(attention: str, there: Sequence[str]) -> str:
    """Return the implementation of the decoders' attention to use.

    Args:
        attention: One of ATTENTIONS.
        there: Available implementations; "auto" takes the first.

    Raises:
        InvalidRequest: `attention` is unknown, or not available.
    """
    require_one_of("attention", attention, ATTENTIONS)
    if attention == "auto":
        return there[0]
    if attention not in there:
        raise InvalidRequest(
            f"attention {attention!r} is not available here: it takes {_NEEDED[attention]}",
            param="attention",
        )
    return attention
