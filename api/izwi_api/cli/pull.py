"""`izwi pull`: download a checkpoint, or one file of a repository, to this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from izwi_api.cli.options import Offline
from izwi_api.console import messages, report_failures

if TYPE_CHECKING:
    from izwi.checkpoints.hub import DownloadProgress


def pull(
    repository: Annotated[
        str, typer.Argument(help="Hub id, such as Qwen/Qwen3-4B-GGUF.", show_default=False)
    ],
    file: Annotated[
        str | None,
        typer.Option(metavar="PATTERN", help="Only one file, such as '*Q4_K_M.gguf'."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name for --model; by default that of the file.")
    ] = None,
    offline: Offline = False,
) -> None:
    """Download a checkpoint to the local cache; an interrupted download goes on.

    With --file, one GGUF file of a repository, which then has a name for --model.
    """
    from izwi.checkpoints.added import default_name, home_folder
    from izwi.checkpoints.hub import fetch, fetch_file, is_hub_id
    from izwi.errors import InvalidRequest
    from izwi_api.cli.models import add_checkpoint

    with report_failures():
        if not is_hub_id(repository):
            raise InvalidRequest(f"{repository!r} is not a hub id such as org/name", param="model")
        if file is None and name is not None:
            raise InvalidRequest("--name needs --file: a hub id is its own name", param="name")
        with messages().status(f"asking for {repository}") as status:

            def report(progress: DownloadProgress) -> None:
                status.update(_line(repository, progress))

            if file is None:
                folder = fetch(repository, offline=offline, report=report)
                typer.echo(f"{repository}\t{folder}")
                return
            folder = home_folder() / "files"
            path = fetch_file(repository, file, folder, offline=offline, report=report)
        if path.suffix.lower() != ".gguf":
            typer.echo(f"{repository}\t{path}")
            return
        typer.echo(add_checkpoint(path, name or default_name(path)))


def _line(repository: str, progress: DownloadProgress) -> str:
    if progress.done_bytes is None:
        return f"{progress.stage} {repository}"
    total = f" of {progress.total_bytes / 1e6:.0f}" if progress.total_bytes else ""
    return f"{progress.stage} {repository}: {progress.done_bytes / 1e6:.0f} MB{total}"
