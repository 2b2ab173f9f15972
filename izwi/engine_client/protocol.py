"""The protocol by which callers use an engine: in this process, in another, or behind a router."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, Protocol, Self, TypeVar, runtime_checkable

from izwi.model.protocol import Model
from izwi.request.request import Chunk, Request


class Abortable:
    """A context manager that aborts what still runs when it is left, however it is left."""

    def abort(self) -> None:
        """Stop; a second call does nothing."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Abort what still runs."""
        self.abort()


class Answer(Abortable, AsyncIterator[Chunk]):
    """The answer to one request, chunk by chunk; the last chunk has a reason.

    Leaving its context aborts the request, unless it has ended. Commands take effect before the
    request's next step, in the order in which they are given. They do nothing if it has ended.
    """

    def write(self, text_ids: Sequence[int], closed: bool) -> None:
        """Add text ids to a request with open input; `closed`: nothing more will be written."""
        raise NotImplementedError

    def pause(self) -> None:
        """Pause the request; its compute is free for others, and its memory if they need it."""
        raise NotImplementedError

    def resume(self) -> None:
        """Resume a paused request with the next sample or token."""
        raise NotImplementedError


AbortableT = TypeVar("AbortableT", bound=Abortable)


class Answers(Abortable, tuple[AbortableT, ...]):
    """Answers that were opened together; leaving the context aborts all of them."""

    __slots__ = ()

    def abort(self) -> None:
        """Abort all of them."""
        for answer in self:
            answer.abort()


class EngineClient(Protocol):
    """An engine, for callers on an event loop.

    Implemented by `izwi.engine.async_engine.AsyncEngine`, whose engine steps in this process, by
    `izwi_api.serve.remote_engine.RemoteEngine` over sockets, and by
    `izwi_api.serve.replica_router.ReplicaRouter` over several of these. A request belongs to the
    client that submitted it, and its answer is the only handle on it. So a client may run it on any
    of several engines, and resume it on another one if its engine dies; the reader notices a pause.
    """

    @property
    def alive(self) -> bool:
        """Whether it accepts requests."""
        ...

    @property
    def load(self) -> Mapping[str, Mapping[str, float]]:
        """Figures of each model; see `izwi.metrics.LOAD_KEYS`."""
        ...

    def start(self) -> None:
        """Start stepping, if the engine is in this process."""
        ...

    async def stop(self) -> None:
        """Disconnect; requests in flight end with EngineStopped."""
        ...

    def submit(self, request: Request) -> Answer:
        """Submit a request. Raises EngineStopped; a refusal by the queue ends the answer."""
        ...

    def submit_all(self, requests: Sequence[Request]) -> Answers[Answer]:
        """Submit requests that start together, all or none; raises as `submit`."""
        ...

    async def add(self, name: str, model: Model | None, folder: Path) -> None:
        """Serve another model.

        Args:
            name: The name under which it will be served.
            model: The model, if the engine is in this process.
            folder: Its checkpoint, for engines that load it themselves.

        Raises:
            InvalidRequest: The name is taken, memory is full, or models cannot be added here.
            EngineStopped: The engine is not running.
        """
        ...

    async def remove(self, name: str) -> None:
        """Accept no new requests for a model, and wait until the running ones have ended.

        Raises:
            ModelNotFound: No such model is served.
            InvalidRequest: Models cannot be removed here.
            EngineStopped: The engine is not running.
        """
        ...


class ReplicaStatus(StrEnum):
    """Whether an engine of several gets requests."""

    READY = "ready"
    DRAINED = "drained"
    UNRESPONSIVE = "unresponsive"
    DOWN = "down"


class ReplicaReport(NamedTuple):
    """One engine of several, as a client sees it.

    Attributes:
        replica: Its number.
        status: Whether it gets requests.
        load: Its figures, as `EngineClient.load`; empty while it is down.
        circuits: Models that keep failing there, with the state of each: "open" (it gets no
            requests for the model) or "half_open" (it gets one, to see whether it works again).
    """

    replica: int
    status: ReplicaStatus
    load: Mapping[str, Mapping[str, float]]
    circuits: Mapping[str, str] = {}


@runtime_checkable
class Replicated(Protocol):
    """An engine client over several engines."""

    @property
    def replicas(self) -> tuple[ReplicaReport, ...]:
        """The engines in order, also those that are down; empty if there is one alone."""
        ...


@runtime_checkable
class StartsEngines(Protocol):
    """An engine client whose engines start, and are replaced, while it is used."""

    def on_start(self, call: Callable[[EngineClient], None]) -> None:
        """Call a function with the client of each engine that accepts requests from now on."""
        ...


@runtime_checkable
class LimitsWaits(Protocol):
    """An engine client that refuses streams whose first output would come too late."""

    def check_admission(self, model: str) -> None:
        """Refuse a new stream of a model before anything is computed for it. Raises Overloaded."""
        ...


def replicas_of(engine: EngineClient) -> tuple[ReplicaReport, ...]:
    """Return the engines of a client over several; empty for one engine."""
    return engine.replicas if isinstance(engine, Replicated) else ()
