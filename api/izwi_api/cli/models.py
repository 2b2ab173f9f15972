"""`izwi models`: the checkpoints that come with izwi, or those that a server has loaded."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated

import typer

from izwi_api.cli.options import ApiKey, ServerUrl, failures_told


def models(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object a line.")] = False,
    server: ServerUrl = None,
    api_key: ApiKey = None,
) -> None:
    """List the embedded checkpoints; --model takes also a folder or a hub id."""
    from izwi.registry import embedded
    from izwi_api.cli.remote import Server

    with failures_told():
        if server:
            answer = asyncio.run(Server(server, api_key).get("/v1/models"))
            for entry in answer.get("data", []):
                name, task = entry["id"], entry.get("task", "")
                typer.echo(
                    json.dumps({"name": name, "task": task}) if as_json else f"{name}\t{task}"
                )
            return
        found = embedded()
    for name, folder in found.items():
        size = sum(file.stat().st_size for file in folder.rglob("*.safetensors"))
        if as_json:
            typer.echo(json.dumps({"name": name, "bytes": size, "folder": str(folder)}))
        else:
            typer.echo(f"{name}\t{size / 1e6:.1f} MB\t{folder}")
