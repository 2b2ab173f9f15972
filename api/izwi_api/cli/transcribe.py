"""`izwi transcribe`: transcribe files, many at a time."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from izwi.errors import (
    InvalidAudio,
    InvalidRequest,
    IzwiError,
    Overloaded,
    TooLarge,
)
from izwi_api.cli.options import ApiKey, Device, Dtype, Offline, ServerUrl
from izwi_api.console import FAILED, code_of, messages, report_failures, tell_failure
from izwi_api.environment import read_settings
from izwi_api.settings import DEFAULT_MODELS

if TYPE_CHECKING:
    from izwi_api.cli.audio_files import AudioFile
    from izwi_api.client import AsyncClient, Transcript
    from izwi_api.client.text import TranscriptionOptions

# Files may be started ahead of the oldest unfinished one by this factor of those that run.
_AHEAD = 4


class Format(StrEnum):
    """The output format of a transcript."""

    TEXT = "text"
    JSON = "json"
    SRT = "srt"
    VTT = "vtt"


_ENDINGS = {Format.TEXT: ".txt", Format.JSON: ".json", Format.SRT: ".srt", Format.VTT: ".vtt"}

Files = Annotated[list[Path], typer.Argument(help="Audio files, folders or patterns; - is stdin.")]
ModelSource = Annotated[
    str | None,
    typer.Option(help="Folder, hub id or embedded name. Default: embedded, or the server's first."),
]
Language = Annotated[str | None, typer.Option(help="Spoken language. Default: detect it.")]
Prompt = Annotated[str, typer.Option(help="Preceding text, or words to expect.")]
MaxNewTokens = Annotated[
    int | None, typer.Option(min=1, help="At most this many tokens for each piece of audio.")
]
TextFormat = Annotated[
    Format | None, typer.Option("--format", help="Output format. Default: text.")
]
AsJson = Annotated[
    bool,
    typer.Option(
        "--json", help="Print text, language and token_ids as JSON, one line for each file."
    ),
]
OutDir = Annotated[
    Path | None, typer.Option(help="Write a transcript for each file into this folder.")
]
Beside = Annotated[bool, typer.Option("--beside", help="Write a transcript beside each file.")]
Speakers = Annotated[
    bool, typer.Option("--speakers", help="Tell speakers apart, and write who speaks.")
]
Jobs = Annotated[int, typer.Option(min=1, help="Number of files to transcribe at once.")]


def transcribe(
    files: Files,
    model: ModelSource = None,
    language: Language = None,
    prompt: Prompt = "",
    max_new_tokens: MaxNewTokens = None,
    text_format: TextFormat = None,
    as_json: AsJson = False,
    out_dir: OutDir = None,
    beside: Beside = False,
    speakers: Speakers = False,
    jobs: Jobs = 4,
    server: ServerUrl = None,
    api_key: ApiKey = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
    offline: Offline = False,
) -> None:
    """Transcribe audio files, to stdout or to a file for each."""
    from izwi.model.capability import Capability
    from izwi_api.cli.audio_files import find_audio_files
    from izwi_api.cli.running_server import running_server
    from izwi_api.client import AsyncClient, RuntimeOptions

    with report_failures():
        if as_json and text_format not in (None, Format.JSON):
            raise InvalidRequest("use either --json or --format, not both")
        sources = find_audio_files([str(file) for file in files])
        chosen = Format.JSON if as_json else text_format or Format.TEXT
        writer = _transcript_writer(sources, chosen, out_dir, beside=beside)
        runtime = RuntimeOptions(device, dtype, offline)
        # a server that was not named accepts no larger files
        limit = read_settings(os.environ).max_upload_bytes
        large = any(source.num_bytes > limit for source in sources)
        server = running_server(
            server,
            api_key,
            local_only=runtime != RuntimeOptions() or large,
            serves={Capability.TRANSCRIBE: model},
        )
        if not server and len(sources) == 1 and sources[0].path is not None:
            sources[0].check()  # refuse a broken file before a model is loaded
        # the embedded voice has a speaker encoder
        models = [model or DEFAULT_MODELS[1], *(DEFAULT_MODELS[:1] if speakers else ())]
        client = AsyncClient(server, api_key=api_key, models=models, runtime=runtime)
        options: TranscriptionOptions = {
            "model": model if server else None,
            "language": language,
            "prompt": prompt or None,
            "max_new_tokens": max_new_tokens,
            "speakers": speakers,
        }
        code = asyncio.run(_transcribe(sources, client, options, jobs, writer))
    if code:
        raise typer.Exit(code)


@dataclass(frozen=True, slots=True)
class _TranscriptWriter:
    """Where transcripts are written: stdout, or a file for each input.

    Attributes:
        text_format: The format.
        named: Each transcript on stdout begins with the name of its file.
        paths: Output files in the order of the inputs, or None for stdout.
    """

    text_format: Format
    named: bool
    paths: list[Path] | None

    def write(self, index: int, source: AudioFile, transcript: Transcript) -> None:
        """Write the transcript of an input. Raises OSError."""
        from izwi_api.cli.audio_out import whole_file

        page = _page(self.text_format, transcript, source.shown if self.named else None)
        if self.paths is None:
            sys.stdout.write(page)
            sys.stdout.flush()
            return
        path = self.paths[index]
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            file.write(page.encode())


def _transcript_writer(
    sources: Sequence[AudioFile], text_format: Format, out_dir: Path | None, *, beside: bool
) -> _TranscriptWriter:
    from izwi_api.cli.audio_files import text_paths

    if out_dir is not None and beside:
        raise InvalidRequest("use either --out-dir or --beside, not both")
    if out_dir is not None and out_dir.exists() and not out_dir.is_dir():
        raise InvalidRequest(f"--out-dir {out_dir}: this is a file, not a folder", param="out_dir")
    if out_dir is not None or beside:
        return _TranscriptWriter(
            text_format, False, text_paths(sources, out_dir, _ENDINGS[text_format])
        )
    if len(sources) > 1 and text_format in (Format.SRT, Format.VTT):
        raise InvalidRequest(
            f"{text_format} writes one file for each recording; give --out-dir or --beside"
        )
    return _TranscriptWriter(text_format, len(sources) > 1, None)


def _page(text_format: Format, transcript: Transcript, name: str | None) -> str:
    """Return the output for an input, with a line break at the end."""
    from izwi_api.services.transcription.formats import by_speaker, srt, vtt
    from izwi_api.services.transcription.subtitles import cut_segments

    match text_format:
        case Format.TEXT if any(segment.speaker for segment in transcript.segments):
            head = "" if name is None else f"{name}:\n"
            return f"{head}{by_speaker(transcript.segments)}\n"
        case Format.TEXT:
            return f"{transcript.text}\n" if name is None else f"{name}: {transcript.text}\n"
        case Format.SRT:
            return srt(cut_segments(transcript.segments, None))
        case Format.VTT:
            return vtt(cut_segments(transcript.segments, None))
    fields: dict[str, object] = {} if name is None else {"file": name}
    fields |= {
        "text": transcript.text,
        "language": transcript.language,
        "token_ids": transcript.token_ids,
    }
    if any(segment.speaker for segment in transcript.segments):
        fields["segments"] = [
            {"start": s.start_s, "end": s.end_s, "speaker": s.speaker, "text": s.text}
            for s in transcript.segments
            if s.text
        ]
    return json.dumps(fields, ensure_ascii=False) + "\n"


async def _transcribe(
    sources: Sequence[AudioFile],
    client: AsyncClient,
    options: TranscriptionOptions,
    jobs: int,
    writer: _TranscriptWriter,
) -> int:
    """Transcribe all inputs, several at a time, in order; return the exit code.

    Inputs that cannot be transcribed are reported and skipped. An error that would affect all of
    them ends the command: raises IzwiError, and OSError if a transcript cannot be written.
    """
    codes: list[int] = []
    ignored: set[str] = set()
    with _progress(len(sources)) as report:
        async with client:
            options["model"] = await client.model_for("transcription", options.get("model"))
            slots = asyncio.Semaphore(jobs)

            async def transcribe_one(index: int, source: AudioFile) -> Transcript:
                async with slots:
                    content = await asyncio.to_thread(source.read)
                    stream = client.stream_transcription(content, **options)
                    async with stream:
                        async for update in stream:
                            report(index, update.share)
                    return stream.result

            rest = iter(enumerate(sources))
            begun: deque[tuple[int, AudioFile, asyncio.Task[Transcript]]] = deque()
            try:
                while True:
                    while len(begun) < jobs * _AHEAD and (following := next(rest, None)):
                        begun.append((*following, asyncio.create_task(transcribe_one(*following))))
                    if not begun:
                        break
                    index, source, task = begun.popleft()
                    try:
                        transcript = await task
                    except IzwiError as error:
                        if not _is_of_one_file(error):
                            raise
                        tell_failure(_named(source, error))
                        codes.append(code_of(error))
                    else:
                        writer.write(index, source, transcript)
                        ignored.update(transcript.ignored)
                    report(index, 1.0)
            finally:
                for _, _, task in begun:
                    task.cancel()
                await asyncio.gather(*(task for *_, task in begun), return_exceptions=True)
    if "prompt" in ignored:
        messages().print("this model follows no text before the audio; --prompt changed nothing")
    # A single input determines the exit code; of several, some were transcribed.
    return codes[0] if codes and len(sources) == 1 else FAILED if codes else 0


def _is_of_one_file(error: IzwiError) -> bool:
    """Whether other inputs may still succeed."""
    # The engine raises the root class if it failed on one request.
    return type(error) is IzwiError or isinstance(error, InvalidAudio | TooLarge | Overloaded)


def _named(source: AudioFile, error: IzwiError) -> str:
    message = str(error)
    return message if source.shown in message else f"{source.shown}: {message}"


@contextmanager
def _progress(num_sources: int) -> Generator[Callable[[int, float], None]]:
    """Show progress on a terminal; the block gets a function that reports a file's progress."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TaskProgressColumn,
        TimeRemainingColumn,
    )

    console = messages()
    done = MofNCompleteColumn() if num_sources > 1 else TaskProgressColumn()
    columns = ("transcribing", BarColumn(), done, TimeRemainingColumn())
    shares = [0.0] * num_sources
    # Lines to the same terminal must go through the progress bar; those to a file must not.
    with Progress(
        *columns,
        console=console,
        transient=True,
        disable=not console.is_terminal,
        redirect_stdout=sys.stdout.isatty(),
    ) as progress:
        # a single input has no progress before its first piece is done, so the bar pulses
        task = progress.add_task("", total=num_sources if num_sources > 1 else None)

        def report(index: int, share: float) -> None:
            shares[index] = share
            progress.update(task, completed=sum(shares), total=num_sources)

        yield report
