"""`izwi models`: list and name models here; load, unload and pull those of a running server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from izwi.errors import InvalidRequest, ModelNotFound
from izwi_api.cli.options import ApiKey, Command, ListByDefault, ServerUrl
from izwi_api.console import messages, report_failures

if TYPE_CHECKING:
    from izwi_api.client import AsyncClient

    Change = Callable[[AsyncClient], AsyncGenerator[dict[str, Any]]]

app = typer.Typer(
    cls=ListByDefault,
    help="List models, name checkpoints of this machine; load, unload and pull on a server.",
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
    """List the server's models, or without a server those added here and the embedded ones.

    --model takes also a folder or a hub id.
    """
    from izwi.checkpoints.added import added, added_adapters
    from izwi.checkpoints.gguf_folder import gguf_path
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
        found = {**added(), **added_adapters(), **embedded()}
    for name, folder in found.items():
        packed = gguf_path(folder)
        files = [packed] if packed is not None else folder.resolve().rglob("*.safetensors")
        size = sum(file.stat().st_size for file in files if file.is_file())
        if as_json:
            typer.echo(json.dumps({"name": name, "bytes": size, "folder": str(folder)}))
        else:
            typer.echo(f"{name}\t{size / 1e6:.1f} MB\t{folder}")


@app.command(cls=Command)
def add(
    path: Annotated[
        Path, typer.Argument(help="Folder of a checkpoint or an adapter, or a GGUF file.")
    ],
    name: Annotated[
        str | None, typer.Option(help="Its name; by default that of the file or folder.")
    ] = None,
) -> None:
    """Check a checkpoint of this machine, and give it a name for --model."""
    from izwi.checkpoints.added import default_name

    with report_failures():
        path = path.expanduser()
        typer.echo(add_checkpoint(path, name or default_name(path)))


@app.command(cls=Command)
def remove(name: Annotated[str, typer.Argument(help="Name of an added checkpoint.")]) -> None:
    """Forget the name of a checkpoint; its files stay."""
    from izwi.checkpoints.added import remove as forget

    with report_failures():
        if not forget(name):
            raise ModelNotFound(f"no checkpoint was added as {name!r}", param="model")
    typer.echo(f"{name}\tremoved")


def add_checkpoint(path: Path, name: str) -> str:
    """Check a folder or GGUF file, name it, and return a line about it.

    Raises:
        CheckpointError: It is broken, or no family loads it.
        InvalidRequest: The name cannot be used.
    """
    from izwi.checkpoints import added
    from izwi.checkpoints.adapter_folder import is_adapter
    from izwi.checkpoints.description import describe
    from izwi.checkpoints.registry import all_families, embedded

    if added.check_name(name) in embedded():
        raise InvalidRequest(
            f"{name!r} is an embedded checkpoint; give another name with --name", param="name"
        )
    families = all_families()
    if is_adapter(path):
        added.add(path, name, families)
        return f"{name}\tLoRA adapter; a server loads it as MODEL:{name}"
    description = describe(added.folder_of(path, families))
    added.add(path, name, families)
    return f"{name}\t{description}"


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
