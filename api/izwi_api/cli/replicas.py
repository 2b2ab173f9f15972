"""`izwi replicas`: the engine processes of a server on this machine."""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer

from izwi_api.cli.options import Command, ListByDefault
from izwi_api.console import messages, report_failures
from izwi_api.serve.operator_socket import (
    DrainReplica,
    ListReplicas,
    OperatorCommand,
    Report,
    RestartReplicas,
    ResumeReplica,
    ask_supervisor,
)

app = typer.Typer(
    cls=ListByDefault,
    help="List, drain, resume and restart the engines of `izwi serve --replicas`, as its user.",
)

Port = Annotated[int, typer.Option(min=1, max=65_535, help="Port of the server.")]
Number = Annotated[int, typer.Argument(min=0, help="Number of the replica.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]

# Seconds between looks at replicas that restart.
_LOOK_S = 0.25


@app.command("list", cls=Command)
def list_replicas(port: Port = 8000, as_json: AsJson = False) -> None:
    """List the engine processes, also those that have failed."""
    _print(_ask(port, ListReplicas()), as_json=as_json)


@app.command(cls=Command)
def drain(number: Number, port: Port = 8000, as_json: AsJson = False) -> None:
    """Move the requests of a replica to the others; it gets no more until `resume`."""
    _print(_ask(port, DrainReplica(number)), as_json=as_json)


@app.command(cls=Command)
def resume(number: Number, port: Port = 8000, as_json: AsJson = False) -> None:
    """Send requests to a drained replica again."""
    _print(_ask(port, ResumeReplica(number)), as_json=as_json)


@app.command(cls=Command)
def restart(
    numbers: Annotated[
        list[int] | None, typer.Argument(help="Numbers of replicas. Default: all.")
    ] = None,
    port: Port = 8000,
    as_json: AsJson = False,
) -> None:
    """Replace processes one after the other, such as after an upgrade; no stream is lost."""
    before = {one.replica: one.num_starts for one in _ask(port, ListReplicas()).replicas}
    report = _ask(port, RestartReplicas(tuple(numbers or ())))
    wanted = set(numbers or before)
    shown = ""
    while left := [
        one
        for one in report.replicas
        if one.replica in wanted
        and (one.num_starts == before[one.replica] or one.status in _BETWEEN)
    ]:
        if shown != (shown := ", ".join(f"{one.replica} {one.status}" for one in left)):
            messages().print(f"to be replaced: {shown}", markup=False)
        time.sleep(_LOOK_S)
        report = _ask(port, ListReplicas())
    _print(report, as_json=as_json)


# Statuses of a replica whose new process is not there yet.
_BETWEEN = ("draining", "restarting", "starting", "failed")


def _ask(port: int, command: OperatorCommand) -> Report:
    with report_failures():
        return ask_supervisor(port, command)


def _print(report: Report, *, as_json: bool) -> None:
    for one in report.replicas:
        if as_json:
            fields = {name: getattr(one, name) for name in one.__struct_fields__}
            typer.echo(json.dumps(fields))
            continue
        age = "" if one.ready_s is None else f"ready for {one.ready_s:.0f} s"
        process = "" if one.pid is None else f"process {one.pid}"
        circuits = ", ".join(f"{model}: circuit {state}" for model, state in one.circuits.items())
        parts = (str(one.replica), one.device, one.status, process, age, one.reason, circuits)
        typer.echo("\t".join(part for part in parts if part))
