"""`izwi voices`: list, show, delete, export and import voices."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from izwi_api.cli.options import ApiKey, Command, Device, Dtype, ListByDefault, Offline, ServerUrl
from izwi_api.console import BAD_INPUT, messages, report_failures
from izwi_api.settings import DEFAULT_MODELS

if TYPE_CHECKING:
    from izwi_api.client import AsyncClient
    from izwi_api.voices.archive import VoiceArchive

T = TypeVar("T")

_STDOUT = Path("-")
_NOBODY = "nobody's voice: from a description"


app = typer.Typer(
    cls=ListByDefault, help="List voices; show, delete, export and import stored ones."
)

Key = Annotated[str, typer.Argument(help="Name or id of a stored voice.", show_default=False)]


@app.command("list", cls=Command)
def list_voices(
    model: Annotated[
        str | None, typer.Option(help="Folder, hub id or embedded name. Default: embedded.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per line.")
    ] = False,
    server: ServerUrl = None,
    api_key: ApiKey = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    offline: Offline = False,
) -> None:
    """List the checkpoint's speakers, the stored voices and OpenAI's names."""
    from izwi.model.capability import Capability
    from izwi_api.cli.running_server import running_server
    from izwi_api.client import AsyncClient, RuntimeOptions

    with report_failures():
        runtime = RuntimeOptions(device, dtype, offline)
        server = running_server(
            server,
            api_key,
            local_only=runtime != RuntimeOptions(),
            serves={Capability.SPEAK: model},
        )
        models = [model or DEFAULT_MODELS[0]]
        client = AsyncClient(server, api_key=api_key, models=models, runtime=runtime)
        found = asyncio.run(_listed(client, model if server else None))
    for name, kind, speaker in found:
        if as_json:
            fields = {"name": name, "kind": kind} | ({"speaker": speaker} if speaker else {})
            typer.echo(json.dumps(fields, ensure_ascii=False))
        else:
            typer.echo(f"{name}\t{kind}" + (f" of {speaker}" if speaker else ""))


@app.command(cls=Command)
def show(key: Key, server: ServerUrl = None, api_key: ApiKey = None) -> None:
    """Print a stored voice as a JSON object."""
    with report_failures():
        entry = _ask(server, api_key, lambda client: client.voice(key))
    typer.echo(json.dumps(entry, ensure_ascii=False, indent=1))


@app.command(cls=Command)
def delete(
    key: Key,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    server: ServerUrl = None,
    api_key: ApiKey = None,
) -> None:
    """Delete a voice and its clip."""
    with report_failures():
        # refuse a wrong name before asking
        name = _ask(server, api_key, lambda client: _stored(client, key))["name"]
        if not yes and not typer.confirm(f"Delete voice {name}? Its clip goes too.", err=True):
            messages().print("izwi: nothing was deleted")
            raise typer.Exit(BAD_INPUT)
        _ask(server, api_key, lambda client: client.delete_voice(key))
        messages().print(f"voice {name} is deleted", markup=False)


@app.command("export", cls=Command)
def export_voice(
    key: Key,
    out: Annotated[
        Path | None, typer.Option(help="File to write; - is stdout. Default: NAME.voice.zip.")
    ] = None,
    server: ServerUrl = None,
    api_key: ApiKey = None,
) -> None:
    """Write a voice to one file: its clip, the clip's text and the consent."""
    from izwi.errors import InvalidRequest
    from izwi_api.cli.audio_out import whole_file
    from izwi_api.cli.target import check_file, check_stdout
    from izwi_api.voices.archive import pack_voice

    with report_failures():
        if out == _STDOUT:
            check_stdout("--out")
        elif out is not None:
            check_file(out, "--out")
        archive = _ask(server, api_key, lambda client: _archive(client, key))
        content = pack_voice(archive)
        if out == _STDOUT:
            sys.stdout.buffer.write(content)
            return
        path = out or Path(f"{archive.name}.voice.zip")
        if out is None and path.exists():
            raise InvalidRequest(
                f"{path} exists already; name another file with --out", param="out"
            )
        with whole_file(path) as file:
            file.write(content)
        messages().print(f"{path}: voice {archive.name}", markup=False)


@app.command("import", cls=Command)
def import_voice(
    file: Annotated[Path, typer.Argument(help="File that `izwi voices export` wrote; - is stdin.")],
    name: Annotated[str | None, typer.Option(help="Store it under another name.")] = None,
    consent: Annotated[
        str | None, typer.Option(help="Id of a consent recording, if the server requires one.")
    ] = None,
    server: ServerUrl = None,
    api_key: ApiKey = None,
) -> None:
    """Store the voice from an exported file."""
    from dataclasses import replace

    from izwi_api.environment import read_settings
    from izwi_api.voices.archive import unpack_voice

    with report_failures():
        content = sys.stdin.buffer.read() if file == _STDOUT else file.read_bytes()
        archive = unpack_voice(content, read_settings(os.environ).max_reference_bytes)
        archive = replace(archive, name=name or archive.name, consent=consent or archive.consent)
        _ask(server, api_key, lambda client: _import_voice(client, archive))
        messages().print(f"voice {archive.name} is ready", markup=False)


def _ask(
    server: str | None, api_key: str | None, ask: Callable[[AsyncClient], Coroutine[Any, Any, T]]
) -> T:
    """Use the given or the local server, else this process, which needs no model for this."""
    from izwi_api.cli.running_server import running_server
    from izwi_api.client import AsyncClient

    async def asked() -> T:
        chosen = running_server(server, api_key)
        async with AsyncClient(chosen, api_key=api_key, models=()) as client:
            return await ask(client)

    return asyncio.run(asked())


async def _stored(client: AsyncClient, key: str) -> dict[str, Any]:
    """Return a stored voice. Raises InvalidRequest for a model's own speaker."""
    from izwi.errors import InvalidRequest

    entry = await client.voice(key)
    if entry.get("kind") != "cloned":
        raise InvalidRequest(
            f"{key!r} is a speaker of the model, not a stored voice", param="voice"
        )
    return entry


async def _archive(client: AsyncClient, key: str) -> VoiceArchive:
    """Return a stored voice with its clip."""
    from izwi_api.voices.archive import VoiceArchive

    entry = await _stored(client, key)
    sample = await client.voice_clip(str(entry["id"]))
    return VoiceArchive(
        str(entry["name"]),
        sample,
        entry.get("ref_text"),
        entry.get("prompt"),
        entry.get("consent"),
    )


async def _import_voice(client: AsyncClient, voice: VoiceArchive) -> None:
    """Make a voice from an archive. Raises InvalidAudio and InvalidRequest."""
    from izwi.errors import InvalidRequest
    from izwi_api.cli.audio_files import check_audio

    check_audio(voice.sample)
    consent = voice.consent or (_NOBODY if voice.prompt else None)
    if consent is None:
        raise InvalidRequest(
            "the file has no consent of the speaker; give it with --consent",
            param="consent",
        )
    await client.clone(
        voice.name,
        voice.sample,
        voice.text,
        consent=consent,
        x_vector_only=voice.text is None,
        prompt=voice.prompt,
    )


async def _listed(client: AsyncClient, model: str | None) -> list[tuple[str, str, str]]:
    """Return each voice's name, kind, and, for an alias, its speaker."""
    async with client:
        return [
            (str(entry["name"]), str(entry["kind"]), str(entry.get("speaker") or ""))
            for entry in await client.voices()
            if model is None or entry.get("model") in (None, model)
        ]
