"""`izwi voices`: whom a checkpoint can speak as."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from izwi_api.cli.options import ApiKey, Device, Dtype, Offline, ServerUrl, failures_told
from izwi_api.settings import DEFAULT_MODELS

if TYPE_CHECKING:
    from izwi_api.cli.remote import Server
    from izwi_api.door import Door


def voices(
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
    """List the checkpoint's speakers, the cloned voices and OpenAI's names."""
    from izwi_api.cli.remote import Server
    from izwi_api.cli.runtime import Where, open_door

    with failures_told():
        if server:
            found = asyncio.run(_served(Server(server, api_key), model))
        else:
            source = model or DEFAULT_MODELS[0]
            found = list(_known(open_door([source], Where(device, dtype, offline))))
    for name, kind, speaker in found:
        if as_json:
            fields = {"name": name, "kind": kind} | ({"speaker": speaker} if speaker else {})
            typer.echo(json.dumps(fields, ensure_ascii=False))
        else:
            typer.echo(f"{name}\t{kind}" + (f" of {speaker}" if speaker else ""))


def _known(door: Door) -> Iterator[tuple[str, str, str]]:
    """Yield each voice's name, its kind, and the speaker that an alias stands for."""
    from izwi_api.settings import OPENAI_VOICES
    from izwi_api.voices import alias_speaker

    speech_model = door.registry.speech(door.registry.names()[0])
    yield from ((speaker, "speaker", "") for speaker in speech_model.speakers)
    yield from ((name, "cloned", "") for name in door.voices.names())
    for alias in OPENAI_VOICES:
        speaker_of_alias = alias_speaker(speech_model, door.settings, alias)
        if speaker_of_alias:
            yield alias, "alias", speaker_of_alias


async def _served(server: Server, model: str | None) -> list[tuple[str, str, str]]:
    entries = (await server.get("/v1/audio/voices")).get("data", [])
    return [
        (str(entry["name"]), str(entry["kind"]), str(entry.get("speaker") or ""))
        for entry in entries
        if model is None or entry.get("model") in (None, model)
    ]
