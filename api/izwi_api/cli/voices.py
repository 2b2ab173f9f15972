"""`izwi voices`: list, show, delete, export and import voices."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from izwi_api.cli.options import ApiKey, Device, Dtype, ListByDefault, Offline, ServerUrl, Verb
from izwi_api.console import BAD_INPUT, messages, report_failures
from izwi_api.settings import DEFAULT_MODELS

if TYPE_CHECKING:
    from izwi_api.cli.remote import Server
    from izwi_api.services.context import Services
    from izwi_api.voices.archive import VoiceArchive
    from izwi_api.voices.store import StoredVoice, VoiceStore

_STDOUT = Path("-")


app = typer.Typer(
    cls=ListByDefault, help="List the voices; show, delete and carry the stored ones."
)

Key = Annotated[str, typer.Argument(help="Name or id of a stored voice.", show_default=False)]


@app.command("list", cls=Verb)
def list_voices(
    model: Annotated[
        str | None, typer.Option(help="Folder, hub id or embedded name. Default: embedded.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object a line.")] = False,
    server: ServerUrl = None,
    api_key: ApiKey = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    offline: Offline = False,
) -> None:
    """List the checkpoint's speakers, the stored voices and OpenAI's names."""
    from izwi.request import Task
    from izwi_api.cli.remote import Server
    from izwi_api.cli.running_server import running_server
    from izwi_api.runtime_options import RuntimeOptions

    with report_failures():
        runtime = RuntimeOptions(device, dtype, offline)
        server = running_server(
            server, api_key, local_only=runtime != RuntimeOptions(), serves={Task.SPEECH: model}
        )
        if server:
            found = asyncio.run(_served(Server(server, api_key), model))
        else:
            # torch, which a server's asker can spare
            from izwi_api.serve.local_services import open_services

            source = model or DEFAULT_MODELS[0]
            found = list(_known(open_services([source], runtime)))
    for name, kind, speaker in found:
        if as_json:
            fields = {"name": name, "kind": kind} | ({"speaker": speaker} if speaker else {})
            typer.echo(json.dumps(fields, ensure_ascii=False))
        else:
            typer.echo(f"{name}\t{kind}" + (f" of {speaker}" if speaker else ""))


@app.command(cls=Verb)
def show(key: Key, server: ServerUrl = None, api_key: ApiKey = None) -> None:
    """Print what is known of a voice, as a JSON object."""
    from izwi_api.cli.running_server import running_server
    from izwi_api.cli.voice_server import VoiceServer
    from izwi_api.schemas.voices import stored_entry

    with report_failures():
        server = running_server(server, api_key)
        if server:
            entry = asyncio.run(VoiceServer(server, api_key).voice(key))
        else:
            entry = stored_entry(_store().get(key))
    typer.echo(json.dumps(entry, ensure_ascii=False, indent=1))


@app.command(cls=Verb)
def delete(
    key: Key,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    server: ServerUrl = None,
    api_key: ApiKey = None,
) -> None:
    """Forget a voice, its clip included."""
    from izwi_api.cli.running_server import running_server
    from izwi_api.cli.voice_server import VoiceServer

    with report_failures():
        server = running_server(server, api_key)
        there = VoiceServer(server, api_key) if server else None
        # a name that is wrong is refused before the question
        name = asyncio.run(there.stored_name(key)) if there else _store().get(key).name
        if not yes and not typer.confirm(f"Delete voice {name}? Its clip goes too.", err=True):
            messages().print("izwi: nothing was deleted")
            raise typer.Exit(BAD_INPUT)
        if there:
            asyncio.run(there.delete_voice(key))
        else:
            _store().delete(key)
        messages().print(f"voice {name} is deleted", markup=False)


@app.command("export", cls=Verb)
def export_voice(
    key: Key,
    out: Annotated[
        Path | None, typer.Option(help="File to write; - is stdout. Default: NAME.voice.zip.")
    ] = None,
    server: ServerUrl = None,
    api_key: ApiKey = None,
) -> None:
    """Write a voice into one file: its clip, what it says, what was said of consent."""
    from izwi.errors import InvalidRequest
    from izwi_api.cli.running_server import running_server
    from izwi_api.cli.target import check_file, check_stdout
    from izwi_api.cli.voice_server import VoiceServer
    from izwi_api.voices.archive import pack_voice

    with report_failures():
        if out == _STDOUT:
            check_stdout("--out")
        elif out is not None:
            check_file(out, "--out")
        server = running_server(server, api_key)
        if server:
            archive = asyncio.run(VoiceServer(server, api_key).archive(key))
        else:
            archive = _archive_of(_store().get(key))
        content = pack_voice(archive)
        if out == _STDOUT:
            sys.stdout.buffer.write(content)
            return
        path = out or Path(f"{archive.name}.voice.zip")
        if out is None and path.exists():
            raise InvalidRequest(f"{path} is there already; name another with --out", param="out")
        path.write_bytes(content)
        messages().print(f"{path}: voice {archive.name}", markup=False)


@app.command("import", cls=Verb)
def import_voice(
    file: Annotated[Path, typer.Argument(help="What `izwi voices export` wrote; - is stdin.")],
    name: Annotated[str | None, typer.Option(help="Another name for it.")] = None,
    consent: Annotated[
        str | None, typer.Option(help="Id of a consent recording, where the server wants one.")
    ] = None,
    server: ServerUrl = None,
    api_key: ApiKey = None,
) -> None:
    """Keep the voice of an exported file."""
    from dataclasses import replace

    from izwi_api.cli.running_server import running_server
    from izwi_api.cli.voice_server import VoiceServer
    from izwi_api.voices.archive import unpack_voice

    with report_failures():
        content = sys.stdin.buffer.read() if file == _STDOUT else file.read_bytes()
        archive = unpack_voice(content, _settings().max_reference_bytes)
        archive = replace(archive, name=name or archive.name, consent=consent or archive.consent)
        server = running_server(server, api_key)
        if server:
            asyncio.run(VoiceServer(server, api_key).keep(archive))
        else:
            _keep(archive)
        messages().print(f"voice {archive.name} is ready", markup=False)


def _keep(archive: VoiceArchive) -> None:
    from izwi.audio.decode import decode_audio
    from izwi_api.voices.store import REFERENCE_RATE

    limits = _settings().reference_limits
    decode_audio(archive.sample, REFERENCE_RATE, limits=limits)  # what is no sound is told now
    _store().create(
        archive.name, archive.sample, archive.text, consent=archive.consent, prompt=archive.prompt
    )


def _archive_of(voice: StoredVoice) -> VoiceArchive:
    from izwi_api.voices.archive import VoiceArchive

    return VoiceArchive(voice.name, voice.sample(), voice.text, voice.prompt, voice.consent)


def _settings() -> Any:
    from izwi_api.settings import read_settings

    return read_settings(os.environ)


def _store() -> VoiceStore:
    """Return the store of this machine's user; no model is needed for it."""
    from izwi_api.voices.store import VoiceStore

    return VoiceStore(_settings().home / "voices")


def _known(services: Services) -> Iterator[tuple[str, str, str]]:
    """Yield each voice's name, its kind, and the speaker that an alias stands for."""
    from izwi_api.settings import OPENAI_VOICES
    from izwi_api.voices.names import alias_speaker

    speech_model = services.registry.speech(services.registry.names()[0])
    yield from ((speaker, "speaker", "") for speaker in speech_model.speakers)
    stored = services.voices.names()
    yield from ((name, "cloned", "") for name in stored)
    for alias in OPENAI_VOICES:
        speaker_of_alias = alias_speaker(speech_model, services.settings, alias)
        if speaker_of_alias and alias not in stored:
            yield alias, "alias", speaker_of_alias


async def _served(server: Server, model: str | None) -> list[tuple[str, str, str]]:
    entries = (await server.get("/v1/audio/voices")).get("data", [])
    return [
        (str(entry["name"]), str(entry["kind"]), str(entry.get("speaker") or ""))
        for entry in entries
        if model is None or entry.get("model") in (None, model)
    ]
