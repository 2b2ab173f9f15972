"""`izwi models`: list models; load, unload and pull those of a running server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from izwi.errors import InvalidRequest
from izwi_api.cli.options import ApiKey, Command, ListByDefault, ServerUrl
from izwi_api.console import messages, report_failures

if TYPE_CHECKING:
    from izwi_api.client import AsyncClient

    Change = Callable[[AsyncClient], AsyncGenerator[dict[str, Any]]]

app = typer.Typer(
    cls=ListByDefault, help="List models; load, unload and pull models on a running server."
)

Name = Annotated[
    str, typer.Argument(help="Embedded name, hub id or served name.", show_default=False)
]


@app.command("list", cls=Command)
def list_models(
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line.")
    ] = False,
    server: ServerUrl = None,
    api_key: ApiKey = None,
) -> None:
    """List the server's models, or without a server the embedded ones.

    --model takes also a folder or a hub id.
    """
    from izwi.checkpoints.registry import embedded
    from izwi_api.cli.running_server import running_server
    from izwi_api.client import AsyncClient

    with report_failures():
        server = running_server(server, api_key)
        if server:

            async def served() -> list[dict[str, Any]]:
                async with AsyncClient(server, api_key=api_key) as client:
                    return await client.models()

            for entry in asyncio.run(served()):
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


@app.command(cls=Command)
def load(name: Name, server: ServerUrl = None, api_key: ApiKey = None) -> None:
    """Load a model on a server, which downloads it if needed."""
    _change(lambda client: client.load_model(name), server, api_key)


@app.command(cls=Command)
def unload(name: Name, server: ServerUrl = None, api_key: ApiKey = None) -> None:
    """Unload a model from a server, once its running requests end."""
    _change(lambda client: client.unload_model(name), server, api_key)


@app.command(cls=Command)
def pull(name: Name, server: ServerUrl = None, api_key: ApiKey = None) -> None:
    """Download a model to a server's cache, to load it later."""
    _change(lambda client: client.pull_model(name), server, api_key)


def _change(change: Change, server: str | None, api_key: str | None) -> None:
    """Request a change, show its progress, and print the model's final state."""
    from izwi_api.cli.running_server import DEFAULT_URL, running_server
    from izwi_api.client import AsyncClient

    with report_failures():
        server = running_server(server, api_key)
        if not server:
            raise InvalidRequest(
                f"no server runs at {DEFAULT_URL}: name one with --server or IZWI_SERVER",
                param="server",
            )
        last = asyncio.run(_followed(AsyncClient(server, api_key=api_key), change))
    typer.echo(f"{last['model']}\t{last['stage']}")


async def _followed(client: AsyncClient, change: Change) -> dict[str, Any]:
    from izwi.errors import EngineStopped

    last = None
    with messages().status("asking") as status:
        async with client, aclosing(change(client)) as events:
            async for last in events:
                status.update(_line(last))
    if last is None or last.get("stage") not in ("ready", "unloaded"):
        raise EngineStopped("the server closed the connection early")
    return last


def _line(event: dict[str, Any]) -> str:
    done, total = event.get("done_bytes"), event.get("total_bytes")
    line = f"{event['stage']} {event['model']}"
    if done is not None:
        line += f": {done / 1e6:.0f} MB" + (f" of {total / 1e6:.0f}" if total else "")
    return line
