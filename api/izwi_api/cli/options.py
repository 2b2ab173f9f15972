"""Options that several verbs share, and how a failure is told: one line, and a code."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console

from izwi.errors import InvalidRequest, IzwiError

BAD_INPUT = 2
FAILED = 1

Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1, mps, or auto for the best there.")]
Dtype = Annotated[str, typer.Option(help="float32, bfloat16, float16, or auto for the device's.")]
Offline = Annotated[bool, typer.Option("--offline", help="Never ask the Hugging Face hub.")]


def messages() -> Console:
    """Return where progress and errors go: stderr, so that stdout holds only what was asked."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


@contextmanager
def failures_told() -> Generator[None]:
    """Turn an error of ours into one line on stderr and an exit code."""
    try:
        yield
    except IzwiError as error:
        messages().print(f"izwi: {error}", style="red", markup=False)
        code = BAD_INPUT if isinstance(error, InvalidRequest) else FAILED
        raise typer.Exit(code) from error
    except OSError as error:
        messages().print(f"izwi: {error}", style="red", markup=False)
        raise typer.Exit(FAILED) from error
