"""`izwi serve --record`: record requests and their output to a file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Protocol

from izwi.backends.protocol import Backend
from izwi.engine.step_thread import Observer
from izwi.recording.recorder import Models, RequestRecorder, platform_of
from izwi_api.runtime_options import RuntimeOptions


class Observable(Protocol):
    """An engine that reports requests and chunks to an observer."""

    def observe(self, observer: Observer) -> None:
        """Set the observer; call it before the engine starts."""
        ...


@contextmanager
def recorded(
    engine: Observable,
    path: Path | None,
    models: Models,
    backend: Backend | None,
    runtime: RuntimeOptions,
) -> Iterator[None]:
    """Record an engine until the block ends; the engine must not have started.

    Args:
        engine: The engine to record.
        path: File to append to; None records nothing.
        models: The models that it serves.
        backend: The backend that they run on; without one nothing is recorded.
        runtime: The options that were given.

    Raises:
        OSError: The file cannot be written.
    """
    if path is None or backend is None:
        yield
        return
    platform = platform_of(backend, runtime.weights, runtime.attention)
    with closing(RequestRecorder(path, models, platform)) as recorder:
        engine.observe(recorder)
        yield
