"""`izwi tune`: find the fastest tiles of models' products on this machine's GPU, and keep them."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Annotated

import typer

from izwi_api.cli.options import Device, Dtype, Offline, WeightsOption
from izwi_api.cli.serve import AttentionOption
from izwi_api.console import report_failures
from izwi_api.runtime_options import RuntimeOptions

if TYPE_CHECKING:
    from izwi.backends.torch.triton.linear_tiles import Product


def tune(
    models: Annotated[list[str], typer.Argument(help="Embedded names, folders or hub ids.")],
    device: Device = "auto",
    dtype: Dtype = "auto",
    offline: Offline = False,
    weights: WeightsOption = "auto",
    attention: AttentionOption = "auto",
) -> None:
    """Time the products of models on this machine's GPU, and keep the fastest for later starts.

    Takes some minutes, in which nothing else should use the GPU. TRITON_CACHE_DIR names the folder.
    """
    from izwi.errors import InvalidRequest

    with report_failures():
        options = RuntimeOptions(device, dtype, offline, weights, attention)
        # in a process of its own, whose memory is free again when products are timed
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            products, chosen, dtype_name = pool.submit(_asked, models, options).result()
        if not products:
            raise InvalidRequest(
                f"{chosen} runs no kernels whose tiles could be searched", param="device"
            )
        _search(products, chosen, dtype_name)


def _asked(models: list[str], options: RuntimeOptions) -> tuple[set[Product], str, str]:
    """Load models, and return what their kernels multiply, their device and their dtype."""
    from izwi.backends.choice import open_backend

    backend = open_backend(options.device, options.dtype)
    if not backend.device_name.startswith("cuda"):
        return set(), backend.device_name, backend.dtype_name
    from izwi.backends.torch.triton import linear_tiles
    from izwi_api.serve import local_services

    linear_tiles.asked = set()
    local_services.open_services(models, options)
    return linear_tiles.asked, backend.device_name, backend.dtype_name


def _search(products: set[Product], device_name: str, dtype_name: str) -> None:
    from izwi.backends.torch.devices import product_name
    from izwi.backends.torch.triton import tile_search

    gpu = product_name(device_name)
    tile_search.use_kept(gpu)
    found = {}
    searched = tile_search.search(products, device_name, dtype_name)
    for (rows, outputs, inputs, gated), tiles, best_us, used_us in searched:
        typer.echo(f"{rows} x {outputs} x {inputs}: {used_us:.1f} us, now {best_us:.1f}")
        found[rows, outputs, inputs, gated] = tiles
    path = tile_search.keep(gpu, found)
    typer.echo(f"{len(found)} products of {gpu} kept in {path}")
