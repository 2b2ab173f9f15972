"""`izwi talk`: answer a spoken question from a file, in speech."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from izwi.errors import InvalidRequest, ModelNotFound
from izwi_api.cli.options import (
    ApiKey,
    Device,
    Dtype,
    Offline,
    Seed,
    ServerUrl,
    Temperature,
    check_seed,
)
from izwi_api.console import messages, report_failures
from izwi_api.settings import DEFAULT_MODELS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from izwi_api.cli.audio_out import Saved
    from izwi_api.cli.target import Target
    from izwi_api.client import AsyncClient, Audio, ResponseStream, SpokenAnswer, SpokenDelta
    from izwi_api.client.talk import TalkOptions

# The default speech-to-speech model; none is small enough to be embedded.
EXAMPLE_MODEL = "LiquidAI/LFM2-Audio-1.5B"

File = Annotated[Path, typer.Argument(help="Audio file to answer; - is stdin.")]
ModelSource = Annotated[
    str | None,
    typer.Option(
        help=f"Folder or hub id of a speech-to-speech model, such as {EXAMPLE_MODEL}, or of a "
        "chat model, which the embedded voice speaks for; with --server its name there, by default "
        "the first.",
        show_default=False,
    ),
]
Voice = Annotated[str | None, typer.Option(help="Voice of the answer, if the model has a choice.")]
System = Annotated[str | None, typer.Option(help="System message before the conversation.")]
Out = Annotated[
    Path | None,
    typer.Option(help="File to write: .wav .mp3 .opus .ogg .flac .aac .pcm; - is stdout."),
]
Format = Annotated[
    str | None,
    typer.Option("--format", help="Audio format. Default: by the file's suffix; WAV on stdout."),
]
MaxNewTokens = Annotated[
    int | None, typer.Option(min=1, help="At most this many text tokens and audio frames together.")
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print the text, the duration and usage as one line of JSON.")
]


def talk(
    file: File,
    model: ModelSource = None,
    voice: Voice = None,
    system: System = None,
    out: Out = None,
    audio_format: Format = None,
    temperature: Temperature = None,
    seed: Seed = None,
    max_new_tokens: MaxNewTokens = None,
    as_json: AsJson = False,
    server: ServerUrl = None,
    api_key: ApiKey = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    offline: Offline = False,
) -> None:
    """Answer the speech in a file with speech, and print the answer's text."""
    from izwi_api.cli.audio_files import AudioFile
    from izwi_api.cli.target import choose_target
    from izwi_api.client import AsyncClient, RuntimeOptions

    with report_failures():
        check_seed(seed)
        is_piped = str(file) == "-"
        target = choose_target(out, audio_format, piped_text=is_piped)
        if as_json and _is_stdout(target):
            raise InvalidRequest("--json and the audio cannot both go to stdout; give --out FILE")
        source = AudioFile(None if is_piped else file, file)
        content = source.read()
        runtime = RuntimeOptions(device, dtype, offline)
        server = _server(server, api_key, model, local_only=runtime != RuntimeOptions())
        if not server:
            source.check(content)  # refuse a broken file before a model is loaded
        models = [*([] if model is None else [model]), *DEFAULT_MODELS]
        client = AsyncClient(server, api_key=api_key, models=models, runtime=runtime)
        options: TalkOptions = {
            "model": model if server else None,  # here it is the first
            "voice": voice,
            "system": system,
            "temperature": temperature,
            "seed": seed,
            "max_completion_tokens": max_new_tokens,
        }
        _report(*asyncio.run(_talk(client, content, options, target)), target, as_json=as_json)


def _server(
    named: str | None, api_key: str | None, model: str | None, *, local_only: bool
) -> str | None:
    """Return the server to use: one with such a model, or with all models of a cascade."""
    from izwi.model.capability import Capability
    from izwi_api.cli.running_server import running_server

    cascade = {Capability.CHAT: model, Capability.SPEAK: None, Capability.TRANSCRIBE: None}
    for serves in ({Capability.CONVERSE: model}, cascade):
        found = running_server(named, api_key, local_only=local_only, serves=serves)
        if found is not None:
            return found
    return None


async def _talk(
    client: AsyncClient, content: bytes, options: TalkOptions, target: Target
) -> tuple[Saved, SpokenAnswer]:
    from izwi_api.cli.audio_out import put
    from izwi_api.client import ResponseStream, SpeechDetails

    async with client:
        stream = client.stream_talk(content, **options)
        try:
            saved = await put(ResponseStream(_audio_of(stream), SpeechDetails()), target)
        except ModelNotFound as error:
            raise ModelNotFound(
                "there is no model to talk with: name one with --model, such as "
                f"{EXAMPLE_MODEL}, or a --server that has one",
                param="model",
            ) from error
        return saved, stream.result


async def _audio_of(stream: ResponseStream[SpokenDelta, SpokenAnswer]) -> AsyncGenerator[Audio]:
    async with stream:
        async for delta in stream:
            if delta.audio is not None:
                yield delta.audio


def _report(saved: Saved, answer: SpokenAnswer, target: Target, *, as_json: bool) -> None:
    """Print the text of the answer, on stdout unless the audio is written there."""
    if as_json:
        fields = {
            "text": answer.text,
            "seconds": round(saved.seconds, 3),
            "finish_reason": answer.finish_reason,
            "prompt_tokens": answer.num_prompt_tokens,
            "completion_tokens": answer.num_tokens,
        }
        typer.echo(json.dumps(fields, ensure_ascii=False))
    else:
        typer.echo(answer.text, err=_is_stdout(target))
    replaced = ", in place of the file that was there" if target.replaces else ""
    messages().print(f"{saved.place}: {saved.seconds:.2f} s of audio{replaced}", markup=False)


def _is_stdout(target: Target) -> bool:
    return target.player is None and str(target.out) == "-"
