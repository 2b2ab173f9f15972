"""`izwi serve --record`: record requests and their output to a file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Protocol

from izwi.backends.protocol import ArrayBackend
from izwi.recording import Models, Observer, RequestRecorder, platform_of
from izwi_api.runtime_options import RuntimeOptions


class Observable(Protocol):
    """What tells an observer of requests and chunks."""

    def observe(self, observer: Observer) -> None:
        """Tell an observer; before the engine starts."""
        ...


@contextmanager
def recorded(
    engine: Observable,
    path: Path | None,
    models: Models,
    backend: ArrayBackend,
    runtime: RuntimeOptions,
) -> Iterator[None]:
    """Record an engine that has not started until the block ends.

    Args:
        engine: Whose requests and chunks.
        path: File to append to; None records nothing.
        models: That it serves.
        backend: That they run on.
        runtime: As it was asked for.

    Raises:
        OSError: The file cannot be written.
    """
    if path is None:
        yield
        return
    platform = platform_of(backend, runtime.weights, runtime.attention)
    with closing(RequestRecorder(path, models, platform)) as recorder:
        engine.observe(recorder)
        yield
