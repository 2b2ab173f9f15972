"""`izwi say`: synthesise a text to the speakers, a file or a pipe, also while it is written."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from izwi.audio.tempo import MAX_SPEED, MIN_SPEED
from izwi_api.cli.options import ApiKey, Device, Dtype, Offline, ServerUrl
from izwi_api.console import report_failures
from izwi_api.settings import DEFAULT_MODELS

if TYPE_CHECKING:
    from izwi.inputs import SpeechInput
    from izwi_api.cli.remote import Server
    from izwi_api.cli.sound_out import Saved, Speech
    from izwi_api.cli.target import Target
    from izwi_api.cli.text_in import ArrivingText
    from izwi_api.cli.timed_speech import LocalTimedSpeech, RemoteTimedSpeech
    from izwi_api.runtime_options import RuntimeOptions
    from izwi_api.services.context import Services

# A text on stdin that is complete and no longer than this when the model is loaded is said as if it
# were an argument; any other is said while it is read.
_SHORT_TEXT_CHARS = 4096


class Mode(StrEnum):
    """Text modes by their names on the command line."""

    STREAMING = "streaming"
    FULL = "full"


Text = Annotated[str, typer.Argument(help="What to say; - reads it from stdin, as it comes.")]
Voice = Annotated[str | None, typer.Option(help="A speaker of the checkpoint, or a cloned voice.")]
ModelSource = Annotated[
    str | None,
    typer.Option(help="Folder, hub id or embedded name. Default: embedded, or the server's first."),
]
Out = Annotated[
    Path | None,
    typer.Option(help="File to write: .wav .mp3 .opus .ogg .flac .aac .pcm; - is stdout."),
]
Format = Annotated[
    str | None,
    typer.Option("--format", help="Format of the sound. Default: by the suffix; WAV on stdout."),
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
Words = Annotated[
    Path | None,
    typer.Option(help="JSON file for the start and end of each word."),
]
AlignerSource = Annotated[
    str | None,
    typer.Option(
        help="Folder, hub id or embedded name of the model that times words. Default: embedded, "
        "or the server's."
    ),
]
Speed = Annotated[
    float,
    typer.Option(
        min=MIN_SPEED, max=MAX_SPEED, help="2 takes half the time, 0.5 twice; same pitch."
    ),
]
MaxNewTokens = Annotated[int | None, typer.Option(min=1, help="At most one frame less than this.")]


@dataclass(frozen=True, slots=True)
class Clip:
    """A voice to follow for one speech: what `--ref-audio` and its companions say."""

    path: Path
    text: str | None


@dataclass(frozen=True, slots=True)
class Timing:
    """Where the times of words go, and who finds them: a model, or None for the server's."""

    path: Path
    aligner: str | None


def say(
    text: Text,
    voice: Voice = None,
    model: ModelSource = None,
    out: Out = None,
    audio_format: Format = None,
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
    speed: Speed = 1.0,
    words: Words = None,
    aligner: AlignerSource = None,
    server: ServerUrl = None,
    api_key: ApiKey = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    offline: Offline = False,
) -> None:
    """Say a text aloud, or write it to a file or a pipe."""
    import asyncio

    from izwi.inputs import SpeechInput, TextMode
    from izwi.request import Task
    from izwi_api.cli.remote import Server
    from izwi_api.cli.running_server import running_server
    from izwi_api.cli.target import choose_target
    from izwi_api.runtime_options import RuntimeOptions

    with report_failures():
        runtime = RuntimeOptions(device, dtype, offline)
        local_only = runtime != RuntimeOptions() or save_codes is not None or aligner is not None
        serves = {Task.SPEECH: model} | ({} if words is None else {Task.ALIGNMENT: None})
        server = running_server(server, api_key, local_only=local_only, serves=serves)
        _check(text, seed, save_codes, server)
        ask = SpeechInput(
            text="" if text == "-" else text,
            voice=voice,
            language=language,
            instruct=instruct,
            text_mode=TextMode(text_mode.value) if text_mode else None,
            temperature=temperature,
            seed=seed,
            max_new_tokens=max_new_tokens,
        )
        clip = _clip(ref_audio, ref_text, x_vector_only, voice)
        timing = _timing(words, aligner, server)
        target = choose_target(out, audio_format, speed, piped_text=text == "-")
        if server:
            there = Server(server, api_key)
            saved = asyncio.run(_say_remotely(there, model, ask, clip, target, timing))
        else:
            model = model or DEFAULT_MODELS[0]
            saved = asyncio.run(_say_locally(runtime, model, ask, clip, target, timing))
        _tell(saved, target, save_codes)


