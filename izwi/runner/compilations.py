"""Count kernels that are compiled or loaded, and graphs that are recorded.

Each takes from milliseconds to seconds, during which the whole engine stands still, so all of it is
to happen before a server is ready. What happens later is logged with its cause.
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
    """One delay.

    Attributes:
        kind: "compiled", "loaded" (a kernel that was on disk) or "recorded" (a graph).
        name: The kernel, with what it was specialised for; or what was recorded.
        seconds: That it took.
    """

    kind: str
    name: str
    seconds: float


class Compilations:
    """What was compiled, loaded and recorded while this was the thread's counter.

    Attributes:
        kernels: Compiled or loaded.
        graphs: Recorded.
    """

    def __init__(self) -> None:
        self.kernels = self.graphs = 0

    def add(self, compilation: Compilation) -> None:
        """Count, and log where it came from."""
        if compilation.kind == "recorded":
            self.graphs += 1
        else:
            self.kernels += 1
        took_ms = compilation.seconds * 1e3
        message = "%s while serving, in %.0f ms: %s (%s)"
        logger.warning(message, compilation.kind, took_ms, compilation.name, " > ".join(cause()))

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count what this thread compiles, loads or records inside."""
        before = getattr(_current, "counter", None)
        _current.counter = self
        try:
            yield
        finally:
            _current.counter = before


_current = threading.local()
# Hears of every compilation, on any thread, also before a server is ready.
observers: list[Callable[[Compilation], None]] = []


def report(compilation: Compilation) -> None:
    """Tell the thread's counter, if it has one, and all observers."""
    counter = getattr(_current, "counter", None)
    if counter is not None:
        counter.add(compilation)
    for observer in observers:
        observer(compilation)


def cause() -> list[str]:
    """The innermost lines of our own that led here."""
    frames = traceback.extract_stack()[:-2]
    ours = [
        f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}"
        for frame in frames
        if "izwi" in frame.filename and not frame.filename.endswith("compilations.py")
    ]
    return ours[-_FRAMES_SHOWN:]


class Counting(Protocol):
    """Has a counter."""

    compilations: Compilations


S = TypeVar("S", bound=Counting)


def counted(work: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Count what a method compiles, loads or records: it runs while requests are served."""

    @wraps(work)
    def counting(self: S, /, *arguments: P.args, **named: P.kwargs) -> R:
        with self.compilations.counting():
            return work(self, *arguments, **named)

    return counting
