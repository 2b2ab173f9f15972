"""`izwi say`: synthesise a text to the speakers, a file or a pipe, also while it is written."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from izwi.audio.encode import PCM_RATE
from izwi.audio.limits import MAX_SPEED, MIN_SPEED
from izwi_api.cli.options import (
    ApiKey,
    Device,
    Dtype,
    Offline,
    ServerUrl,
    Temperature,
    check_seed,
)
from izwi_api.console import report_failures
from izwi_api.settings import DEFAULT_MODELS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from izwi_api.cli.audio_out import Saved
    from izwi_api.cli.target import Target
    from izwi_api.client import AsyncClient
    from izwi_api.client.speech import SpeechOptions

# Text on stdin that is complete, and no longer than this, when the model is loaded is spoken like
# an argument; other text is spoken while it is read.
_SHORT_TEXT_CHARS = 4096


class Mode(StrEnum):
    """Text modes by their names on the command line."""

    STREAMING = "streaming"
    FULL = "full"


Text = Annotated[
    str, typer.Argument(help="Text to say; - reads stdin, and speaks while text arrives.")
]
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
    typer.Option("--format", help="Audio format. Default: by the file's suffix; WAV on stdout."),
]
Seed = Annotated[int, typer.Option(help="The same seed gives the same audio.")]
SaveCodes = Annotated[
    Path | None, typer.Option(help="Write the codec's codes: int64 .npy, frames x codebooks.")
]
Language = Annotated[str | None, typer.Option(help="Language of the text.")]
Instruct = Annotated[str | None, typer.Option(help="How to speak, in words.")]
ModeOfText = Annotated[
    Mode | None,
    typer.Option(help="streaming reads text while it speaks, full reads all of it first."),
]
RefAudio = Annotated[Path | None, typer.Option(help="Clip whose voice to clone.")]
RefText = Annotated[str | None, typer.Option(help="What the clip says.")]
XVectorOnly = Annotated[
    bool,
    typer.Option(
        "--x-vector-only", help="Clone only the speaker's voice, not how the clip is spoken."
    ),
]
Words = Annotated[
    Path | None,
    typer.Option(help="Write the start and end of each word to this JSON file."),
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
        min=MIN_SPEED,
        max=MAX_SPEED,
        help="2 speaks twice as fast, 0.5 half as fast, at the same pitch.",
    ),
]
Pronounce = Annotated[
    list[str] | None,
    typer.Option(metavar="WORD=SPELLING", help="Speak a word as spelled here; repeatable."),
]
MaxNewTokens = Annotated[
    int | None,
    typer.Option(min=1, help="At most this many codec tokens; the last one ends the speech."),
]


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
    pronounce: Pronounce = None,
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

    from izwi.model.capability import Capability
    from izwi_api.cli.running_server import running_server
    from izwi_api.cli.target import choose_target
    from izwi_api.client import AsyncClient, RuntimeOptions

    with report_failures():
        runtime = RuntimeOptions(device, dtype, offline)
        local_only = runtime != RuntimeOptions() or aligner is not None
        serves = {Capability.SPEAK: model} | ({} if words is None else {Capability.ALIGN: None})
        server = running_server(server, api_key, local_only=local_only, serves=serves)
        _check(text, seed, save_codes)
        _check_timing(words, aligner, server)
        options: SpeechOptions = {
            "model": model if server else None,
            "voice": voice,
            "language": language,
            "instructions": instruct,
            "text_mode": text_mode and text_mode.value,
            "temperature": temperature,
            "seed": seed,
            "max_new_tokens": max_new_tokens,
            "speed": speed,
            "pronunciations": _pronunciations(pronounce or []),
            "word_timestamps": words is not None,
            "include_codes": save_codes is not None,
        }
        options |= _clip(ref_audio, ref_text, x_vector_only, voice)
        target = choose_target(out, audio_format, piped_text=text == "-")
        models = [model or DEFAULT_MODELS[0]] + [aligner or DEFAULT_MODELS[2]] * bool(words)
        client = AsyncClient(server, api_key=api_key, models=models, runtime=runtime)
        saved = asyncio.run(_say(client, text, options, target, words))
        _report(saved, target, save_codes)


def _report(saved: Saved, target: Target, save_codes: Path | None) -> None:
    """Report where the speech went, and write its codes if requested."""
    from izwi_api.cli.audio_out import save_codes_to
    from izwi_api.console import messages

    if save_codes is not None:
        save_codes_to(save_codes, saved.details.codes)
    if "instructions" in saved.details.ignored:
        messages().print("this model does not follow instructions; --instruct changed nothing")
    replaced = ", in place of the file that was there" if target.replaces else ""
    messages().print(f"{saved.place}: {saved.seconds:.2f} s of audio{replaced}", markup=False)


def _pronunciations(pairs: list[str]) -> dict[str, str] | None:
    from izwi.errors import InvalidRequest
    from izwi_api.services.speech.spoken_text import Pronunciations

    spellings = {}
    for pair in pairs:
        word, sign, spelling = pair.partition("=")
        if not sign:
            raise InvalidRequest(f"--pronounce takes WORD=SPELLING, got {pair!r}")
        spellings[word] = spelling
    Pronunciations(spellings)  # refuse invalid ones before a model is loaded
    return spellings or None


def _check(text: str, seed: int, save_codes: Path | None) -> None:
    from izwi.errors import InvalidRequest
    from izwi_api.cli.target import check_file

    if not text.strip():
        raise InvalidRequest("there is no text to say", param="text")
    check_seed(seed)
    if save_codes is not None:
        check_file(save_codes, "--save-codes")


def _check_timing(words: Path | None, aligner: str | None, server: str | None) -> None:
    """Check that words can be timed, before a model is loaded."""
    from izwi.errors import InvalidRequest
    from izwi_api.cli.target import check_file

    if words is None:
        if aligner is not None:
            raise InvalidRequest("--aligner needs --words")
        return
    check_file(words, "--words")
    if server is not None and aligner is not None:
        raise InvalidRequest("a server times words with its own model; remove --aligner")


def _clip(
    ref_audio: Path | None, ref_text: str | None, x_vector_only: bool, voice: str | None
) -> SpeechOptions:
    from izwi.errors import InvalidRequest
    from izwi_api.cli.audio_files import decode_clip

    if ref_audio is None:
        if ref_text is not None or x_vector_only:
            raise InvalidRequest("--ref-text and --x-vector-only need --ref-audio")
        return {}
    if voice is not None:
        raise InvalidRequest("use either --voice or --ref-audio, not both")
    if ref_text is None and not x_vector_only:
        raise InvalidRequest("--ref-audio needs --ref-text (what the clip says) or --x-vector-only")
    decode_clip(ref_audio, PCM_RATE)  # refuse a broken clip before a model is loaded
    return {
        "ref_audio": ref_audio,
        "ref_text": None if x_vector_only else ref_text,
        "x_vector_only": x_vector_only,
    }


async def _say(
    client: AsyncClient, text: str, options: SpeechOptions, target: Target, words: Path | None
) -> Saved:
    """Speak a text, and write the times of its words. The text "-" is on stdin."""
    from izwi_api.cli.audio_out import put, write_words
    from izwi_api.cli.text_in import ArrivingText, stdin_reader

    arriving = ArrivingText(stdin_reader()) if text == "-" else None
    async with client:
        written: str | AsyncGenerator[str] = text
        if arriving is not None:
            written = await arriving.whole_or_pieces(_SHORT_TEXT_CHARS)
        saved = await put(client.stream_speech(written, **options), target)
        if words is not None:
            write_words(words, saved.details.words, saved.seconds)
        return saved
