"""`izwi clone`: store a voice from a clip and preview it."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from izwi_api.cli.options import ApiKey, Device, Dtype, Offline, ServerUrl
from izwi_api.console import BAD_INPUT, messages, report_failures
from izwi_api.settings import DEFAULT_MODELS

if TYPE_CHECKING:
    from izwi_api.cli.remote import Server
    from izwi_api.cli.sound_out import Saved, Speech
    from izwi_api.runtime_options import RuntimeOptions
    from izwi_api.services.context import Services

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
    typer.Option(
        help="Id of a consent recording; replaces the question, and a server may require it."
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="The speaker agreed; do not ask.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Skip the preview.")]
Sample = Annotated[
    Path | None, typer.Option(help="Write the preview to a file instead of playing it.")
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
    from izwi_api.runtime_options import RuntimeOptions
    from izwi_api.voices.store import check_name

    with report_failures():
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
        runtime = RuntimeOptions(device, dtype, offline)
        serves: dict[Task, str | None] = {Task.SPEECH: model}
        if wish.transcribes:
            serves[Task.TRANSCRIPTION] = asr_model
        server = running_server(
            server, api_key, local_only=runtime != RuntimeOptions(), serves=serves
        )
        if server:
            asyncio.run(_clone_remotely(Server(server, api_key), wish))
        else:
            asyncio.run(_clone_locally(runtime, wish))


def _tell_faults(clip: Path) -> None:
    """Report faults of the clip before asking for consent.

    Raises:
        InvalidAudio: It cannot be read.
    """
    from izwi_api.cli.sound_files import decode_clip
    from izwi_api.voices.clip_check import clip_faults, measure_clip
    from izwi_api.voices.store import REFERENCE_RATE

    samples = decode_clip(clip, REFERENCE_RATE)
    for fault in clip_faults(measure_clip(samples, REFERENCE_RATE)):
        messages().print(f"the clip's {fault.name}: {fault.message}", style="yellow", markup=False)


async def _clone_locally(runtime: RuntimeOptions, wish: _Wish) -> None:
    from izwi.errors import InvalidRequest
    from izwi.inputs import SpeechInput
    from izwi_api.serve.local_services import running_services
    from izwi_api.services.speech import open_speech
    from izwi_api.voices.encoding import encoded_voice, keep_voice

    sources = [wish.model or DEFAULT_MODELS[0]]
    if wish.transcribes:
        sources.append(wish.asr_model or DEFAULT_MODELS[1])
    async with running_services(sources, runtime) as services:
        speaker, *listeners = services.registry.names()
        if not services.registry.speech(speaker).can_clone:
            raise InvalidRequest(f"model {speaker!r} cannot clone a voice", param="model")
        services.voices.check_free(wish.name)
        text = await _heard(services, listeners[0], wish.clip) if wish.transcribes else wish.text
        content = wish.clip.read_bytes()
        stored = await keep_voice(services, speaker, wish.name, content, text, consent=wish.consent)
        _tell_ready(wish, text)
        if not wish.quiet:
            voice = await encoded_voice(services, speaker, stored)
            ask = SpeechInput(_SENTENCE, voice, max_new_tokens=_SENTENCE_FRAMES)
            await _say_back(
                await open_speech(services.engine, services.registry, speaker, ask), wish
            )


async def _heard(services: Services, client: str, clip: Path) -> str:
    from izwi.audio.decode import decode_audio
    from izwi.inputs import TranscriptionInput
    from izwi_api.services.transcribe import SAMPLE_RATE, open_transcription

    ask = TranscriptionInput(decode_audio(clip, SAMPLE_RATE))
    result = await open_transcription(
        services.engine,
        services.registry,
        client,
        ask,
        detects_speech=services.settings.detects_speech,
    )
    await result.finish()
    return _checked(result.text)


def _checked(text: str) -> str:
    from izwi.errors import InvalidAudio

    if not text:
        raise InvalidAudio("no speech was heard in the clip; say with --text what it says")
    return text


async def _clone_remotely(server: Server, wish: _Wish) -> None:
    from izwi.request import Task
    from izwi_api.cli.remote import Upload
    from izwi_api.cli.sound_files import SoundFile
    from izwi_api.cli.transcription_clients import RemoteTranscriptionClient

    text = wish.text
    if wish.transcribes:
        client = RemoteTranscriptionClient(server, wish.asr_model, None, "")
        text = _checked((await client.hear(SoundFile(wish.clip, Path(wish.clip.name)))).text)
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
    if saved is None:
        why = "No audio player found" if _is_heard() else "stdout is not a terminal"
        messages().print(f"{why}; preview skipped (--sample FILE writes it).")
        return
    messages().print(
        f"{saved.place}: {wish.name} says {_SENTENCE!r} in {saved.seconds:.1f} s", markup=False
    )


async def _put(speech: Speech, sample: Path | None) -> Saved | None:
    """Write or play the sentence; None if it was only made."""
    import tempfile

    from izwi_api.cli.sound_out import find_player, play, save

    if sample is not None:
        return await save(speech, sample)
    player = find_player() if _is_heard() else None
    if player is not None:
        return await play(speech, player)
    # Made all the same: a voice that cannot speak is found out now.
    with tempfile.TemporaryDirectory() as folder:
        await save(speech, Path(folder) / "sample.wav")
    return None


def _is_heard() -> bool:
    """Whether stdin is a terminal."""
    return sys.stdout.isatty()
