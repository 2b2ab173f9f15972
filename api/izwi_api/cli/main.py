"""`izwi`: registers the commands."""

from __future__ import annotations

import os
from typing import Annotated

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
    talk,
    transcribe,
    voices,
    warm,
)
from izwi_api.cli.options import Command, CommandGroup

app = typer.Typer(
    name="izwi",
    help="Speech in one engine: say, transcribe, chat, talk, clone, serve.",
    cls=CommandGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"izwi {version('izwi')}")
        raise typer.Exit


@app.callback()
def _izwi(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Speech in one engine: say, transcribe, chat, talk, clone, serve."""


for verb in (
    serve.serve,
    say.say,
    transcribe.transcribe,
    align.align,
    chat.chat,
    talk.talk,
    clone.clone,
    replay.replay,
    bench.bench,
    warm.warm,
    doctor.doctor,
):
    app.command(cls=Command)(verb)
app.add_typer(models.app, name="models")
app.add_typer(voices.app, name="voices")
app.add_typer(keys.app, name="keys")


def main() -> None:
    """Run the command line."""
    # Threads of a matrix product that spin while they wait take the core from the thread they wait
    # for: on two cores beside a busy event loop a step takes ten times as long. torch reads this
    # when it loads.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    app()
