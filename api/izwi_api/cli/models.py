"""`izwi models`: the checkpoints that come with izwi."""

from __future__ import annotations

import typer

from izwi_api.cli.options import failures_told


def models() -> None:
    """List the embedded checkpoints; --model takes also a folder or a hub id."""
    from izwi.registry import embedded

    with failures_told():
        found = embedded()
    for name, folder in found.items():
        size = sum(file.stat().st_size for file in folder.rglob("*.safetensors"))
        typer.echo(f"{name}\t{size / 1e6:.1f} MB\t{folder}")
