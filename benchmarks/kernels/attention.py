"""Time attention of decodes and prompts: ours in Triton, torch's, sgl-kernel's, FlashInfer's.

Decodes read pages of 16 positions through tables. Ours also normalises and rotates
queries and keys and writes the new ones; the others are timed for attention alone, and torch over
keys that were gathered before ("torch, gathered") and with gathering ("torch"). Libraries are timed
where they are installed. FlashInfer's `plan`, which the host runs before each step, has a column of
its own. "sgl-kernel" of prompts is what `--attention sgl-kernel` runs, with norms and writes.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import triton
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.kernels.cases import DEVICE, PACKED, PAGE, SPEC, Step, normal
from benchmarks.kernels.decode import shown, time_us
from benchmarks.measure import write_result
from izwi.backends.torch.triton.attention_decode import rope_tables
from izwi.backends.torch.triton.attention_flash import flash_attention, has_flash
from izwi.backends.torch.triton.attention_prompt import PagedPrompt
from izwi.ops.attention import divide

ROWS = (1, 8, 32, 64)
POSITIONS = (512, 4096, 32_768)
_CACHE_BYTES = 200 << 20  # several times the size of a cache
_KEY_BYTES = 2 * SPEC.num_kv_heads * SPEC.head_dim * 2
_MOST_GATHERED = 6 << 30  # bytes; torch also repeats what it gathers
_BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
_PROMPT = 2048  # positions of a step
HEADS, KV_HEADS, HEAD_DIM = SPEC.num_heads, SPEC.num_kv_heads, SPEC.head_dim

Call = Callable[[int], object]


def decodes(rows: int, length: int) -> Iterator[tuple[str, Call, float | None]]:
    """List implementations for rows of so many keys, with the host's milliseconds of a plan."""
    num_bytes = rows * length * _KEY_BYTES
    layers = max(1, min(28, _CACHE_BYTES // num_bytes))
    most = 512 if length < 512 else triton.next_power_of_2(length + 1)
    step = Step(rows, length - 1, layers, most)
    q, k, v = divide(normal(rows, PACKED), SPEC)
    norm = normal(HEAD_DIM)
    cos, sin = rope_tables(most, HEAD_DIM, 1e6, DEVICE, torch.bfloat16)
    step.context._rope = cos, sin
    yield "triton", lambda i: step.context.attend_fused(i % layers, q, k, v, SPEC, norm, norm), None
    heads = q.reshape(rows, HEADS, 1, HEAD_DIM)
    if num_bytes <= _MOST_GATHERED:
        slots = (
            step.tables.view(rows, -1).long()[:, :, None] * PAGE + torch.arange(PAGE, device=DEVICE)
        ).flatten(1)[:, :length]

        def gathered(layer: int) -> list[Tensor]:
            shape = rows, length, KV_HEADS, HEAD_DIM
            planes = step.cache.keys[layer], step.cache.values[layer]
            return [p.index_select(0, slots.flatten()).view(shape).transpose(1, 2) for p in planes]

        there = gathered(0)
        for name, backend in _BACKENDS.items():

            def alone(_: int, b: SDPBackend = backend) -> Tensor:
                with sdpa_kernel(b):
                    return scaled_dot_product_attention(heads, *there, enable_gqa=True)

            yield f"torch {name}, gathered", alone, None

        def both(i: int) -> Tensor:
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                return scaled_dot_product_attention(heads, *gathered(i % layers), enable_gqa=True)

        yield "torch", both, None
    if has_flash(DEVICE):
        yield "sgl-kernel", _flash_decode(step, q, rows, length, layers), None
    if importlib.util.find_spec("flashinfer") is not None:
        yield from _flashinfer(step, q, rows, length, layers)


def _flash_decode(step: Step, q: Tensor, rows: int, length: int, layers: int) -> Call:
    shape = -1, PAGE, KV_HEADS, HEAD_DIM
    caches = step.cache.keys, step.cache.values
    planes = [tuple(cache[n].view(shape) for cache in caches) for n in range(layers)]
    heads = q.reshape(rows, 1, HEADS, HEAD_DIM).contiguous()
    lengths = torch.full((rows,), length, dtype=torch.int32, device=DEVICE)
    tables = step.tables.view(rows, -1)
    return lambda i: flash_attention()(
        heads, *planes[i % layers], cache_seqlens=lengths, page_table=tables, causal=True
    )


def _flashinfer(
    step: Step, q: Tensor, rows: int, length: int, layers: int
) -> Iterator[tuple[str, Call, float | None]]:
    import flashinfer

    pages = len(step.tables) // rows
    indptr = torch.arange(rows + 1, dtype=torch.int32) * pages
    last = torch.full((rows,), length - (pages - 1) * PAGE, dtype=torch.int32)
    workspace = torch.empty(256 << 20, dtype=torch.uint8, device=DEVICE)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        workspace,
        "NHD",
        use_cuda_graph=True,
        use_tensor_cores=True,
        paged_kv_indptr_buffer=indptr.to(DEVICE),
        paged_kv_indices_buffer=step.tables.clone(),
        paged_kv_last_page_len_buffer=last.to(DEVICE),
    )

    def plan() -> None:
        wrapper.plan(
            *(indptr, step.tables, last, HEADS, KV_HEADS, HEAD_DIM, PAGE),
            q_data_type=torch.bfloat16,
            kv_data_type=torch.bfloat16,
        )

    plan()
    taken = []
    for _ in range(7):
        torch.cuda.synchronize()
        began = time.perf_counter()
        plan()
        taken.append(1e3 * (time.perf_counter() - began))
    shape = -1, PAGE, KV_HEADS, HEAD_DIM
    planes = [
        (step.cache.keys[n].view(shape), step.cache.values[n].view(shape)) for n in range(layers)
    ]
    heads = q.reshape(rows, HEADS, HEAD_DIM).contiguous()
    yield "flashinfer", lambda i: wrapper.run(heads, planes[i % layers]), statistics.median(taken)


def prompts(behind: int) -> Iterator[tuple[str, Call, float | None]]:
    """List implementations for a chunk of a prompt after so many positions."""
    total = behind + _PROMPT
    step = Step(1, total - 1, 1)
    positions = torch.arange(behind, total, device=DEVICE)
    runs = torch.zeros(_PROMPT, device=DEVICE, dtype=torch.int32)
    width = torch.tensor([len(step.tables)], device=DEVICE, dtype=torch.int32)
    rope = rope_tables(total, HEAD_DIM, 1e6, DEVICE, torch.bfloat16)
    context = PagedPrompt(step.cache, positions, step.tables, width, rope, total, runs, 1)
    q, k, v = divide(normal(_PROMPT, PACKED), SPEC)
    norm = normal(HEAD_DIM)
    yield "triton", lambda _: context.attend_fused(0, q, k, v, SPEC, norm, norm), None
    if has_flash(DEVICE):
        yield "sgl-kernel", lambda _: context.attend_flash(0, q, k, v, SPEC, norm, norm), None
    one = q.reshape(1, _PROMPT, HEADS, HEAD_DIM).transpose(1, 2)
    keys, values = (normal(1, KV_HEADS, total, HEAD_DIM) for _ in range(2))
    mask = causal_lower_right(_PROMPT, total)
    for name, backend in _BACKENDS.items():

        def call(_: int, b: SDPBackend = backend) -> Tensor:
            with sdpa_kernel(b):
                return scaled_dot_product_attention(one, keys, values, mask, enable_gqa=True)

        yield f"torch {name}, gathered", call, None


def timed(cell: dict[str, Any], call: Call, calls: int, plan_ms: float | None) -> dict[str, Any]:
    try:
        cell["us"] = round(time_us(call, calls), 1)
    except Exception as error:  # a library that does not take this
        cell["error"] = f"{type(error).__name__}: {error}"[:120]
    if plan_ms is not None:
        cell["plan_ms"] = round(plan_ms, 3)
    return shown(cell)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="*", default=ROWS)
    parser.add_argument("--positions", type=int, nargs="*", default=POSITIONS)
    options = parser.parse_args()
    found: list[dict[str, Any]] = []
    for length in options.positions:
        for rows in options.rows:
            calls = max(2, min(50, (4 << 30) // (rows * length * _KEY_BYTES)))
            for library, call, plan_ms in decodes(rows, length):
                cell: dict[str, Any] = {"kind": "decode", "rows": rows, "positions": length}
                found.append(timed(cell | {"library": library}, call, calls, plan_ms))
            torch.cuda.empty_cache()
        for library, call, plan_ms in prompts(length):
            cell = {"kind": "prompt", "rows": _PROMPT, "positions": length}
            found.append(timed(cell | {"library": library}, call, 3, plan_ms))
        write_result("attention_libraries", found, device=torch.cuda.get_device_name())


if __name__ == "__main__":
    with torch.inference_mode():
        main()
