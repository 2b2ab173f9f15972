"""`izwi ctl`: control a server on this machine, as its user, over its operator socket."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from izwi_api.cli.options import Command, CommandGroup
from izwi_api.cli.replicas import AsJson, Port, drain, resume
from izwi_api.console import report_failures
from izwi_api.serve.operator_socket import (
    ListReplicas,
    LoadServed,
    OperatorCommand,
    ReadMetrics,
    Report,
    UnloadServed,
    WarmReplicas,
    ask_supervisor,
)

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    help="Control a server on this machine, as its user: metrics, warming, models, circuits.",
)
app.command(cls=Command)(drain)
app.command(cls=Command)(resume)

# Seconds that a model may take to load, or prompts to be computed.
_LONG_S = 3600.0

Name = Annotated[str, typer.Argument(help="Name of the model.", show_default=False)]


@app.command(cls=Command)
def metrics(port: Port = 8000) -> None:
    """Print all metrics as Prometheus' text, as GET /metrics does, without a key."""
    typer.echo(_ask(port, ReadMetrics()).text, nl=False)


@app.command(cls=Command)
def circuits(port: Port = 8000, as_json: AsJson = False) -> None:
    """List models that keep failing on a replica, and get fewer or no requests there."""
    for one in _ask(port, ListReplicas()).replicas:
        for model, state in one.circuits.items():
            if as_json:
                line = {"replica": one.replica, "model": model, "state": state}
                typer.echo(json.dumps(line))
            else:
                typer.echo(f"{one.replica}\t{model}\t{state}")


@app.command(cls=Command)
def warm(
    file: Annotated[Path, typer.Argument(help="File as for `izwi serve --warm`.")],
    replica: Annotated[int | None, typer.Option(min=0, help="Only this one. Default: all.")] = None,
    port: Port = 8000,
) -> None:
    """Compute system prompts and voices that requests will share, in background."""
    from izwi_api.schemas.warm_file import read_warm_file

    with report_failures():
        wanted = read_warm_file(file)
    typer.echo(_ask(port, WarmReplicas(wanted, replica), _LONG_S).text)


@app.command(cls=Command)
def load(name: Name, port: Port = 8000) -> None:
    """Serve another model; the server must have --manage-models."""
    typer.echo(_ask(port, LoadServed(name), _LONG_S).text)


@app.command(cls=Command)
def unload(name: Name, port: Port = 8000) -> None:
    """Serve a model no more, once its requests have ended."""
    typer.echo(_ask(port, UnloadServed(name), _LONG_S).text)


def _ask(port: int, command: OperatorCommand, patience_s: float | None = None) -> Report:
    with report_failures():
        if patience_s is None:
            return ask_supervisor(port, command)
        return ask_supervisor(port, command, patience_s)
