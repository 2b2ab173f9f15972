"""`izwi voices`: whom a checkpoint can speak as."""

from __future__ import annotations

from typing import Annotated

import typer

from izwi_api.cli.options import Device, Dtype, Offline, failures_told
from izwi_api.settings import DEFAULT_MODELS


def voices(
    model: Annotated[str, typer.Option(help="Folder, hub id or embedded name.")] = DEFAULT_MODELS[
        0
    ],
    device: Device = "auto",
    dtype: Dtype = "auto",
    offline: Offline = False,
) -> None:
    """List the checkpoint's speakers, the cloned voices and OpenAI's names."""
    from izwi_api.cli.runtime import Where, open_door
    from izwi_api.settings import OPENAI_VOICES
    from izwi_api.voices import alias_speaker

    with failures_told():
        door = open_door([model], Where(device, dtype, offline))
        speech_model = door.registry.speech(door.registry.names()[0])
        for speaker in speech_model.speakers:
            typer.echo(f"{speaker}\tspeaker")
        for name in door.voices.names():
            typer.echo(f"{name}\tcloned")
        for alias in OPENAI_VOICES:
            speaker_of_alias = alias_speaker(speech_model, door.settings, alias)
            if speaker_of_alias:
                typer.echo(f"{alias}\talias of {speaker_of_alias}")
