"""`izwi warm`: compile what models need on this machine's GPU, so that servers start at once."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from izwi_api.cli.options import Device, Dtype, Offline, WeightsOption
from izwi_api.cli.serve import AttentionOption
from izwi_api.console import report_failures
from izwi_api.runtime_options import RuntimeOptions


def warm(
    models: Annotated[list[str], typer.Argument(help="Embedded names, folders or hub ids.")],
    device: Device = "auto",
    dtype: Dtype = "auto",
    offline: Offline = False,
    weights: WeightsOption = "auto",
    attention: AttentionOption = "auto",
) -> None:
    """Compile models' kernels and keep them on disk, for images or before a first start.

    Use the options that the server is started with. TRITON_CACHE_DIR names the folder.
    """
    from izwi.backends.torch.devices import kept_kernels
    from izwi_api.serve import local_services

    with report_failures():
        began_s = time.perf_counter()
        before = kept_kernels()
        local_services.open_services(
            models, RuntimeOptions(device, dtype, offline, weights, attention)
        )
        took_s = time.perf_counter() - began_s
        after = kept_kernels()
    if before is None or after is None:
        typer.echo(f"{took_s:.1f} s; Triton is not installed, so no kernel is compiled")
        return
    folder, count = after
    typer.echo(f"{took_s:.1f} s; {count - before[1]} kernels compiled, {count} kept in {folder}")
