"""`izwi clone`: keep a voice from a clip, and hear it."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from izwi_api.cli.options import (
    BAD_INPUT,
    ApiKey,
    Device,
    Dtype,
    Offline,
    ServerUrl,
    failures_told,
    messages,
)
from izwi_api.settings import DEFAULT_MODELS

if TYPE_CHECKING:
    from izwi_api.cli.remote import Server
    from izwi_api.cli.sound_out import Saved, Speech
    from izwi_api.door import Door
    from izwi_api.where import Where

_CONSENT = "Did the person who speaks in this clip agree that their voice is cloned?"
_AGREED = "the speaker agreed"  # or we would not have come so far
_SENTENCE = "Hello, this is how I sound now."
# A voice that went wrong may not find the end of the sentence.
_SENTENCE_FRAMES = 75

Clip = Annotated[Path, typer.Argument(help="A few seconds of one speaker.")]
Name = Annotated[str, typer.Option(help="Name of the new voice.")]
Text = Annotated[str | None, typer.Option(help="What the clip says. Default: it is transcribed.")]
XVectorOnly = Annotated[
    bool, typer.Option("--x-vector-only", help="Follow the clip's speaker, not its speech.")
]
ModelSource = Annotated[
    str | None,
    typer.Option(help="Folder, hub id or embedded name. Default: embedded, or the server's first."),
]
AsrModel = Annotated[
    str | None, typer.Option(help="What transcribes the clip. Default: as for --model.")
]
Consent = Annotated[
    str | None,
    typer.Option(help="Id of a consent recording; a server may want one. Then nobody is asked."),
]
Yes = Annotated[bool, typer.Option("--yes", help="The speaker agreed; do not ask.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Say no sentence with the new voice.")]
Sample = Annotated[
    Path | None, typer.Option(help="Write that sentence to a file, if nobody listens.")
]


@dataclass(frozen=True, slots=True)
class _Wish:
    """What is to be cloned.

    Attributes:
        text: What the clip says, None where that is to be heard or does not matter.
        asr_model: What hears it.
        consent: What is kept of the speaker's consent.
        sample: File for a sentence of the new voice.
    """

    clip: Path
    name: str
    text: str | None
    x_vector_only: bool
    model: str | None
    asr_model: str | None
    consent: str
    quiet: bool
    sample: Path | None

    @property
    def transcribes(self) -> bool:
        """Whether the clip's text is still to be heard."""
        return self.text is None and not self.x_vector_only


def clone(
    clip: Clip,
    name: Name,
    text: Text = None,
    x_vector_only: XVectorOnly = False,
    model: ModelSource = None,
    asr_model: AsrModel = None,
    consent: Consent = None,
    yes: Yes = False,
    quiet: Quiet = False,
    sample: Sample = None,
    server: ServerUrl = None,
    api_key: ApiKey = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    offline: Offline = False,
) -> None:
    """Clone a voice from a clip; then `izwi say --voice NAME`."""
    from izwi.errors import InvalidRequest
    from izwi.request import Task
    from izwi_api.cli.remote import Server
    from izwi_api.cli.running_server import running_server
    from izwi_api.cli.sound_out import format_of
    from izwi_api.voice_store import check_name
    from izwi_api.where import Where

    with failures_told():
        check_name(name)
        if text is not None and x_vector_only:
            raise InvalidRequest("--x-vector-only uses no text; give one of the two")
        if sample is not None:
            format_of(sample)
        _tell_faults(clip)
        if consent is None and not yes and not typer.confirm(_CONSENT, err=True):
            messages().print("izwi: nothing was cloned")
            raise typer.Exit(BAD_INPUT)
        agreed = consent or _AGREED
        wish = _Wish(clip, name, text, x_vector_only, model, asr_model, agreed, quiet, sample)
        where = Where(device, dtype, offline)
        serves: dict[Task, str | None] = {Task.SPEECH: model}
        if wish.transcribes:
            serves[Task.TRANSCRIPTION] = asr_model
        server = running_server(server, api_key, only_here=where != Where(), serves=serves)
        if server:
            asyncio.run(_clone_there(Server(server, api_key), wish))
        else:
            asyncio.run(_clone_here(where, wish))


