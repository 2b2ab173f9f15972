"""`izwi replay`: run a recording again and compare the output."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from izwi_api.cli.options import Device, Dtype, Offline
from izwi_api.console import FAILED, messages, report_failures

if TYPE_CHECKING:
    from rich.table import Table

    from izwi.recording.line import Line
    from izwi.recording.replay import Difference
    from izwi_api.runtime_options import RuntimeOptions

_TEXT_CHARS = 40


def replay(
    recording: Annotated[Path, typer.Argument(help="File that `izwi serve --record` wrote.")],
    model: Annotated[
        list[str] | None,
        typer.Option(help="Folder, hub id or embedded name; repeatable. Default: the recording's."),
    ] = None,
    alone: Annotated[
        bool, typer.Option("--alone", help="Run one request after the other, not all together.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON lines and differences.")
    ] = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    offline: Offline = False,
) -> None:
    """Run a recording again; exit with 1 if anything differs."""
    from rich.console import Console

    from izwi.recording.line import read_recording
    from izwi_api.runtime_options import RuntimeOptions

    with report_failures():
        lines = read_recording(recording)
        sources = model or list(dict.fromkeys(line.model for line in lines))
        differences = _replay(lines, sources, RuntimeOptions(device, dtype, offline), alone=alone)
    if as_json:
        found = [asdict(difference) for difference in differences]
        typer.echo(json.dumps({"lines": len(lines), "differences": found}, ensure_ascii=False))
    else:
        Console(highlight=False).print(_table(lines, differences))
    if differences:
        raise typer.Exit(FAILED)


def _replay(
    lines: Sequence[Line], sources: Sequence[str], runtime: RuntimeOptions, *, alone: bool
) -> list[Difference]:
    """Load the models and run the recording in an engine on this thread."""
    from izwi.config import EngineConfig
    from izwi.engine.engine import Engine
    from izwi.recording.replay import replay
    from izwi_api.serve.local_services import load_models

    config = EngineConfig()
    registry, backend = load_models(sources, runtime, config)
    with messages().status(f"running {len(lines)} requests"):
        engine = Engine(registry.models, backend, config)
        return replay(engine, registry, lines, alone=alone)


def _table(lines: Sequence[Line], differences: Sequence[Difference]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table("line", "model", "text", "entries", "ended", "now")
    found = {difference.line: difference for difference in differences}
    for number, line in enumerate(lines, start=1):
        difference = found.get(number)
        now = Text(f"{difference.what}: {difference.message}" if difference else "same")
        now.stylize("red" if difference else "green")
        text = Text(_text(line))
        text.truncate(_TEXT_CHARS, overflow="ellipsis")
        table.add_row(str(number), Text(line.model), text, str(len(line.entries)), line.reason, now)
    return table


def _text(line: Line) -> str:
    from izwi.recording.line import SpeechLine

    return line.ask.text if isinstance(line, SpeechLine) else line.text
