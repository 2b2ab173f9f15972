"""Compile the kernels for a GPU without one: `python -m tests.backends.torch.compile_kernels`.

With `--every`, every variant; with `--capability 86`, for GPUs of compute capability 8.6.

The interpreter takes what the compiler refuses. So the calls of the models are made on a CPU, with
every launch replaced by a compilation for a compute capability; one line for each is printed. A
kernel that needs more shared memory than such a GPU has is an error, as it would be there.
"""

from __future__ import annotations

import argparse
import itertools
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from izwi.backends.torch.conv_trailers import ConvTrailers
from izwi.backends.torch.quantized import FOUR_BITS, PackedWeight, quantized_weight
from izwi.backends.torch.triton import attention_prompt as prompt_module
from izwi.backends.torch.triton import conv as conv_module
from izwi.backends.torch.triton import launch as triton_launch
from izwi.backends.torch.triton import linear as linear_module
from izwi.backends.torch.triton import sampling as triton_sampling
from izwi.backends.torch.triton.adapters import add_rows
from izwi.backends.torch.triton.attention_decode import (
    DecodeCache,
    PagedDecode,
    ScratchDecode,
    rope_tables,
)
from izwi.backends.torch.triton.attention_prompt import PagedPrompt
from izwi.backends.torch.triton.conv import causal_conv1d, residual_unit
from izwi.backends.torch.triton.linear import gated_linear, linear
from izwi.backends.torch.triton.linear_tiles import TILES
from izwi.backends.torch.triton.packed import widen_packed
from izwi.backends.torch.triton.rows import PendingNorm, rms_norm, snake, swiglu, widen
from izwi.backends.torch.triton.sampling import MAX_STOP_IDS, RowSampling, SamplingColumns, draw
from izwi.backends.torch.triton.short_conv import StagedConv
from izwi.model.layers import ConvSpec
from izwi.ops.protocol import AttentionSpec

# Shared memory of one block by compute capability: CUDA's programming guide.
SHARED_BYTES = {80: 163 << 10, 86: 99 << 10, 89: 99 << 10, 90: 227 << 10, 120: 99 << 10}
_FP8_FROM = 89
SPEC = AttentionSpec(16, 8, 128, 1e6)
STORED = (None, torch.int8, torch.float8_e4m3fn, FOUR_BITS)
# How many rows, unless every variant is compiled: each kernel, and each kind of weights.
_ROWS = {None: (1, 16, 64), torch.int8: (16,), torch.float8_e4m3fn: (1,), FOUR_BITS: (1, 16)}
_TYPES = {
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.int32: "*i32",
    torch.int64: "*i64",
}

# Sizes that depend on the requests of a step, and the kernels that are compiled for each number.
_VARYING = {"rows", "num_rows", "time", "length", "spacing", "start"}
_EACH_NUMBER = {"few_rows", "few_rows_packed"}
_compiled: set[str] = set()
_capability = 90


def compile_launch(kernel: Any, *positional: Any, grid: Any, warmup: bool, **named: Any) -> None:
    """In place of a launch; numbers are specialised as a launch does it.

    Raises:
        ValueError: A size that a request chooses is specialised: another value would be compiled
            while serving. Or the kernel needs more shared memory than the GPU has.
    """
    del grid, warmup
    options = {name: named.pop(name) for name in list(named) if name not in kernel.arg_names}
    arguments = dict(zip(kernel.arg_names, positional, strict=False)) | named
    signature: dict[str, str] = {}
    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], Any] = {}
    for place, parameter in enumerate(kernel.params):
        value = arguments[parameter.name]
        specialised = not parameter.do_not_specialize
        if specialised and parameter.name in _VARYING and kernel.__name__ not in _EACH_NUMBER:
            raise ValueError(f"{kernel.__name__} is compiled again for other {parameter.name}")
        is_one = specialised and isinstance(value, int) and value == 1
        if parameter.is_constexpr or value is None or is_one:
            signature[parameter.name], constants[place,] = "constexpr", value
        elif isinstance(value, float):
            signature[parameter.name] = "fp32"
        else:
            signature[parameter.name] = "i32" if isinstance(value, int) else _TYPES[value.dtype]
            if not isinstance(value, int) or (specialised and value % 16 == 0):
                attributes[place,] = [["tt.divisibility", 16]]
    key = repr((kernel.__name__, signature, constants, attributes, options))
    if key in _compiled:
        return
    _compiled.add(key)
    source = ASTSource(kernel, signature, constants, attributes)
    target = GPUTarget("cuda", _capability, 32)
    compiled = triton.compile(source, target=target, options=options)
    size, shared = len(compiled.asm["cubin"]), compiled.metadata.shared
    if shared > SHARED_BYTES[_capability]:
        raise ValueError(f"{kernel.__name__} needs {shared} bytes of shared memory: {constants}")
    print(f"{kernel.__name__}: {size} bytes, {shared} of shared memory")


