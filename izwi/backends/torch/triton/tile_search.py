"""Find the fastest tiles of products on this machine's GPU, and keep them for later starts.

The tables of `linear_tiles` were measured on large GPUs. On others the order of tiles differs, so
that `izwi tune` times them there. What it found lies beside the compiled kernels.
"""

from __future__ import annotations

# mypy: allow-untyped-calls
import json
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path

import torch
import triton
from torch import Tensor

from izwi.backends.torch.triton import linear_tiles
from izwi.backends.torch.triton.linear import gated_linear, linear
from izwi.backends.torch.triton.linear_tiles import Product, Tiles

_VERSION = 1
_CALLS, _REPLAYS = 40, 5
_COMPILING_THREADS = 8
# A layer's weights are read once a step: calls read copies in turn, more than any cache holds.
_COPIES_BYTES = 256 << 20
_MOST_COPIES = 32

# To try, by bucket of rows: outputs, depth, slices, warps, stages.
_FEW = (
    *(Tiles(1, 1024, 1, 1, 1), Tiles(1, 2048, 1, 2, 1), Tiles(2, 1024, 1, 2, 1)),
    *(Tiles(2, 1024, 1, 4, 1), Tiles(2, 2048, 1, 4, 1), Tiles(4, 512, 1, 2, 1)),
    *(Tiles(4, 1024, 1, 4, 1), Tiles(8, 512, 1, 4, 1), Tiles(8, 1024, 1, 4, 1)),
)
_SOME = (
    *(Tiles(8, 128, 4, 4, 4), Tiles(16, 64, 4, 4, 4), Tiles(16, 64, 8, 8, 4)),
    *(Tiles(32, 64, 4, 4, 4), Tiles(16, 128, 1, 4, 5), Tiles(32, 128, 1, 4, 4)),
    *(Tiles(64, 64, 1, 4, 5), Tiles(32, 64, 2, 4, 5)),
)
_MANY = (
    *(Tiles(16, 64, 4, 4, 4), Tiles(32, 64, 4, 4, 4), Tiles(16, 128, 1, 4, 4)),
    *(Tiles(32, 128, 1, 4, 4), Tiles(64, 64, 1, 4, 5), Tiles(64, 128, 1, 4, 3)),
)


def file_for(product_name: str) -> Path:
    """Return where the tiles of a GPU are kept, by the vendor's product name."""
    name = "".join(sign if sign.isalnum() else "-" for sign in product_name.lower())
    return Path(triton.knobs.cache.dir) / f"izwi-tiles-{name}.json"


def use_kept(product_name: str) -> int:
    """Use the tiles that were found on such a GPU; return how many.

    A file of another version, or one that cannot be read, counts as none: tiles change the time of
    products, not what they need to run.
    """
    try:
        kept = json.loads(file_for(product_name).read_text(encoding="utf-8"))
        if kept["version"] != _VERSION:
            return 0
        found = {_product(line): Tiles(**line["tiles"]) for line in kept["products"]}
    except (OSError, ValueError, KeyError, TypeError):
        return 0
    linear_tiles.TILES.update(found)
    return len(found)


def keep(product_name: str, found: Mapping[Product, Tiles]) -> Path:
    """Write the tiles that were found on a GPU, beside those found before; return the file.

    Raises:
        OSError: The file cannot be written.
    """
    path = file_for(product_name)
    try:
        earlier = json.loads(path.read_text(encoding="utf-8"))
        lines = earlier["products"] if earlier["version"] == _VERSION else []
        products = {_product(line): line for line in lines}
    except (OSError, ValueError, KeyError, TypeError):
        products = {}
    for (rows, outputs, inputs, gated), tiles in found.items():
        line = {"rows": rows, "outputs": outputs, "inputs": inputs, "gated": gated}
        products[rows, outputs, inputs, gated] = {**line, "tiles": asdict(tiles)}
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    body = {"version": _VERSION, "gpu": product_name, "products": list(products.values())}
    part.write_text(json.dumps(body, indent=1), encoding="utf-8")
    part.replace(path)
    return path


def search(
    products: Collection[Product], device_name: str, dtype_name: str
) -> Iterator[tuple[Product, Tiles, float, float]]:
    """Time the tiles of products on a GPU.

    Args:
        products: Rows of the bucket, (outputs, inputs) of the weight, and whether it is gated.
        device_name: The GPU, as "cuda:0"; nothing else should use it.
        dtype_name: Of inputs and weights, as "bfloat16".

    Yields:
        A product, its fastest tiles, their microseconds, and those of the tiles used so far.
    """
    device, dtype = torch.device(device_name), getattr(torch, dtype_name)
    for product in sorted(products):
        trial = _Trial(product, device, dtype)
        used = linear_tiles.tiles_for(*product[:3], gated=product[3])
        with ThreadPoolExecutor(_COMPILING_THREADS) as pool:
            tiles_tried = list(dict.fromkeys((used, *_candidates(product[0]))))
            runs = list(pool.map(trial.runs, tiles_tried))
        timed = {
            tiles: microseconds(partial(trial.multiply, tiles))
            for tiles, fits in zip(tiles_tried, runs, strict=True)
            if fits
        }
        if timed:
            best = min(timed, key=timed.__getitem__)
            yield product, best, timed[best], timed.get(used, float("nan"))


class _Trial:
    """A product with copies of a drawn weight."""

    def __init__(self, product: Product, device: torch.device, dtype: torch.dtype):
        rows, outputs, inputs, self._gated = product
        generator = torch.Generator(device).manual_seed(0)
        weight = torch.randn(outputs, inputs, device=device, dtype=dtype, generator=generator)
        copies = max(1, min(_MOST_COPIES, _COPIES_BYTES // weight.nbytes))
        self._weights = [weight, *(weight.clone() for _ in range(copies - 1))]
        self._x = torch.randn(rows, inputs, device=device, dtype=dtype, generator=generator)

    def multiply(self, tiles: Tiles, turn: int) -> Tensor:
        """Multiply with the copy whose turn it is."""
        weight = self._weights[turn % len(self._weights)]
        return (gated_linear if self._gated else linear)(self._x, weight, tiles=tiles)

    def runs(self, tiles: Tiles) -> bool:
        """Compile and run once; return False if the device cannot."""
        try:
            self.multiply(tiles, 0)
        except Exception:  # Triton and its compiler raise many kinds
            return False
        return True


def _candidates(rows: int) -> tuple[Tiles, ...]:
    if rows <= linear_tiles.FEW_ROWS:
        return _FEW
    return _SOME if rows <= 16 else _MANY


def microseconds(
    call: Callable[[int], object], calls: int = _CALLS, replays: int = _REPLAYS
) -> float:
    """Return the time of a call on the device, in a graph of many; median of some replays.

    Args:
        call: Launches the work; gets its turn among the calls.
        calls: Calls in the graph.
        replays: How often the graph is timed.
    """
    for turn in range(calls):  # the first compiles and allocates, so it runs before the capture
        call(turn)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for turn in range(calls):
            call(turn)
    taken: list[float] = []
    for _ in range(replays):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        stop.record()
        torch.cuda.synchronize()
        taken.append(1e3 * start.elapsed_time(stop) / calls)
    return statistics.median(taken)


def _product(line: Mapping[str, int]) -> Product:
    return int(line["rows"]), int(line["outputs"]), int(line["inputs"]), bool(line["gated"])
