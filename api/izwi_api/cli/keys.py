"""`izwi keys`: who may use the server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from izwi_api.cli.options import failures_told, messages

app = typer.Typer(help="Make the keys that `izwi serve --api-keys` asks for.", no_args_is_help=True)


@app.callback()
def _keys() -> None:
    """Make the keys that `izwi serve --api-keys` asks for."""


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="Who will hold it.")],
    file: Annotated[
        Path | None, typer.Option(help="The keys file. Default: keys.toml in IZWI_HOME.")
    ] = None,
    requests_per_minute: Annotated[int | None, typer.Option(min=1)] = None,
    characters_per_day: Annotated[
        int | None,
        typer.Option(min=1, help="Of text to speak or to answer, between midnights UTC."),
    ] = None,
    audio_seconds_per_day: Annotated[
        float | None, typer.Option(min=0, help="Of sound to transcribe, between midnights UTC.")
    ] = None,
) -> None:
    """Make a key, write its hash into the file and print the key, this once.

    Servers that run see it within a second. To take a key back, delete its table from the file.
    """
    from izwi_api.keys import add_key
    from izwi_api.limits import KeyLimits
    from izwi_api.settings import read_settings

    with failures_told():
        path = file or read_settings(os.environ).home / "keys.toml"
        limits = KeyLimits(requests_per_minute, characters_per_day, audio_seconds_per_day)
        key = add_key(path, name, limits)
    typer.echo(key)
    messages().print(
        f"{path} has its hash; the key is shown only now. Serve with: izwi serve --api-keys {path}",
        markup=False,
    )
