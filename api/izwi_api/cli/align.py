"""`izwi align`: print the time of each word of a text in an audio file."""

from __future__ import annotations

import asyncio
import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from izwi.errors import InvalidRequest
from izwi_api.cli.options import ApiKey, Device, Dtype, Offline, ServerUrl
from izwi_api.console import report_failures
from izwi_api.settings import DEFAULT_MODELS

if TYPE_CHECKING:
    from izwi.model.alignment import AlignedWord


class Format(StrEnum):
    """The output format of the words."""

    TEXT = "text"
    JSON = "json"
    SRT = "srt"
    VTT = "vtt"


File = Annotated[Path, typer.Argument(help="Audio file; - is stdin.")]
Text = Annotated[str | None, typer.Option(help="The text spoken in the file.")]
TextFile = Annotated[Path | None, typer.Option(help="File with the text.")]
ModelSource = Annotated[
    str | None,
    typer.Option(help="Folder, hub id or embedded name. Default: embedded, or the server's first."),
]
Language = Annotated[str | None, typer.Option(help="Spoken language; needed for Japanese.")]
WordFormat = Annotated[Format, typer.Option("--format", help="Output format.")]


def align(
    file: File,
    text: Text = None,
    text_file: TextFile = None,
    model: ModelSource = None,
    language: Language = None,
    word_format: WordFormat = Format.TEXT,
    server: ServerUrl = None,
    api_key: ApiKey = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    offline: Offline = False,
) -> None:
    """Print the start and end of each word of a text in an audio file."""
    from izwi.model.capability import Capability
    from izwi_api.cli.audio_files import AudioFile, check_audio
    from izwi_api.cli.running_server import running_server
    from izwi_api.client import AsyncClient, RuntimeOptions

    with report_failures():
        source = AudioFile(None if str(file) == "-" else file, Path(file.name))
        said = _said(text, text_file)
        runtime = RuntimeOptions(device, dtype, offline)
        server = running_server(
            server,
            api_key,
            local_only=runtime != RuntimeOptions(),
            serves={Capability.ALIGN: model},
        )
        content = source.read()
        check_audio(content)  # refuse a broken file before a model is loaded
        models = [model or DEFAULT_MODELS[2]]
        client = AsyncClient(server, api_key=api_key, models=models, runtime=runtime)

        async def aligned() -> list[AlignedWord]:
            async with client:
                served = model if server else None
                return await client.align(content, said, model=served, language=language)

        sys.stdout.write(_page(word_format, said, asyncio.run(aligned())))


def _said(text: str | None, text_file: Path | None) -> str:
    if (text is None) == (text_file is None):
        raise InvalidRequest("use either --text or --text-file", param="text")
    if text_file is None:
        assert text is not None
        return text
    try:
        return text_file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{text_file} is not UTF-8 text", param="text_file") from error


def _page(word_format: Format, text: str, words: list[AlignedWord]) -> str:
    """Return the output, with a line break at the end."""
    from izwi_api.schemas.alignment import word_json
    from izwi_api.services.transcription.formats import srt, vtt
    from izwi_api.services.transcription.subtitles import cut_cues

    match word_format:
        case Format.TEXT:
            return "".join(f"{w.start_s:.3f}\t{w.end_s:.3f}\t{w.word}\n" for w in words)
        case Format.SRT:
            return srt(cut_cues(text, words))
        case Format.VTT:
            return vtt(cut_cues(text, words))
    fields = {"text": text, "words": [word_json(word) for word in words]}
    return json.dumps(fields, ensure_ascii=False) + "\n"
