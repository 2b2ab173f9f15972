"""Check and time the decode kernels at the sizes of the published models.

Kernels are timed inside CUDA graphs of many calls, with enough copies of the weights that they do
not stay in the cache between calls, because in a model other layers run in between. `--tune` tries
other tile sizes of the matrix products and prints the fastest, for `TILES` in
linear_tiles.py (of weights in 4 bits: packed_tiles.py) of izwi/backends/torch/triton.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.kernels.cases import (
    DEVICE,
    OTHERS,
    PREDICTOR,
    PRODUCTS,
    TALKER,
    Layers,
    Operands,
    Product,
    attention_cases,
    sampling_case,
)
from benchmarks.kernels.check import check_everything
from izwi.backends.torch.quantized import FOUR_BITS, quantized_dtype
from izwi.backends.torch.triton import attention_decode as triton_decode
from izwi.backends.torch.triton import launch as triton_launch
from izwi.backends.torch.triton import sampling as triton_sampling
from izwi.backends.torch.triton.attention_decode import DecodeTiles
from izwi.backends.torch.triton.linear_tiles import Tiles, bucket_of
from izwi.backends.torch.triton.tile_search import microseconds
from izwi.config import WEIGHTS

ROWS = (1, 8, 32, 64)
CALLS, REPLAYS = 100, 7
Row = dict[str, Any]

# Tile sizes to try, by bucket of rows: outputs, depth, slices, warps, stages.
_FEW = [(1, 1024, 1, 1), (1, 2048, 1, 2), (2, 1024, 1, 2), (2, 1024, 1, 4), (2, 2048, 1, 4)]
_FEW += [(4, 512, 1, 2), (4, 1024, 1, 4), (8, 512, 1, 4), (8, 1024, 1, 4), (4, 2048, 1, 8)]
_FEW += [(1, 4096, 1, 4), (2, 4096, 1, 8)]
_CUTS = {
    1: [Tiles(*cut, 1) for cut in _FEW],
    2: [Tiles(*cut, 1) for cut in _FEW[2:-4]],
    16: [
        Tiles(16, 64, 4, 4, 4),
        Tiles(16, 128, 4, 4, 3),
        Tiles(8, 128, 4, 4, 4),
        Tiles(16, 64, 8, 8, 4),
        Tiles(32, 64, 4, 4, 4),
        Tiles(32, 128, 4, 4, 2),
        Tiles(16, 128, 1, 4, 5),
        Tiles(32, 128, 1, 4, 5),
        Tiles(32, 256, 1, 4, 3),
        Tiles(64, 128, 1, 4, 4),
        Tiles(64, 64, 1, 4, 6),
        Tiles(128, 64, 1, 8, 4),
        Tiles(32, 64, 2, 4, 5),
        Tiles(64, 64, 2, 8, 4),
    ],
    32: [
        Tiles(16, 64, 4, 4, 4),
        Tiles(32, 64, 4, 4, 4),
        Tiles(32, 128, 2, 4, 3),
        Tiles(32, 128, 1, 4, 4),
        Tiles(64, 64, 1, 4, 5),
        Tiles(64, 128, 1, 4, 4),
        Tiles(128, 64, 1, 8, 4),
    ],
    64: [
        Tiles(16, 128, 1, 4, 4),
        Tiles(32, 64, 1, 4, 5),
        Tiles(32, 128, 1, 4, 4),
        Tiles(64, 64, 1, 4, 5),
        Tiles(64, 128, 1, 4, 3),
        Tiles(128, 64, 1, 8, 4),
    ],
}
# Of weights in 4 bits: depths are of one or two rows only.
_FEW_PACKED = [(1, 512, 2), (1, 1024, 4), (2, 512, 2), (2, 512, 4), (2, 1024, 4), (4, 512, 4)]
_FEW_PACKED += [(4, 1024, 8), (8, 512, 4), (8, 256, 4)]
_MANY_PACKED = [(16, 4, 4, 3), (16, 2, 2, 3), (16, 8, 8, 3), (32, 4, 4, 3), (16, 4, 4, 5)]
_MANY_PACKED += [(64, 1, 4, 4), (64, 1, 4, 3), (128, 1, 4, 3), (128, 1, 8, 4), (32, 1, 2, 4)]
_PACKED_CUTS = {
    1: [Tiles(outputs, depth, 1, warps, 1) for outputs, depth, warps in _FEW_PACKED],
    **{
        rows: [
            Tiles(outputs, 64, slices, warps, stages)
            for outputs, slices, warps, stages in _MANY_PACKED
        ]
        for rows in (16, 32, 64)
    },
}
_PACKED_CUTS[2] = _PACKED_CUTS[1]
_DECODE_CUTS = [
    DecodeTiles(keys, warps, stages, scratch_warps)
    for keys, warps, stages, scratch_warps in (
        (32, 4, 2, 1),
        (64, 4, 4, 2),
        (64, 4, 1, 4),
        (64, 4, 2, 8),
        (64, 4, 3, 1),
        (64, 8, 2, 2),
        (128, 4, 2, 4),
        (32, 4, 5, 8),
    )
]


def time_us(call: Callable[[int], object], calls: int = CALLS) -> float:
    """Return microseconds per call, in a graph of `calls` calls; `call` gets the call's index."""
    return microseconds(call, calls, REPLAYS)


