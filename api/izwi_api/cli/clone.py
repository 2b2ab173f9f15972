"""`izwi clone`: keep a voice from a clip."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from izwi_api.cli.options import BAD_INPUT, Device, Dtype, Offline, failures_told, messages
from izwi_api.settings import DEFAULT_MODELS

if TYPE_CHECKING:
    from izwi_api.cli.runtime import Where
    from izwi_api.door import Door
    from izwi_api.voice_store import StoredVoice


def clone(
    clip: Annotated[Path, typer.Argument(help="A few seconds of one speaker.")],
    name: Annotated[str, typer.Option(help="Name of the new voice.")],
    text: Annotated[
        str | None, typer.Option(help="What the clip says. Default: it is transcribed.")
    ] = None,
    x_vector_only: Annotated[
        bool, typer.Option("--x-vector-only", help="Follow the clip's speaker, not its speech.")
    ] = False,
    model: Annotated[str, typer.Option(help="Folder, hub id or embedded name.")] = DEFAULT_MODELS[
        0
    ],
    yes: Annotated[bool, typer.Option("--yes", help="The speaker agreed; do not ask.")] = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    offline: Offline = False,
) -> None:
    """Clone a voice from a clip; then `izwi say --voice NAME`."""
    import asyncio

    from izwi.errors import InvalidRequest
    from izwi_api.cli.runtime import Where
    from izwi_api.voice_store import check_name

    with failures_told():
        check_name(name)
        if text is not None and x_vector_only:
            raise InvalidRequest("--x-vector-only uses no text; give one of the two")
        if not yes and not typer.confirm(
            "Did the person who speaks in this clip agree that their voice is cloned?", err=True
        ):
            messages().print("izwi: nothing was cloned")
            raise typer.Exit(BAD_INPUT)
        where = Where(device, dtype, offline)
        voice = asyncio.run(_clone(clip, name, text, x_vector_only, model, where))
        said = f"; it says: {voice.text}" if voice.text else ""
        messages().print(f"voice {name} is ready{said}", markup=False)


async def _clone(
    clip: Path, name: str, text: str | None, x_vector_only: bool, model: str, where: Where
) -> StoredVoice:
    from izwi.audio.decode import decode_audio
    from izwi.errors import InvalidRequest
    from izwi_api.cli.runtime import running_door
    from izwi_api.voice_store import REFERENCE_RATE
    from izwi_api.voices import encoded_voice

    samples = decode_audio(clip, REFERENCE_RATE)
    transcribes = text is None and not x_vector_only
    sources = [model, DEFAULT_MODELS[1]] if transcribes else [model]
    async with running_door(sources, where) as door:
        speaker, *listeners = door.registry.names()
        if not door.registry.speech(speaker).can_clone:
            raise InvalidRequest(f"model {speaker!r} cannot clone a voice", param="model")
        if transcribes:
            text = await _heard(door, listeners[0], clip)
        stored = door.voices.create(name, samples, text)
        try:
            await encoded_voice(door, speaker, stored)
        except BaseException:
            door.voices.delete(name)  # a clip that cannot be encoded leaves no voice behind
            raise
    return stored


async def _heard(door: Door, listener: str, clip: Path) -> str:
    from izwi.audio.decode import decode_audio
    from izwi.errors import InvalidAudio
    from izwi.request import TranscriptionInput
    from izwi_api.transcribe import SAMPLE_RATE, open_transcription

    ask = TranscriptionInput(decode_audio(clip, SAMPLE_RATE))
    result = await open_transcription(door.engine, door.registry, listener, ask)
    await result.finish()
    if not result.text:
        raise InvalidAudio("no speech was heard in the clip; say with --text what it says")
    return result.text