def _tell_faults(clip: Path) -> None:
    """Say what is wrong with the clip, before anybody agrees to anything.

    Raises:
        InvalidAudio: It cannot be read.
    """
    from izwi.audio.decode import decode_audio
    from izwi_api.clip_check import clip_faults, measure_clip
    from izwi_api.voice_store import REFERENCE_RATE

    samples = decode_audio(clip, REFERENCE_RATE)
    for fault in clip_faults(measure_clip(samples, REFERENCE_RATE)):
        messages().print(f"the clip's {fault.name}: {fault.message}", style="yellow", markup=False)


async def _clone_here(where: Where, wish: _Wish) -> None:
    from izwi.errors import InvalidRequest
    from izwi.request import SpeechInput
    from izwi_api.cli.runtime import running_door
    from izwi_api.speech import open_speech
    from izwi_api.voice_encoding import encoded_voice, keep_voice

    sources = [wish.model or DEFAULT_MODELS[0]]
    if wish.transcribes:
        sources.append(wish.asr_model or DEFAULT_MODELS[1])
    async with running_door(sources, where) as door:
        speaker, *listeners = door.registry.names()
        if not door.registry.speech(speaker).can_clone:
            raise InvalidRequest(f"model {speaker!r} cannot clone a voice", param="model")
        door.voices.check_free(wish.name)
        text = await _heard(door, listeners[0], wish.clip) if wish.transcribes else wish.text
        content = wish.clip.read_bytes()
        stored = await keep_voice(door, speaker, wish.name, content, text, consent=wish.consent)
        _tell_ready(wish, text)
        if not wish.quiet:
            voice = await encoded_voice(door, speaker, stored)
            ask = SpeechInput(_SENTENCE, voice, max_new_tokens=_SENTENCE_FRAMES)
            await _say_back(await open_speech(door.engine, door.registry, speaker, ask), wish)


async def _heard(door: Door, listener: str, clip: Path) -> str:
    from izwi.audio.decode import decode_audio
    from izwi.request import TranscriptionInput
    from izwi_api.transcribe import SAMPLE_RATE, open_transcription

    ask = TranscriptionInput(decode_audio(clip, SAMPLE_RATE))
    result = await open_transcription(door.engine, door.registry, listener, ask)
    await result.finish()
    return _checked(result.text)


def _checked(text: str) -> str:
    from izwi.errors import InvalidAudio

    if not text:
        raise InvalidAudio("no speech was heard in the clip; say with --text what it says")
    return text


async def _clone_there(server: Server, wish: _Wish) -> None:
    from izwi.request import Task
    from izwi_api.cli.listeners import ServerListener
    from izwi_api.cli.remote import Upload
    from izwi_api.cli.sound_files import SoundFile

    text = wish.text
    if wish.transcribes:
        listener = ServerListener(server, wish.asr_model, None, "")
        text = _checked((await listener.hear(SoundFile(wish.clip, Path(wish.clip.name)))).text)
    upload = Upload("audio_sample", f"clip{wish.clip.suffix}", wish.clip.read_bytes())
    fields = {
        "name": wish.name,
        "consent": wish.consent,
        "ref_text": text,
        "x_vector_only": "true" if wish.x_vector_only else None,
    }
    await server.post_form("/v1/audio/voices", fields, upload)
    _tell_ready(wish, text)
    if not wish.quiet:
        name = await server.model(Task.SPEECH, wish.model)
        ask = {"model": name, "voice": wish.name, "input": _SENTENCE}
        await _say_back(await server.speech(ask | {"max_new_tokens": _SENTENCE_FRAMES}), wish)


def _tell_ready(wish: _Wish, text: str | None) -> None:
    said = f"; it says: {text}" if text else ""
    messages().print(f"voice {wish.name} is ready{said}", markup=False)


async def _say_back(speech: Speech, wish: _Wish) -> None:
    """Say a sentence with the new voice: played, written to a file, or only made."""
    saved = await _put(speech, wish.sample)
    messages().print(
        f"{saved.place}: {wish.name} says {_SENTENCE!r} in {saved.seconds:.1f} s", markup=False
    )


async def _put(speech: Speech, sample: Path | None) -> Saved:
    import tempfile
    from dataclasses import replace

    from izwi_api.cli.sound_out import find_player, play, save

    if sample is not None:
        return await save(speech, sample)
    player = find_player() if _is_heard() else None
    if player is not None:
        return await play(speech, player)
    # Nobody listens, but a voice that cannot speak is found out now.
    with tempfile.TemporaryDirectory() as folder:
        saved = await save(speech, Path(folder) / "sample.wav")
    return replace(saved, place="not played")


def _is_heard() -> bool:
    """Whether somebody sits there."""
    return sys.stdout.isatty()
