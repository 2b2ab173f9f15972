"""`izwi say`: speak a text to the speakers or into a file."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from izwi_api.cli.options import Device, Dtype, Offline, failures_told
from izwi_api.settings import DEFAULT_MODELS

if TYPE_CHECKING:
    from izwi.request import ReferenceClip, SpeechInput
    from izwi_api.cli.runtime import Where
    from izwi_api.cli.sound_out import Saved


class Mode(StrEnum):
    """Text modes by their names on the command line."""

    STREAMING = "streaming"
    FULL = "full"


Text = Annotated[str, typer.Argument(help="What to say; - reads it from stdin.")]
Voice = Annotated[str | None, typer.Option(help="A speaker of the checkpoint, or a cloned voice.")]
ModelSource = Annotated[str, typer.Option(help="Folder, hub id or embedded name.")]
Out = Annotated[
    Path | None, typer.Option(help="File to write: .wav .mp3 .opus .ogg .flac .aac .pcm")
]
Seed = Annotated[int, typer.Option(help="The same seed says it the same way.")]
Temperature = Annotated[
    float | None, typer.Option(min=0.0, max=2.0, help="0 is greedy. Default: the model's.")
]
SaveCodes = Annotated[
    Path | None, typer.Option(help="Write the codec's codes: int64 .npy, frames x codebooks.")
]
Language = Annotated[str | None, typer.Option(help="Language of the text.")]
Instruct = Annotated[str | None, typer.Option(help="How to say it, in words.")]
ModeOfText = Annotated[Mode | None, typer.Option(help="Text beside the sound, or all of it first.")]
RefAudio = Annotated[Path | None, typer.Option(help="Clip whose voice to follow.")]
RefText = Annotated[str | None, typer.Option(help="What the clip says.")]
XVectorOnly = Annotated[
    bool, typer.Option("--x-vector-only", help="Follow the clip's speaker, not its speech.")
]
MaxNewTokens = Annotated[int | None, typer.Option(min=1, help="At most one frame less than this.")]


def say(
    text: Text,
    voice: Voice = None,
    model: ModelSource = DEFAULT_MODELS[0],
    out: Out = None,
    seed: Seed = 0,
    temperature: Temperature = None,
    save_codes: SaveCodes = None,
    language: Language = None,
    instruct: Instruct = None,
    text_mode: ModeOfText = None,
    ref_audio: RefAudio = None,
    ref_text: RefText = None,
    x_vector_only: XVectorOnly = False,
    max_new_tokens: MaxNewTokens = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    offline: Offline = False,
) -> None:
    """Say a text aloud, or write it to a file."""
    import asyncio

    from izwi.errors import InvalidRequest
    from izwi.request import SpeechInput, TextMode
    from izwi_api.cli.options import messages
    from izwi_api.cli.runtime import Where
    from izwi_api.cli.sound_out import format_of, save_codes_to

    with failures_told():
        words = sys.stdin.read() if text == "-" else text
        if not words.strip():
            raise InvalidRequest("there is no text to say", param="text")
        if not -(2**63) <= seed < 2**63:
            raise InvalidRequest("the seed must fit in 64 bits", param="seed")
        if out is not None:
            format_of(out)  # a wrong suffix is said before the models load
        ask = SpeechInput(
            text=words,
            voice=_reference(ref_audio, ref_text, x_vector_only, voice),
            language=language,
            instruct=instruct,
            text_mode=TextMode(text_mode.value) if text_mode else None,
            temperature=temperature,
            seed=seed,
            max_new_tokens=max_new_tokens,
        )
        saved = asyncio.run(_say(model, Where(device, dtype, offline), ask, voice, out))
        if save_codes is not None:
            save_codes_to(save_codes, saved.codes)
        messages().print(f"{saved.place}: {saved.seconds:.2f} s of sound", markup=False)


def _reference(
    ref_audio: Path | None, ref_text: str | None, x_vector_only: bool, voice: str | None
) -> ReferenceClip | None:
    from izwi.audio.decode import decode_audio
    from izwi.errors import InvalidRequest
    from izwi.request import ReferenceClip
    from izwi_api.voice_store import REFERENCE_RATE

    if ref_audio is None:
        if ref_text is not None or x_vector_only:
            raise InvalidRequest("--ref-text and --x-vector-only go with --ref-audio")
        return None
    if voice is not None:
        raise InvalidRequest("--voice and --ref-audio name two voices; give one")
    if ref_text is None and not x_vector_only:
        raise InvalidRequest("--ref-audio needs --ref-text, what it says, or --x-vector-only")
    samples = decode_audio(ref_audio, REFERENCE_RATE)
    return ReferenceClip(samples, None if x_vector_only else ref_text)


async def _say(
    model: str, where: Where, ask: SpeechInput, voice: str | None, out: Path | None
) -> Saved:
    from dataclasses import replace

    from izwi_api.cli.runtime import running_door
    from izwi_api.cli.sound_out import DEFAULT_FILE, find_player, play, save
    from izwi_api.speech import open_speech
    from izwi_api.voices import resolve_voice

    async with running_door([model], where) as door:
        name = door.registry.names()[0]
        if voice is not None:
            ask = replace(ask, voice=await resolve_voice(door, name, voice))
        speech = await open_speech(door.engine, door.registry, name, ask)
        player = find_player() if out is None and sys.stdout.isatty() else None
        if player is not None:
            return await play(speech, player)
        return await save(speech, out or DEFAULT_FILE)