def _tell(saved: Saved, target: Target, save_codes: Path | None) -> None:
    """Say what became of the speech, and write its codes where they are wanted."""
    from izwi_api.cli.sound_out import save_codes_to
    from izwi_api.console import messages

    if save_codes is not None:
        save_codes_to(save_codes, saved.codes)
    replaced = ", in place of the file that was there" if target.replaces else ""
    messages().print(f"{saved.place}: {saved.seconds:.2f} s of sound{replaced}", markup=False)


def _check(text: str, seed: int, save_codes: Path | None, server: str | None) -> None:
    from izwi.errors import InvalidRequest
    from izwi_api.cli.target import check_file

    if not text.strip():
        raise InvalidRequest("there is no text to say", param="text")
    if not -(2**63) <= seed < 2**63:
        raise InvalidRequest("the seed must fit in 64 bits", param="seed")
    if save_codes is not None:
        check_file(save_codes, "--save-codes")
        if server:
            raise InvalidRequest("a server sends no codes; use --save-codes without --server")


def _timing(words: Path | None, aligner: str | None, server: str | None) -> Timing | None:
    """Check who is to time the words, before a model is loaded."""
    from izwi.errors import InvalidRequest
    from izwi_api.cli.target import check_file

    if words is None:
        if aligner is not None:
            raise InvalidRequest("--aligner goes with --words")
        return None
    check_file(words, "--words")
    if server is not None and aligner is not None:
        raise InvalidRequest("a server times words with its own model; leave --aligner out")
    return Timing(words, None if server is not None else aligner or DEFAULT_MODELS[2])


def _clip(
    ref_audio: Path | None, ref_text: str | None, x_vector_only: bool, voice: str | None
) -> Clip | None:
    from izwi.errors import InvalidRequest

    if ref_audio is None:
        if ref_text is not None or x_vector_only:
            raise InvalidRequest("--ref-text and --x-vector-only go with --ref-audio")
        return None
    if voice is not None:
        raise InvalidRequest("--voice and --ref-audio name two voices; give one")
    if ref_text is None and not x_vector_only:
        raise InvalidRequest("--ref-audio needs --ref-text, what it says, or --x-vector-only")
    return Clip(ref_audio, None if x_vector_only else ref_text)


async def _say_locally(
    runtime: RuntimeOptions,
    model: str,
    ask: SpeechInput,
    clip: Clip | None,
    target: Target,
    timing: Timing | None,
) -> Saved:
    """Load the model and say it. An empty text is on stdin."""
    from msgspec.structs import replace

    from izwi.inputs import ReferenceClip
    from izwi_api.cli.sound_files import decode_clip
    from izwi_api.cli.sound_out import AtSpeed
    from izwi_api.cli.text_in import ArrivingText, stdin_reader
    from izwi_api.serve.local_services import running_services
    from izwi_api.services.speech import open_speech
    from izwi_api.voices.names import resolve_voice
    from izwi_api.voices.store import REFERENCE_RATE

    arriving = None if ask.text else ArrivingText(stdin_reader())
    if clip is not None:
        samples = decode_clip(clip.path, REFERENCE_RATE)
        ask = replace(ask, voice=ReferenceClip(samples, clip.text))
    sources = [model, timing.aligner] if timing and timing.aligner else [model]
    async with running_services(sources, runtime) as services:
        name = services.registry.names()[0]
        if isinstance(ask.voice, str):
            ask = replace(ask, voice=await resolve_voice(services, name, ask.voice))
        speech: Speech
        if timing is not None:
            whole = replace(ask, text=await arriving.whole()) if arriving is not None else ask
            timed = await _open_timed(services, name, whole, target.speed)
            return await _put_timed(timed, AtSpeed(timed, target.speed), target, timing)
        if arriving is not None:
            speech = await _open_arriving(services, name, ask, arriving)
        else:
            speech = await open_speech(services.engine, services.registry, name, ask)
        return await _put(AtSpeed(speech, target.speed), target)


