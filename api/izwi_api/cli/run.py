"""The entry point of `izwi`: what holds for every command, before the commands are imported."""

from __future__ import annotations

import os
import sys

INTERRUPTED = 130  # as shells report Ctrl-C


def main() -> None:
    """Run the command line."""
    # Threads of a matrix product that spin while they wait take the core from the thread they wait
    # for: on two cores beside a busy event loop a step takes ten times as long. torch reads this
    # when it loads.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    _open_closed_streams()
    try:
        # Importing takes most of a second, and Ctrl-C may come in it.
        from izwi_api.cli.main import app
        from izwi_api.console import FAILED, tell_failure

        try:
            app()
        except OSError as error:  # stdout is full, for example
            tell_failure(error)
            _drop_unwritten()
            sys.exit(FAILED)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _open_closed_streams() -> None:
    """Open /dev/null for standard streams that the caller closed, as `izwi ... <&-` does."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115


def _drop_unwritten() -> None:
    """Keep the interpreter from writing the rest of stdout when it exits."""
    with open(os.devnull, "w") as null:  # noqa: PTH123
        os.dup2(null.fileno(), sys.stdout.fileno())