def both_us(call: Callable[[int], object]) -> Row:
    """Time calls with overlapping launches, and one after the other."""
    timed = {}
    for name, overlap in (("us", True), ("serial_us", False)):
        triton_launch.overlap_launches = overlap
        timed[name] = round(time_us(call), 2)
    triton_launch.overlap_launches = True
    return timed


def time_product(product: Product, rows: int, stored: torch.dtype | None) -> Row:
    """Time one product: our kernel, torch's operations, and the library's product alone."""
    operands = Operands(product, rows, stored)
    row: Row = {"kernel": product.name, "rows": rows, **both_us(operands.fused)}
    row["torch_us"] = round(time_us(operands.with_torch), 2)
    row["product_us"] = round(time_us(operands.product_alone), 2)
    row["gb_s"] = round(operands.weight_bytes / row["us"] / 1e3)
    return row


def time_products(stored: torch.dtype | None) -> list[Row]:
    return [shown(time_product(product, rows, stored)) for product in PRODUCTS for rows in ROWS]


def time_attention() -> list[Row]:
    made = []
    for rows in ROWS:
        for name, call, num_bytes in attention_cases(rows):
            row: Row = {"kernel": name, "rows": rows, **both_us(call)}
            row["gb_s"] = round(num_bytes / row["us"] / 1e3)
            made.append(shown(row))
    return made


def time_sampling() -> list[Row]:
    made = []
    for rows in ROWS:
        for vocabulary, codebook in ((2048, 1), (3072, 0), (151_936, 0)):
            call = sampling_case(rows, vocabulary, codebook)
            row: Row = {"kernel": f"draw of {vocabulary}", "rows": rows, **both_us(call)}
            made.append(shown(row))
    return made


def time_layers(weights: str = "auto") -> list[Row]:
    """Time whole layers, one after the other as in a model."""
    made = []
    for sizes in (TALKER, PREDICTOR):
        for rows in ROWS:
            layers = Layers(sizes, rows, weights)
            row: Row = {"kernel": f"{sizes.name} layer", "rows": rows, **both_us(layers.run)}
            row["gb_s"] = round(layers.bytes_per_layer / row["us"] / 1e3)
            made.append(shown(row))
    return made


def shown(row: Row) -> Row:
    print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    return row


@dataclass(frozen=True, slots=True)
class Trial:
    """One tile size for one product."""

    operands: Operands
    tiles: Tiles

    def compile(self) -> bool:
        """Run it once; return False if it does not fit the device."""
        try:
            self.operands.fused(0, self.tiles)
        except Exception as error:  # Triton raises many errors for tiles that do not fit
            print(f"{self.operands.product.name} {self.tiles}: {type(error).__name__}", flush=True)
            return False
        return True


