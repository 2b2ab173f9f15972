"""Time attention of a long prompt's last chunk: our paged kernel by tile size, and torch.

    python -m benchmarks.kernels.prompt --behind 6144 30720

Torch attends over contiguous keys, so its time does not include gathering pages.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
import triton
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.kernels.cases import DEVICE, PAGE, normal
from benchmarks.kernels.decode import shown, time_us
from izwi.backends.torch.triton.attention_prompt import attend_tile
from izwi.ops.protocol import AttentionSpec

# rows of a tile, keys of a pass, warps, stages
CUTS = [
    (16, 64, 4, 2),
    (32, 64, 4, 2),
    (64, 64, 4, 3),
    (64, 64, 8, 2),
    (64, 64, 8, 3),
    (64, 128, 8, 2),
    (64, 128, 8, 3),
    (128, 64, 8, 3),
]
SPECS = {
    "qwen3": AttentionSpec(16, 8, 128, 1e6),
    "8b": AttentionSpec(32, 8, 128, 1e6),
    "lfm2": AttentionSpec(32, 8, 64, 1e6),
}


def cases(spec: AttentionSpec, rows: int, behind: int) -> list[tuple[str, Callable[[int], Any]]]:
    """Return implementations of attention of `rows` queries to all keys up to their own."""
    total = behind + rows
    pages = triton.cdiv(total, PAGE)
    heads, kv_heads, head_dim = spec.num_heads, spec.num_kv_heads, spec.head_dim
    keys, values = (normal(pages * PAGE, kv_heads, head_dim) for _ in range(2))
    q, out = normal(rows, heads * head_dim), normal(rows, heads * head_dim)
    tables = torch.randperm(pages, device=DEVICE, dtype=torch.int32)
    width = torch.tensor([pages], device=DEVICE, dtype=torch.int32)
    positions = torch.arange(behind, total, device=DEVICE)
    runs = torch.zeros(rows, device=DEVICE, dtype=torch.int32)
    group = heads // kv_heads
    made: list[tuple[str, Callable[[int], Any]]] = []
    for cut in CUTS:
        tile, block, warps, stages = cut
        tile = max(1, 2 * tile // group)

        def ours(_: int, t: int = tile, b: int = block, w: int = warps, s: int = stages) -> None:
            attend_tile[(triton.cdiv(rows, t), kv_heads)](
                *(q, out, keys, values, positions, runs, tables, width, *[None] * 4),
                *(1e-6, head_dim**-0.5, q.stride(0), rows),
                KV_HEADS=kv_heads,
                GROUP=group,
                ROWS=t,
                QUERIES=triton.next_power_of_2(t * group),
                HEAD_DIM=head_dim,
                PAGE=PAGE,
                BLOCK=b,
                STAGES=s,
                OVERLAPPED=False,
                num_warps=w,
            )

        made.append((f"{cut}", ours))
    one = q.view(1, rows, heads, head_dim).transpose(1, 2)
    k, v = (normal(1, kv_heads, total, head_dim) for _ in range(2))
    mask = causal_lower_right(rows, total)
    made.append(("torch", lambda _: scaled_dot_product_attention(one, k, v, mask, enable_gqa=True)))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--behind", type=int, nargs="*", default=[0, 6144, 30_720])
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--of", nargs="*", choices=SPECS, default=["qwen3"])
    options = parser.parse_args()
    for name in options.of:
        spec = SPECS[name]
        for behind in options.behind:
            for cut, call in cases(spec, options.rows, behind):
                row: dict[str, Any] = {"attention": name, "behind": behind, "cut": cut}
                try:
                    taken = time_us(call, 3)
                except Exception as error:  # tiles that do not fit the device
                    shown(row | {"error": f"{type(error).__name__}: {error}"[:90]})
                    continue
                seen = options.rows * (behind + options.rows / 2)
                flops = 4 * spec.num_heads * spec.head_dim * seen
                shown(row | {"us": round(taken, 1), "tflops": round(flops / taken / 1e6)})


if __name__ == "__main__":
    with torch.inference_mode():
        main()
