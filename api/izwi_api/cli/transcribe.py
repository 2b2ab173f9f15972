"""`izwi transcribe`: write down what files say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from izwi_api.cli.options import Device, Dtype, Offline, failures_told
from izwi_api.settings import DEFAULT_MODELS

if TYPE_CHECKING:
    from izwi.request import TranscriptionInput
    from izwi_api.cli.runtime import Where
    from izwi_api.transcribe import Transcription


def transcribe(
    files: Annotated[list[Path], typer.Argument(help="Audio files.")],
    model: Annotated[str, typer.Option(help="Folder, hub id or embedded name.")] = DEFAULT_MODELS[
        1
    ],
    language: Annotated[
        str | None, typer.Option(help="Language that is spoken. Default: detect it.")
    ] = None,
    prompt: Annotated[str, typer.Option(help="What came before, or words to expect.")] = "",
    max_new_tokens: Annotated[
        int | None, typer.Option(min=1, help="At most this many tokens a piece of sound.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print text, language and token_ids, a line a file.")
    ] = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    offline: Offline = False,
) -> None:
    """Print what audio files say."""
    import asyncio

    import numpy as np

    from izwi.request import TranscriptionInput
    from izwi_api.cli.runtime import Where

    def show(path: Path, result: Transcription) -> None:
        typer.echo(_line(path, result, as_json=as_json, alone=len(files) == 1))

    with failures_told():
        where = Where(device, dtype, offline)
        ask = TranscriptionInput(
            np.zeros(0, np.float32),  # each file's sound takes this place
            language=language,
            context=prompt,
            max_new_tokens=max_new_tokens,
        )
        asyncio.run(_transcribe(files, model, where, ask, show))


async def _transcribe(
    files: list[Path],
    model: str,
    where: Where,
    ask: TranscriptionInput,
    show: Callable[[Path, Transcription], None],
) -> None:
    import asyncio
    from dataclasses import replace

    from izwi.audio.decode import decode_audio
    from izwi_api.cli.runtime import running_door
    from izwi_api.transcribe import SAMPLE_RATE, open_transcription

    # Unreadable files are said before the model loads.
    sounds = [await asyncio.to_thread(decode_audio, path, SAMPLE_RATE) for path in files]
    async with running_door([model], where) as door:
        name = door.registry.names()[0]
        for path, samples in zip(files, sounds, strict=True):
            of_file = replace(ask, samples=samples)
            result = await open_transcription(door.engine, door.registry, name, of_file)
            await result.finish()
            show(path, result)


def _line(path: Path, result: Transcription, *, as_json: bool, alone: bool) -> str:
    if not as_json:
        return result.text if alone else f"{path}: {result.text}"
    fields: dict[str, object] = {} if alone else {"file": str(path)}
    fields |= {"text": result.text, "language": result.language, "token_ids": result.token_ids}
    return json.dumps(fields, ensure_ascii=False)
