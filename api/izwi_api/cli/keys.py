"""`izwi keys`: manage the API keys of a server."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from izwi_api.cli.options import Command, ListByDefault
from izwi_api.console import messages, report_failures

app = typer.Typer(
    cls=ListByDefault, help="List, add and remove API keys for `izwi serve --api-keys`."
)

File = Annotated[Path | None, typer.Option(help="The keys file. Default: keys.toml in IZWI_HOME.")]


@app.command("list", cls=Command)
def list_keys(
    file: File = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line.")
    ] = False,
) -> None:
    """List the names and limits of the keys; the keys themselves are not stored."""
    from dataclasses import asdict

    from izwi_api.usage.keys import read_keys

    with report_failures():
        path = _path(file)
        keys = read_keys(path) if path.exists() else ()
    if not keys:
        messages().print(f"{path} has no keys; add one: izwi keys add NAME", markup=False)
    for key in keys:
        limits = {name: limit for name, limit in asdict(key.limits).items() if limit is not None}
        if as_json:
            typer.echo(json.dumps({"name": key.name} | limits))
        else:
            shown = ", ".join(
                f"{limit:g} {name.replace('_', ' ')}" for name, limit in limits.items()
            )
            typer.echo(f"{key.name}\t{shown or 'no limits'}")


@app.command(cls=Command)
def add(
    name: Annotated[str, typer.Argument(help="Owner of the key.", show_default=False)],
    file: File = None,
    requests_per_minute: Annotated[
        int | None, typer.Option(min=1, help="Requests per minute. Default: no limit.")
    ] = None,
    characters_per_day: Annotated[
        int | None,
        typer.Option(min=1, help="Characters to speak or to answer per day (UTC)."),
    ] = None,
    audio_seconds_per_day: Annotated[
        float | None, typer.Option(min=0, help="Seconds of audio to transcribe per day (UTC).")
    ] = None,
    sessions: Annotated[
        int | None, typer.Option(min=1, help="Live sessions at once. Default: the server's limit.")
    ] = None,
) -> None:
    """Make a key, store its hash and print the key, only this once.

    Running servers accept it within a second. `izwi keys remove` revokes it.
    """
    from izwi_api.usage.keys import add_key
    from izwi_api.usage.limits import KeyLimits

    with report_failures():
        path = _path(file)
        limits = KeyLimits(requests_per_minute, characters_per_day, audio_seconds_per_day, sessions)
        key = add_key(path, name, limits)
    typer.echo(key)
    messages().print(
        f"{path} has its hash; the key is shown only now. Serve with: izwi serve --api-keys {path}",
        markup=False,
    )


@app.command(cls=Command)
def remove(
    name: Annotated[str, typer.Argument(help="Name of a key.", show_default=False)],
    file: File = None,
) -> None:
    """Revoke a key. Running servers refuse it within a second."""
    from izwi_api.usage.keys import remove_key

    with report_failures():
        path = _path(file)
        remove_key(path, name)
    messages().print(f"key {name} is removed from {path}", markup=False)


def _path(file: Path | None) -> Path:
    from izwi_api.environment import read_settings

    return file or read_settings(os.environ).home / "keys.toml"