def array(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.ones(shape, dtype=dtype)


def products(every: bool) -> None:
    """Products of one to many rows, with weights of every kind."""
    norm, bias = array(256), array(128)
    for stored in STORED:
        if stored is torch.float8_e4m3fn and _capability < _FP8_FROM:
            continue  # such weights are widened there
        weight = array(128, 256)
        kept = weight if stored is None else quantized_weight(weight, stored)
        for rows in (1, 2, 16, 64) if every else _ROWS[stored]:
            x = array(rows, 256)
            gated_linear(x, kept, norm=norm, eps=1e-6)
            if stored is None and (every or rows == 1):
                gated_linear(x, kept, eps=1e-6)
            linear(x, kept, bias=bias, residual=array(rows, 128))
    for values in (torch.int8, torch.float8_e4m3fn, FOUR_BITS):  # in groups
        width = 256 if values == FOUR_BITS else 512
        factor = torch.ones(128, 8)
        kept = PackedWeight(torch.ones(128, width).to(values), factor, factor)
        for rows in (1, 16, 64) if every else (16,):
            linear(array(rows, 512), kept, bias=bias)
    for stored in STORED[1:]:
        kept = quantized_weight(array(128, 256), stored)
        (widen_packed if stored == FOUR_BITS else widen)(kept, torch.bfloat16)  # type: ignore[operator]


def attention(every: bool) -> None:
    """Decodes with few and with many keys, prompts, and the inner loop of a frame."""
    keys = array(1, 64 * 16 + 1, SPEC.num_kv_heads, SPEC.head_dim)
    cache = DecodeCache(keys, keys.clone(), 16)
    rows, width = 4, SPEC.num_kv_heads * SPEC.head_dim
    q, k, v = array(rows, 2 * width), array(rows, width), array(rows, width)
    norm = array(SPEC.head_dim)
    tables, table_width = torch.zeros(256, dtype=torch.int32), torch.tensor([64], dtype=torch.int32)
    rope = rope_tables(1024, SPEC.head_dim, 1e6, torch.device("cpu"), torch.bfloat16)
    places = torch.zeros(rows, dtype=torch.int64), tables, table_width, rope
    runs = torch.zeros(rows, dtype=torch.int32)
    pending = PendingNorm(array(rows, 192), 1e-6)
    scratch = ScratchDecode(rows, 16, 1, SPEC, torch.device("cpu"), torch.bfloat16)
    for norm_of_rows in (None, pending) if every else (pending,):
        for max_keys in (512, 4096):
            context = PagedDecode(cache, *places, max_keys)
            context.attend_fused(0, q, k, v, SPEC, norm, norm, norm_of_rows)
        token = q[:, None], k[:, None], v[:, None]
        scratch.attend_fused(0, *token, SPEC, norm, norm, norm_of_rows)
    PagedPrompt(cache, *places, 512, runs).attend_fused(0, q, k, v, SPEC, norm, norm)
    many = 1024  # in large tiles
    q, k, v = array(many, 2 * width), array(many, width), array(many, width)
    PagedPrompt(cache, *places, 512, runs).attend_fused(0, q, k, v, SPEC, norm, norm)


def convolutions() -> None:
    """Short convolutions of decodes and of prompts."""
    trailers = ConvTrailers(ConvSpec(1, 64, 3), 4, 16, torch.device("cpu"), torch.bfloat16)
    places = torch.zeros(4, dtype=torch.int64), torch.zeros(64, dtype=torch.int32)
    width = torch.tensor([4], dtype=torch.int32)
    for runs in (None, torch.zeros(4, dtype=torch.int32)):
        context = StagedConv(trailers, *places, width, runs)
        gate_in, gate_out, x = array(4, 192).chunk(3, -1)
        context.convolve(0, x, array(64, 3), (gate_in, gate_out))


def drawing(every: bool) -> None:
    """Draws from a large vocabulary; all that is large is smaller unless every variant is asked."""
    rows, vocabulary = 2, 151_936 if every else 2_000
    if not every:
        triton_sampling.MAX_VOCABULARY = triton_sampling._CHUNK = triton_sampling._MERGED = 256
    column, words = torch.ones(rows), -(-vocabulary // 32)
    columns = SamplingColumns(column, column.int(), column, column)
    sampling = RowSampling(
        seed=torch.zeros(rows, dtype=torch.int64),
        step=torch.zeros(rows, dtype=torch.int64),
        first=columns,
        rest=columns,
        stop_ids=torch.zeros((rows, MAX_STOP_IDS), dtype=torch.int32),
        stop_allowed=torch.ones(rows, dtype=torch.int32),
        seen=torch.zeros((rows, words), dtype=torch.int32),
        suppressed=None,
    )
    draw(array(rows, vocabulary), sampling, 0, few_candidates=True)


def activations() -> None:
    """Norms and activations in a pass each."""
    rms_norm(array(4, 256), array(256), 1e-6)
    swiglu(array(4, 256), array(4, 256))
    swiglu(array(4, 256), array(4, 256), PendingNorm(array(4, 192), 1e-6))
    snake(array(2, 32, 96), array(32), array(32))


def measured_tiles() -> None:
    """Products with each kind of tiles that was measured on a large GPU."""
    for rows, gated, tiles in {
        (rows, gated, tiles) for (rows, _, _, gated), tiles in TILES.items()
    }:
        product = gated_linear if gated else linear
        inputs = 4 * tiles.slices * tiles.depth
        product(array(rows, inputs), array(2 * tiles.outputs, inputs), tiles=tiles)


def codec() -> None:
    """Convolutions and residual units of the codec at its sizes, for one stream and for many."""
    for batch, channels in itertools.product((1, 64), (96, 192, 384, 768, 1536)):
        x, state = array(batch, channels, 32), array(batch, channels, 6)
        weight, bias = array(channels, channels, 7), array(channels)
        causal_conv1d(x, weight, bias, state)
        snake_of = bias, bias
        second = array(channels, channels, 1), bias
        residual_unit(x, snake_of, (weight, bias), snake_of, second, state, dilation=1)


def adapters() -> None:
    """What adapters add to rows."""
    add_rows(torch.zeros(4, dtype=torch.int64), 3, array(4, 256), array(4, 128))


def main() -> None:
    global _capability
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", action="store_true")
    parser.add_argument("--capability", type=int, default=90, choices=SHARED_BYTES)
    options = parser.parse_args()
    _capability = options.capability
    JITFunction.run = compile_launch
    triton_launch._has_dependent_launch = lambda _: _capability >= 90  # type: ignore[assignment]
    for module in (linear_module, conv_module, prompt_module):
        module.shared_bytes = lambda _: SHARED_BYTES[_capability]  # type: ignore[attr-defined]
    with torch.inference_mode():
        products(options.every)
        attention(options.every)
        convolutions()
        drawing(options.every)
        activations()
        if options.every:
            measured_tiles()
            codec()
        adapters()


if __name__ == "__main__":
    main()
