"""Messages of a process to its terminal, and exit codes.

A command exits with 0 on success, with BAD_INPUT if its input cannot be used, and with FAILED for
other errors.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import typer
from rich.console import Console

from izwi.errors import InvalidMessage, InvalidRequest, IzwiError, VoiceNotFound

BAD_INPUT = 2
FAILED = 1


def messages() -> Console:
    """Return the console for progress and errors: stderr, so that stdout has only the output."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


# Advice in errors of endpoints, and the same for users of the command line.
_ADVICE = {
    "GET /v1/audio/voices lists them": "`izwi voices` lists them",
    "GET /v1/models lists those that are": "`izwi models` lists those that are",
    "POST /v1/audio/transcriptions takes": "`izwi transcribe` takes",
}


def tell_failure(what: object) -> None:
    """Print an error in one line."""
    message = explain(what) if isinstance(what, Exception) else str(what)
    messages().print(f"izwi: {message}", style="red", markup=False)


def explain(error: Exception) -> str:
    """Return the message of an error for the command line: with file names, without endpoints."""
    if isinstance(error, OSError) and error.strerror:
        named = error.filename2 or error.filename
        return f"{named}: {error.strerror}" if named is not None else error.strerror
    message = str(error)
    for endpoint, command in _ADVICE.items():
        message = message.replace(endpoint, command)
    if isinstance(error, VoiceNotFound) and "izwi voices" not in message:
        message += "; `izwi voices` lists them"
    return message


def code_of(error: IzwiError | OSError) -> int:
    """Return the exit code for an error."""
    return BAD_INPUT if isinstance(error, InvalidRequest | InvalidMessage) else FAILED


@contextmanager
def report_failures() -> Generator[None]:
    """Print an error of ours in one line on stderr, and exit with its code."""
    try:
        yield
    except BrokenPipeError:
        raise  # the reader of our output closed it: typer exits silently
    except (IzwiError, OSError) as error:
        tell_failure(error)
        raise typer.Exit(code_of(error)) from error
    except UnicodeEncodeError as error:
        # Python reads bytes of an argument that are not UTF-8 as halves of surrogate pairs.
        if not "\ud800" <= error.object[error.start] <= "\udfff":
            raise
        tell_failure(f"{error.object[:64]!a} is not valid UTF-8 text")
        raise typer.Exit(BAD_INPUT) from error
