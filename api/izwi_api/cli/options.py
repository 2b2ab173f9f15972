"""Options that several verbs share, and how a failure is told: one line, and a code.

A verb ends with 0 when all is well, with BAD_INPUT when what it was given cannot be used, and with
FAILED when something else went wrong.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from izwi.errors import InvalidRequest, IzwiError

BAD_INPUT = 2
FAILED = 1

Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps, or auto for the best there.")]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16, float16, or auto for the device's.")]
Offline = Annotated[bool, typer.Option("--offline", help="Never ask the Hugging Face hub.")]
ServerUrl = Annotated[
    str | None,
    typer.Option(
        "--server",
        envvar="IZWI_SERVER",
        show_default=False,
        help="Address of a server that does the work; none: this process does. Default: the "
        "server at http://127.0.0.1:8000, if one runs there and serves what is needed.",
    ),
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        "--api-key", envvar="IZWI_API_KEY", show_default=False, help="What that server asks for."
    ),
]


class ListByDefault(TyperGroup):
    """A verb with verbs of its own that alone, or with options of `list`, lists."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put `list` before what names no verb."""
        if not args or (args[0] not in self.commands and args[0] != "--help"):
            args = ["list", *args]
        return super().parse_args(ctx, args)


def messages() -> Console:
    """Return where progress and errors go: stderr, so that stdout holds only what was asked."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def tell_failure(what: object) -> None:
    """Say in one line what went wrong."""
    messages().print(f"izwi: {what}", style="red", markup=False)


def code_of(error: IzwiError | OSError) -> int:
    """Return the exit code for an error."""
    return BAD_INPUT if isinstance(error, InvalidRequest) else FAILED


@contextmanager
def failures_told() -> Generator[None]:
    """Turn an error of ours into one line on stderr and an exit code."""
    try:
        yield
    except BrokenPipeError:
        raise  # whoever read our output has enough of it: typer ends the process without a word
    except (IzwiError, OSError) as error:
        tell_failure(error)
        raise typer.Exit(code_of(error)) from error