async def _open_timed(
    services: Services, name: str, ask: SpeechInput, speed: float
) -> LocalTimedSpeech:
    from izwi_api.cli.timed_speech import LocalTimedSpeech
    from izwi_api.services.speech import open_speech
    from izwi_api.services.timed_speech import TimedSpeech, find_word_aligner

    aligner = find_word_aligner(services.engine, services.registry, ask.language)
    speech = await open_speech(services.engine, services.registry, name, ask)
    return LocalTimedSpeech(TimedSpeech(speech, *aligner, speed))


async def _put_timed(
    speech: LocalTimedSpeech | RemoteTimedSpeech, sound: Speech, target: Target, timing: Timing
) -> Saved:
    """Deliver the sound of a speech, then write its words."""
    from izwi_api.cli.timed_speech import write_words

    saved = await _put(sound, target)
    write_words(timing.path, speech.words, saved.seconds)
    return saved


async def _open_arriving(
    services: Services, name: str, ask: SpeechInput, arriving: ArrivingText
) -> Speech:
    """Say the text on stdin: whole if it is short and there, else while it comes."""
    from msgspec.structs import replace

    from izwi.input_stream import WritableModel
    from izwi_api.cli.text_in import DictatedSpeech
    from izwi_api.services.speech import open_speech
    from izwi_api.services.speech_writer import open_speech_writer

    text, complete = arriving.arrived()
    if not isinstance(services.registry.speech(name), WritableModel):
        text, complete = text + await arriving.whole(), True
    elif not complete or len(text) > _SHORT_TEXT_CHARS:
        writer = await open_speech_writer(services.engine, services.registry, name, ask)
        return DictatedSpeech(writer, text, arriving)
    return await open_speech(services.engine, services.registry, name, replace(ask, text=text))


async def _say_remotely(
    server: Server,
    model: str | None,
    ask: SpeechInput,
    clip: Clip | None,
    target: Target,
    timing: Timing | None,
) -> Saved:
    """Let a server say it. A text on stdin that is not there yet is said while it comes."""
    from izwi.request import Task
    from izwi_api.cli.remote_dictation import RemoteDictation
    from izwi_api.cli.text_in import ArrivingText, stdin_reader
    from izwi_api.cli.timed_speech import RemoteTimedSpeech

    arriving = None if ask.text else ArrivingText(stdin_reader())
    name = await server.model(Task.SPEECH, model)
    fields = await _fields(server, name, ask, clip) | {"speed": target.speed}
    if arriving is not None:
        text, complete = arriving.arrived()
        if timing is None and (not complete or len(text) > _SHORT_TEXT_CHARS):
            return await _put(RemoteDictation(server, fields, text, arriving), target)
        fields["input"] = text if complete else text + await arriving.whole()
    if timing is not None:
        there = RemoteTimedSpeech(server, fields)
        return await _put_timed(there, there, target, timing)
    return await _put(await server.speech(fields), target)


async def _fields(
    server: Server, name: str, ask: SpeechInput, clip: Clip | None
) -> dict[str, object]:
    """Return the body of POST /v1/audio/speech."""
    import base64

    voice = ask.voice
    if voice is None and clip is None:
        voice = await server.first_speaker(name)
    content = clip and clip.path.read_bytes()
    return {
        "model": name,
        "input": ask.text,
        "voice": voice,
        "language": ask.language,
        "instructions": ask.instruct,
        "text_mode": ask.text_mode and ask.text_mode.value,
        "temperature": ask.temperature,
        "seed": ask.seed,
        "max_new_tokens": ask.max_new_tokens,
        "ref_audio": content and base64.b64encode(content).decode("ascii"),
        "ref_text": clip and clip.text,
        "x_vector_only": clip is not None and clip.text is None,
    }


async def _put(speech: Speech, target: Target) -> Saved:
    from izwi_api.cli.sound_out import play, save

    if target.player is not None:
        return await play(speech, target.player)
    return await save(speech, target.out, target.audio_format)
