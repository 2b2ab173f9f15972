"""`izwi`: registers the commands."""

from __future__ import annotations

from typing import Annotated

import typer

from izwi_api.cli import (
    align,
    bench,
    chat,
    clone,
    ctl,
    doctor,
    draw,
    keys,
    mcp,
    models,
    pull,
    quantize,
    ray_cluster,
    replay,
    replicas,
    say,
    serve,
    talk,
    top,
    transcribe,
    tune,
    voices,
    warm,
    wyoming,
)
from izwi_api.cli.options import Command, CommandGroup
from izwi_api.cli.run import main

__all__ = ["app", "main"]

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
    draw.draw,
    replay.replay,
    bench.bench,
    pull.pull,
    quantize.quantize,
    warm.warm,
    tune.tune,
    doctor.doctor,
    top.top,
    wyoming.wyoming,
    mcp.mcp,
):
    app.command(cls=Command)(verb)
app.add_typer(models.app, name="models")
app.add_typer(voices.app, name="voices")
app.add_typer(keys.app, name="keys")
app.add_typer(replicas.app, name="replicas")
app.add_typer(ctl.app, name="ctl")
app.add_typer(ray_cluster.app, name="ray")
