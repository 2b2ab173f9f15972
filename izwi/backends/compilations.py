"""Count kernels that are compiled or loaded, and graphs that are captured.

Each takes milliseconds to seconds, during which the engine stalls. All of it should happen before
the server is ready; anything later is logged with its cause.
"""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")
_FRAMES_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Compilation:
    """One compiled or loaded kernel, or one captured graph.

    Attributes:
        kind: "compiled", "loaded" (a kernel from disk) or "captured" (a graph).
        name: The kernel with its specialisation, or the captured method.
        seconds: How long it took.
    """

    kind: str
    name: str
    seconds: float


class Compilations:
    """Counts of compilations on a thread while this object is its counter.

    Attributes:
        kernels: Kernels compiled or loaded.
        graphs: Graphs captured.
    """

    def __init__(self) -> None:
        self.kernels = self.graphs = 0

    def add(self, compilation: Compilation) -> None:
        """Count a compilation, and log its cause."""
        if compilation.kind == "captured":
            self.graphs += 1
        else:
            self.kernels += 1
        took_ms = compilation.seconds * 1e3
        message = "%s while serving, in %.0f ms: %s (%s)"
        logger.warning(message, compilation.kind, took_ms, compilation.name, " > ".join(cause()))

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count what this thread compiles, loads or captures within the context."""
        before = getattr(_current, "counter", None)
        _current.counter = self
        try:
            yield
        finally:
            _current.counter = before


_current = threading.local()
# Called for every compilation on any thread, also before a server is ready.
observers: list[Callable[[Compilation], None]] = []


def report(compilation: Compilation) -> None:
    """Notify the thread's counter, if any, and all observers."""
    counter = getattr(_current, "counter", None)
    if counter is not None:
        counter.add(compilation)
    for observer in observers:
        observer(compilation)


def cause() -> list[str]:
    """Return the innermost frames of the call stack that are in our code."""
    frames = traceback.extract_stack()[:-2]
    ours = [
        f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}"
        for frame in frames
        if "izwi" in frame.filename and not frame.filename.endswith("compilations.py")
    ]
    return ours[-_FRAMES_SHOWN:]


class Counting(Protocol):
    """An object with a counter."""

    compilations: Compilations


S = TypeVar("S", bound=Counting)


def counted(work: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Wrap a method that runs while requests are served: count its compilations."""

    @wraps(work)
    def counting(self: S, /, *arguments: P.args, **named: P.kwargs) -> R:
        with self.compilations.counting():
            return work(self, *arguments, **named)

    return counting
