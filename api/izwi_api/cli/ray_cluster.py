"""`izwi ray`: izwi on the machines of a Ray cluster."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from izwi.errors import InvalidRequest
from izwi_api.cli.options import Command
from izwi_api.console import report_failures
from izwi_api.serve.ray_options import read_options

app = typer.Typer(no_args_is_help=True, help="Serve from a Ray cluster (pip install 'izwi[ray]').")


@app.callback()
def _ray() -> None:
    """Serve from a Ray cluster (pip install 'izwi[ray]')."""


@app.command(cls=Command)
def deploy(
    file: Annotated[Path, typer.Argument(help="Models, engines and API servers; YAML or TOML.")],
    address: Annotated[
        str, typer.Option(help="Address of the cluster; local: start one on this machine.")
    ] = "auto",
) -> None:
    """Deploy to a cluster; with --address local serve until Ctrl+C."""
    with report_failures():
        if find_spec("ray") is None:
            raise InvalidRequest("izwi ray needs Ray: pip install 'izwi[ray]'")
        options = read_options(file)
        import ray

        from izwi_api.serve.ray_app import deploy as deploy_app

        ray.init(address=address, namespace="serve", log_to_driver=address == "local")
        deploy_app(options, is_own_cluster=address == "local")
