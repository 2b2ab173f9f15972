"""Run methods as a backend wants all work of models to run."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from izwi.backends.protocol import Backend

P = ParamSpec("P")
R = TypeVar("R")


class HasBackend(Protocol):
    """Has a backend."""

    backend: Backend


S = TypeVar("S", bound=HasBackend)


def in_backend(work: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Run a method inside `Backend.running`."""

    @wraps(work)
    def running(self: S, /, *arguments: P.args, **named: P.kwargs) -> R:
        with self.backend.running():
            return work(self, *arguments, **named)

    return running
