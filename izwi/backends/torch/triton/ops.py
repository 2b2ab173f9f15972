"""The operations on CUDA, with Triton kernels where torch would launch many small ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeGuard

import torch
from torch import Tensor

from izwi.backends.torch.attention.dense import ScratchCache
from izwi.backends.torch.grouped import (
    GroupedWeight,
    JoinedWeight,
    Weight,
    has_kernel,
    kernel_bytes,
    kernel_parts,
    kernel_weight,
)
from izwi.backends.torch.ops import TorchOps
from izwi.backends.torch.persistent.draws import DescribedPick
from izwi.backends.torch.quantized import KernelWeight, PackedWeight, QuantizedWeight, has_fp8
from izwi.backends.torch.triton import conv as triton_conv
from izwi.backends.torch.triton import linear as triton_linear
from izwi.backends.torch.triton import packed as triton_packed
from izwi.backends.torch.triton import rows as triton_rows
from izwi.backends.torch.triton.attention_decode import (
    MAX_SCRATCH_POSITIONS,
    PagedDecode,
    ScratchDecode,
    takes_heads,
)
from izwi.backends.torch.triton.attention_flash import has_flash, takes_prompt
from izwi.backends.torch.triton.attention_prompt import PagedPrompt
from izwi.backends.torch.triton.rows import PendingNorm
from izwi.checkpoints.linear_spec import LinearForm
from izwi.ops.attention import divide
from izwi.ops.frames import FrameStack
from izwi.ops.protocol import AttentionContext, AttentionSpec, Conv, Snake

if TYPE_CHECKING:
    from izwi.backends.torch.persistent.frames import Frames

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class TritonOps(TorchOps):
    """Implements `izwi.ops.protocol.Ops` on one CUDA device.

    Inputs that the kernels do not support (many rows, other dtypes or contexts, anything to be
    differentiated) go to torch.
    """

    captures = True
    attentions = ("triton", "torch")
    draws_frames = (
        False  # whether the persistent kernel draws codes, which is slower so far (ADR 46)
    )

    def __init__(
        self,
        device: torch.device | str = "cuda",
        dtype: torch.dtype = torch.bfloat16,
        weights: str = "auto",
        attention: str = "auto",
    ):
        super().__init__(device, dtype, weights, attention)
        self._frames: Frames | None = None

    def _wide(self, weight: Weight, dtype: torch.dtype) -> Tensor:
        if isinstance(weight, PackedWeight) and dtype in _DTYPES:
            return triton_packed.widen_packed(weight, dtype)
        if isinstance(weight, QuantizedWeight) and dtype in _DTYPES:
            return triton_rows.widen(weight, dtype)
        return super()._wide(weight, dtype)

    def quantize(self, weight: Weight) -> Weight:
        if isinstance(weight, GroupedWeight):
            return kernel_weight(weight)
        if isinstance(weight, JoinedWeight):  # GGUF packs some values more finely than queries
            return kernel_parts(weight)
        return super().quantize(weight)

    def keeps_packed(self, form: LinearForm) -> bool:
        return super().keeps_packed(form) and has_kernel(form, has_fp8=has_fp8(self.device))

    def packed_bytes(self, form: LinearForm) -> int:
        return kernel_bytes(form) if self.keeps_packed(form) else super().packed_bytes(form)

    def fold_norm(self, norm: Tensor, weight: Tensor) -> tuple[Tensor | None, Tensor]:
        if not isinstance(weight, Tensor):
            return super().fold_norm(norm, weight)
        # values before the norm may exceed float16; quantized weights keep their own kernels
        fits = weight.dtype in (torch.bfloat16, torch.float32) and self._quantized_dtype is None
        if not fits or not triton_rows.takes_row(weight.shape[1]):
            return super().fold_norm(norm, weight)
        return None, weight * norm

    # -- arithmetic --------------------------------------------------------------------------
    def linear(self, x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
        if isinstance(weight, JoinedWeight):
            joined = torch.cat([self.linear(x, part) for part in weight.parts], -1)
            return joined if bias is None else joined + bias
        if not _takes_product(weight, x):
            return super().linear(x, weight, bias)
        out = triton_linear.linear(_rows(x), weight, bias=bias)
        return out.view(*x.shape[:-1], -1)

    def normed_linear(self, x: Tensor, norm: Tensor | None, eps: float, weight: Weight) -> Tensor:
        if not _takes_product(weight, x):
            plain: Tensor = super().normed_linear(x, norm, eps, weight)
            return plain
        out = triton_linear.linear(_rows(x), weight, norm=norm, eps=eps)
        return out.view(*x.shape[:-1], -1)

    def linear_add(self, x: Tensor, weight: Weight, residual: Tensor) -> Tensor:
        if _takes_product(weight, x):
            out = triton_linear.linear(_rows(x), weight, residual=_rows(residual))
            return out.view(residual.shape)
        if not isinstance(weight, Tensor) or not _takes(x, weight) or not residual.is_contiguous():
            plain: Tensor = super().linear_add(x, weight, residual)
            return plain
        # in place, or the library would copy the residual first
        added = residual.view(-1, residual.shape[-1]).addmm_(_rows(x), weight.T)
        return added.view(residual.shape)

    def gated_linear(self, x: Tensor, norm: Tensor | None, eps: float, weight: Weight) -> Tensor:
        if _takes_product(weight, x):
            out = triton_linear.gated_linear(_rows(x), weight, norm=norm, eps=eps)
        elif norm is not None or not _takes(x, x):
            plain: Tensor = super().gated_linear(x, norm, eps, weight)
            return plain
        else:
            rows = _rows(x)
            gate, up = self.linear(rows, weight).chunk(2, dim=-1)
            out = triton_rows.swiglu(gate, up, PendingNorm(rows, eps))
        return out.view(*x.shape[:-1], -1)

    def rms_norm(self, x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
        if not _takes(x, x if weight is None else weight) or not triton_rows.takes_row(x.shape[-1]):
            return super().rms_norm(x, weight, eps)
        return triton_rows.rms_norm(x, weight, eps)

    def swiglu(self, gate: Tensor, up: Tensor) -> Tensor:
        if not _takes(gate, up):
            plain: Tensor = super().swiglu(gate, up)
            return plain
        return triton_rows.swiglu(_rows(gate), _rows(up)).view(gate.shape)

    def snake(self, x: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
        either_way = x.is_contiguous() or x.transpose(1, 2).is_contiguous()
        if not _takes(x, alpha) or not either_way:
            return super().snake(x, alpha, beta)
        return triton_rows.snake(x, alpha, beta)

    # -- convolutions ------------------------------------------------------------------------
    def causal_conv1d(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        state: Tensor,
        *,
        dilation: int = 1,
        groups: int = 1,
        snake: Snake | None = None,
    ) -> tuple[Tensor, Tensor]:
        takes = _takes(x, weight) and triton_conv.takes(x, weight, groups)
        operation = triton_conv.causal_conv1d if takes else super().causal_conv1d
        return operation(x, weight, bias, state, dilation=dilation, groups=groups, snake=snake)

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
        takes = _takes(x, weight) and triton_conv.takes_transposed(x, weight, stride)
        operation = (
            triton_conv.causal_conv_transpose1d if takes else super().causal_conv_transpose1d
        )
        return operation(x, weight, bias, state, stride=stride, snake=snake)

    def residual_unit(
        self,
        x: Tensor,
        snakes: tuple[Snake, Snake],
        convs: tuple[Conv, Conv],
        state: Tensor,
        *,
        dilation: int,
    ) -> tuple[Tensor, Tensor]:
        weight = convs[0][0]
        if not _takes(x, weight) or not triton_conv.takes(x, weight):
            plain: tuple[Tensor, Tensor]
            plain = super().residual_unit(x, snakes, convs, state, dilation=dilation)
            return plain
        return triton_conv.residual_unit(
            x, snakes[0], convs[0], snakes[1], convs[1], state, dilation=dilation
        )

    def short_conv(
        self, x: Tensor, weight: Tensor, *, context: AttentionContext, layer: int
    ) -> Tensor:
        if isinstance(context, PagedDecode):
            assert context.conv is not None
            return context.conv.convolve(layer, x, weight)
        return super().short_conv(x, weight, context=context, layer=layer)

    def gated_short_conv(
        self, projected: Tensor, weight: Tensor, *, context: AttentionContext, layer: int
    ) -> Tensor:
        if not isinstance(context, PagedDecode):
            plain: Tensor
            plain = super().gated_short_conv(projected, weight, context=context, layer=layer)
            return plain
        assert context.conv is not None
        gate_in, gate_out, x = projected.chunk(3, dim=-1)
        return context.conv.convolve(layer, x, weight, (gate_in, gate_out))

    # -- frames ------------------------------------------------------------------------------
    def draw_codes(
        self,
        stack: Callable[[], FrameStack],
        x: Tensor,
        pick: Callable[[Tensor, int], Tensor],
    ) -> Tensor | None:
        if not self.draws_frames or not isinstance(pick, DescribedPick):
            return None
        if x.dtype != torch.bfloat16 or torch.is_grad_enabled() or not pick.few_candidates:
            return None
        if self._frames is None:
            from izwi.backends.torch.persistent.frames import Frames  # rarely used

            self._frames = Frames(x.device)
        return self._frames.draw(stack(), x, pick)

    # -- attention ---------------------------------------------------------------------------
    def available_attentions(self) -> tuple[str, ...]:
        return (*self.attentions, *(["sgl-kernel"] if has_flash(self.device) else []))

    def scratch_context(  # type: ignore[override]  # both are scratch contexts
        self, batch: int, capacity: int, num_layers: int, spec: AttentionSpec
    ) -> ScratchDecode | ScratchCache:
        fits = capacity <= MAX_SCRATCH_POSITIONS and takes_heads(spec.head_dim)
        if (
            not self.reads_tables
            or not fits
            or self.dtype not in _DTYPES
            or torch.is_grad_enabled()
        ):
            return super().scratch_context(batch, capacity, num_layers, spec)
        return ScratchDecode(batch, capacity, num_layers, spec, self.device, self.dtype)

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
        if isinstance(context, PagedDecode) and not self.reads_tables:
            context = context.in_torch
        if (
            self.attends_with == "sgl-kernel"
            and isinstance(context, PagedPrompt)
            and takes_prompt(len(q), spec.head_dim, q.dtype)
        ):
            return context.attend_flash(layer, q, k, v, spec, q_norm, k_norm)
        if isinstance(context, PagedDecode | ScratchDecode):
            return context.attend_fused(layer, q, k, v, spec, q_norm, k_norm)
        return super().attention(
            q, k, v, spec=spec, context=context, layer=layer, q_norm=q_norm, k_norm=k_norm
        )

    def normed_attention(
        self,
        x: Tensor,
        norm: Tensor | None,
        eps: float,
        weight: Weight,
        *,
        spec: AttentionSpec,
        context: AttentionContext,
        layer: int,
        q_norm: Tensor | None = None,
        k_norm: Tensor | None = None,
    ) -> Tensor:
        if (
            norm is None
            and self.reads_tables
            and isinstance(context, PagedDecode | ScratchDecode)
            and context.takes_pending
            and not _takes_product(weight, x)
        ):
            q, k, v = divide(self.linear(x, weight), spec)
            pending = PendingNorm(_rows(x), eps)
            return context.attend_fused(layer, q, k, v, spec, q_norm, k_norm, pending)
        plain: Tensor = super().normed_attention(
            x,
            norm,
            eps,
            weight,
            spec=spec,
            context=context,
            layer=layer,
            q_norm=q_norm,
            k_norm=k_norm,
        )
        return plain


def _takes(x: Tensor, weight: Tensor) -> bool:
    """Return whether a kernel may run on these: none requires a gradient."""
    differentiated = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    return x.dtype == weight.dtype and x.dtype in _DTYPES and x.numel() > 0 and not differentiated


def _takes_product(weight: Weight, x: Tensor) -> TypeGuard[KernelWeight]:
    if isinstance(weight, GroupedWeight | JoinedWeight):
        return False
    rows = x.numel() // x.shape[-1]
    if not triton_linear.takes(rows, weight):
        return False
    if isinstance(weight, QuantizedWeight):  # the library would read it three times
        return _takes(x, x)
    return _takes(x, weight) and not triton_linear.prefers_torch(rows, *weight.shape)


def _rows(x: Tensor) -> Tensor:
    """Return (..., width) as (rows, width), copied only if a row is not contiguous."""
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(-1) == 1 else rows.contiguous()
