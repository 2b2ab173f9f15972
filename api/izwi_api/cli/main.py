"""`izwi`: the verbs, and nothing else."""

from __future__ import annotations

import os

import typer

from izwi_api.cli import (
    align,
    bench,
    chat,
    clone,
    doctor,
    keys,
    models,
    replay,
    say,
    serve,
    transcribe,
    voices,
)

app = typer.Typer(
    name="izwi",
    help="Speech in one engine: say, transcribe, chat, clone, serve.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for verb in (
    serve.serve,
    say.say,
    transcribe.transcribe,
    align.align,
    chat.chat,
    clone.clone,
    replay.replay,
    bench.bench,
    doctor.doctor,
):
    app.command()(verb)
app.add_typer(models.app, name="models")
app.add_typer(voices.app, name="voices")
app.add_typer(keys.app, name="keys")


def main() -> None:
    """Run the command line."""
    # Threads of a matrix product that wait by spinning take the core from whoever they wait for:
    # on two cores beside a busy event loop a step takes ten times as long. Read when torch loads.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    app()
