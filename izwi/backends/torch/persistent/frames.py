"""The persistent kernel of a device: whether it takes a stack's draws, and its launches."""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeGuard

import torch
from torch import Tensor

from izwi.backends.torch.persistent.device_code import CompileError
from izwi.backends.torch.persistent.draws import DescribedPick
from izwi.backends.torch.persistent.frame_codes import (
    MAX_ROWS,
    FrameDraws,
    FrameKernel,
    FrameResults,
    FrameSizes,
    FrameWeights,
    FrameWork,
    LayerWeights,
    filled,
)
from izwi.backends.torch.triton.attention_decode import MAX_SCRATCH_POSITIONS, rope_tables
from izwi.ops.frames import FrameStack

logger = logging.getLogger(__name__)

_FIRST_CAPABILITY = (9, 0)  # of devices that copy to shared memory in bulk


class Frames:
    """Draws frames with the kernel on one device; kernels and work arrays are kept by sizes.

    Its launches share work arrays, so that they must run one after the other.
    """

    def __init__(self, device: torch.device):
        self._device = device
        self._kernels: dict[FrameSizes, Future[FrameKernel]] = {}
        self._work: dict[FrameSizes, FrameWork] = {}
        self._compiler: ThreadPoolExecutor | None = None

    def draw(self, stack: FrameStack, x: Tensor, pick: DescribedPick) -> Tensor | None:
        """Draw as `Ops.draw_codes`; None if the kernel cannot."""
        sizes = sizes_of(stack)
        takes_rows = 0 < x.shape[0] <= MAX_ROWS and runs_frames(self._device)
        if sizes is None or not sizes.are_supported() or not takes_rows:
            return None
        compiling = self._compile(sizes)
        shape = x.shape[0], sizes.codebooks - 1
        if pick.rehearses:
            return torch.zeros(shape, dtype=torch.int64, device=x.device)
        try:
            kernel = compiling.result()
        except CompileError:
            return None
        rope = self._rope(stack)
        layers = [
            LayerWeights(n.qkv, n.out, n.gated, n.down, n.q_norm, n.k_norm) for n in stack.layers
        ]
        weights = FrameWeights(layers, stack.heads, stack.embeds, stack.norm, rope, stack.eps)
        rest = pick.sampling.rest
        draws = FrameDraws(
            pick.sampling.seed, pick.sampling.step, rest.scale, rest.top_k, rest.top_p
        )
        x = x.contiguous()
        ids = torch.empty(shape, dtype=torch.int64, device=x.device)
        work = self._work[sizes]
        kernel.launch(filled(sizes, weights, work, x, draws, FrameResults(ids)))
        return ids

    def _rope(self, stack: FrameStack) -> tuple[Tensor, Tensor]:
        spec = stack.attention
        assert spec.rope_theta is not None
        sizes = MAX_SCRATCH_POSITIONS, spec.head_dim, spec.rope_theta
        return rope_tables(*sizes, self._device, stack.norm.dtype)

    def _compile(self, sizes: FrameSizes) -> Future[FrameKernel]:
        """Begin to compile, beside the kernels of Triton."""
        if sizes not in self._kernels:
            if self._compiler is None:
                self._compiler = ThreadPoolExecutor(1, "izwi-persistent")
            self._work[sizes] = FrameWork(sizes, self._device)
            self._kernels[sizes] = self._compiler.submit(_compiled, sizes, self._device)
        return self._kernels[sizes]


def runs_frames(device: torch.device) -> bool:
    """Return whether a device can run the kernel, if it can be compiled."""
    return torch.cuda.get_device_capability(device) >= _FIRST_CAPABILITY


def sizes_of(stack: FrameStack) -> FrameSizes | None:
    """Return the sizes of a stack; None if its weights are of a kind that the kernel cannot read.

    It reads contiguous bfloat16 with folded norms.
    """
    matrices = [m for n in stack.layers for m in (n.qkv, n.out, n.gated, n.down)]
    arrays = [*matrices, *stack.heads, *stack.embeds, stack.norm]
    norms = [m for n in stack.layers for m in (n.qkv_norm, n.gated_norm)]
    spec = stack.attention
    if any(norm is not None for norm in norms) or not all(map(_is_plain, arrays)):
        return None
    if spec.rope_theta is None or spec.norm_eps != stack.eps:
        return None
    return FrameSizes(
        hidden=stack.norm.shape[0],
        heads=spec.num_heads,
        kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        intermediate=stack.layers[0].down.shape[1],
        vocabulary=stack.heads[0].shape[0],
        layers=len(stack.layers),
        codebooks=len(stack.heads) + 1,
    )


def _is_plain(array: object) -> TypeGuard[Tensor]:
    return (
        isinstance(array, Tensor)
        and array.dtype == torch.bfloat16
        and array.is_contiguous()
        and array.data_ptr() % 16 == 0
    )


def _compiled(sizes: FrameSizes, device: torch.device) -> FrameKernel:
    try:
        return FrameKernel(sizes, device)
    except CompileError as error:
        logger.warning("frames are drawn by several kernels instead of one: %s", error)
        raise