def tune_products(
    rows_tuned: tuple[int, ...], stored: torch.dtype | None, products: list[Product] = PRODUCTS
) -> list[Row]:
    """Try all tile sizes of each product; compile in parallel, then time one by one."""
    trials = [
        Trial(operands, tiles)
        for product in products
        for rows in rows_tuned
        for operands in [Operands(product, rows, stored)]
        for tiles in (_PACKED_CUTS if stored == FOUR_BITS else _CUTS)[bucket_of(rows)]
    ]
    with ThreadPoolExecutor(16) as pool:
        fitting = list(pool.map(Trial.compile, trials))
    torch.cuda.synchronize()
    best: dict[tuple[int, int, int, bool], tuple[float, Trial]] = {}
    for trial, fits in zip(trials, fitting, strict=True):
        if not fits:
            continue
        operands, tiles = trial.operands, trial.tiles
        product, bucket = operands.product, bucket_of(operands.rows)
        taken = time_us(lambda i, o=operands, t=tiles: o.fused(i, t))  # type: ignore[misc]
        key = (bucket, product.weight_rows, product.inputs, product.gated)
        if key not in best or taken < best[key][0]:
            best[key] = taken, trial
    made = []
    for key, (taken, trial) in best.items():
        library = time_us(trial.operands.with_torch)
        verdict = "" if taken < library else f", torch {library:.1f} us"
        print(f"    {key}: {trial.tiles},  # {taken:.1f} us{verdict}", flush=True)
        made.append({"tiles": str(key), "best": str(trial.tiles), "us": round(taken, 2)})
    return made


def tune_attention() -> None:
    usual = triton_decode.tiles
    for rows in (1, 32, 64):
        for name, call, _ in attention_cases(rows):
            timed = []
            for cut in _DECODE_CUTS:
                triton_decode.tiles = cut
                timed.append((time_us(call), str(cut)))
            print(f"{name} rows {rows}: " + "; ".join(f"{t:.1f} us {c}" for t, c in sorted(timed)))
    triton_decode.tiles = usual


def tune_sampling() -> None:
    usual = triton_sampling.logits_per_warp
    for vocabulary, codebook in ((2048, 1), (3072, 0)):
        call = sampling_case(8, vocabulary, codebook)
        for per_warp in (256, 512, 1024, 2048):
            triton_sampling.logits_per_warp = per_warp
            print(f"draw of {vocabulary}, {per_warp} a warp: {time_us(call):.1f} us", flush=True)
    triton_sampling.logits_per_warp = usual


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="only compare with torch")
    parser.add_argument(
        "--tune", action="store_true", help="try other tile sizes instead of timing"
    )
    parser.add_argument(
        "--rows", type=int, nargs="*", default=[1, 2, 8, 32, 64], help="rows to tune"
    )
    parser.add_argument(
        "--weights", choices=WEIGHTS, default="auto", help="dtype of the products' weights"
    )
    parser.add_argument("--of", nargs="*", choices=OTHERS, help="tune only products of these")
    options = parser.parse_args()
    if options.of:
        for name in options.of:
            tune_products(tuple(options.rows), None, OTHERS[name])
        return
    stored = quantized_dtype(options.weights, DEVICE)
    wrong = check_everything()
    if options.check or wrong:
        sys.exit(f"{len(wrong)} kernels are off: {wrong}" if wrong else None)
    if options.tune:
        tune_products(tuple(options.rows), stored)
        if stored is not None:  # nothing else depends on it
            return
        tune_attention()
        tune_sampling()
        return
    rows = time_layers(options.weights) + time_products(stored)
    if stored is None:
        rows += time_attention() + time_sampling()
    # the engine, which the other benchmarks run, is not needed until here
    from benchmarks.measure import write_result

    name = "kernels" if stored is None else f"kernels_{options.weights}"
    write_result(name, rows, device=torch.cuda.get_device_name())


if __name__ == "__main__":
    with torch.inference_mode():
        main()
