"""All passes of a code predictor in one launch: sizes, arguments and launch of frame_codes.cu."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence as Seq
from dataclasses import dataclass, fields
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from izwi.backends.torch.persistent.device_code import (
    CompileError,
    DeviceFunction,
    compile_cuda,
    multiprocessors,
)

SOURCE = Path(__file__).with_suffix(".cu")
HEADER = SOURCE.with_name("frame_codes_device.h")
MAX_ROWS = 8
NUM_PHASES = 7
_THREADS = 288
_MOST_TOKENS = 16  # rows of a pass: two for each row of the first
_ROW_PADDING = 64
_SMALL_BYTES = 30 << 10  # more than `Shared` takes


@dataclass(frozen=True, slots=True)
class FrameSizes:
    """Sizes that the kernel is compiled for."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    layers: int
    codebooks: int

    @property
    def qkv(self) -> int:
        """Outputs of the product before attention."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    def are_supported(self) -> bool:
        """Return whether the kernel can be compiled for these sizes."""
        hidden = self.hidden
        return (
            hidden % 256 == 0
            and self.head_dim == 128
            and self.heads % self.kv_heads == 0
            and (self.heads * self.head_dim) % hidden == 0
            and self.intermediate % hidden == 0
            and self.vocabulary % 512 == 0
            and 2 < self.codebooks <= 17
        )

    def macros(self, blocks: int) -> list[str]:
        """Return the definitions that frame_codes.cu needs."""
        sizes = [f"-D{f.name.upper()}={getattr(self, f.name)}" for f in fields(self)]
        return [*sizes, f"-DBLOCKS={blocks}"]

    def num_words(self) -> int:
        """Return the length of the kernel's work array of 64-bit words."""
        queries = self.heads * self.head_dim
        widths = 2 * self.hidden + self.qkv + queries + self.intermediate + self.vocabulary
        return _MOST_TOKENS * widths // 2 + _MOST_TOKENS


class LayerWeights(NamedTuple):
    """Weights of one layer; norms before products are part of `qkv` and `gated`."""

    qkv: Tensor
    out: Tensor
    gated: Tensor
    down: Tensor
    q_norm: Tensor
    k_norm: Tensor


class FrameWeights(NamedTuple):
    """Weights of the predictor, bfloat16; rows of products are contiguous.

    Attributes:
        layers: Of its layers.
        heads: (vocabulary, hidden) of codebooks 1.. .
        embeds: The same, of the codes of codebooks 1.. but the last, in the predictor's width.
        norm: (hidden,) of the final norm.
        rope: Cosine and sine, (positions, head_dim / 2).
        eps: Of all norms.
    """

    layers: Seq[LayerWeights]
    heads: Seq[Tensor]
    embeds: Seq[Tensor]
    norm: Tensor
    rope: tuple[Tensor, Tensor]
    eps: float


class FrameDraws(NamedTuple):
    """Parameters of the draws, one value for each row, as in `RowSampling`."""

    seed: Tensor
    step: Tensor
    scale: Tensor
    top_k: Tensor
    top_p: Tensor


class FrameResults(NamedTuple):
    """What a launch writes.

    Attributes:
        ids: (rows, codebooks - 1) int64.
        logits: (rows, codebooks - 1, vocabulary) bfloat16, for tests.
        times: (blocks, NUM_PHASES, 4) int64 cycles, if compiled with TIMED.
    """

    ids: Tensor
    logits: Tensor | None = None
    times: Tensor | None = None


class FrameWork:
    """What launches for up to MAX_ROWS rows write besides their result."""

    def __init__(self, sizes: FrameSizes, device: torch.device):
        self.launches = torch.zeros(2, dtype=torch.int32, device=device)
        self.words = torch.zeros(sizes.num_words(), dtype=torch.int64, device=device)
        planes = 2 * sizes.layers * MAX_ROWS * sizes.kv_heads
        shape = (planes, sizes.codebooks, sizes.head_dim)
        self.cache = torch.zeros(shape, dtype=torch.bfloat16, device=device)


def params_type(sizes: FrameSizes) -> type[ctypes.Structure]:
    """Return the type of the kernel's parameter, `Params` in frame_codes.cu."""
    layers, passes = sizes.layers, sizes.codebooks - 1
    of_layers, of_passes = ctypes.c_uint64 * layers, ctypes.c_uint64 * passes
    names = "norm cos sin x seed step scale top_k top_p ids launches words cache logits times"

    class Params(ctypes.Structure):
        _fields_ = [
            *((name, of_layers) for name in LayerWeights._fields),
            ("heads", of_passes),
            ("embeds", of_passes),
            *((name, ctypes.c_uint64) for name in names.split()),
            ("eps", ctypes.c_float),
            ("rows", ctypes.c_int),
        ]

    return Params


def filled(
    sizes: FrameSizes,
    weights: FrameWeights,
    work: FrameWork,
    x: Tensor,
    draws: FrameDraws,
    results: FrameResults,
) -> ctypes.Structure:
    """Return the kernel's parameter; all arrays must outlive its launch.

    Args:
        sizes: Sizes.
        weights: Weights.
        work: Work arrays.
        x: (rows, 2, hidden), inputs of the first pass.
        draws: Parameters of the draws.
        results: Arrays to be written.
    """
    type_ = params_type(sizes)
    passes = sizes.codebooks - 1
    embeds = [e.data_ptr() for e in weights.embeds]
    values: dict[str, object] = {
        name: (ctypes.c_uint64 * sizes.layers)(
            *(getattr(layer, name).data_ptr() for layer in weights.layers)
        )
        for name in LayerWeights._fields
    }
    values["heads"] = (ctypes.c_uint64 * passes)(*(h.data_ptr() for h in weights.heads))
    values["embeds"] = (ctypes.c_uint64 * passes)(*embeds, *([0] * (passes - len(embeds))))
    arrays = {
        "norm": weights.norm,
        "cos": weights.rope[0],
        "sin": weights.rope[1],
        "x": x,
        **draws._asdict(),
        "ids": results.ids,
        "launches": work.launches,
        "words": work.words,
        "cache": work.cache,
    }
    values |= {name: array.data_ptr() for name, array in arrays.items()}
    for name in ("logits", "times"):
        array = getattr(results, name)
        values[name] = 0 if array is None else array.data_ptr()
    return type_(**values, eps=weights.eps, rows=x.shape[0])


class FrameKernel:
    """The kernel, compiled for sizes and for the current device."""

    def __init__(
        self,
        sizes: FrameSizes,
        device: torch.device,
        *,
        stages: int = 11,
        more: Seq[str] = (),
    ):
        """Compile.

        Args:
            sizes: Sizes of the predictor.
            device: A CUDA device.
            stages: Stages of the ring of weights in shared memory.
            more: Further options of the compiler.

        Raises:
            CompileError: There is no compiler, or the device cannot run the kernel.
        """
        self.sizes, self.blocks = sizes, multiprocessors(device)
        self.shared_bytes = stages * 8 * (2 * sizes.hidden + _ROW_PADDING) + _SMALL_BYTES
        options = [*sizes.macros(self.blocks), f"-DSTAGES={stages}", "-DTRAPS=1", *more]
        code = compile_cuda(SOURCE, HEADER, options, device)
        self._function = DeviceFunction(code, "frame_codes", self.shared_bytes, device)
        if not self._function.blocks_together(_THREADS):
            raise CompileError("a block does not fit on a multiprocessor")

    def launch(self, params: ctypes.Structure) -> None:
        """Launch on the current stream."""
        self._function.launch_together(self.blocks, _THREADS, params)
