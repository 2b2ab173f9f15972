"""One engine client over several engines: places requests, and moves those of an engine that fails.

It runs in each API server, so a request takes no further hop. Which engine gets a request is
decided by `izwi.router.placement`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from izwi.engine_client.protocol import (
    Answer,
    Answers,
    EngineClient,
    ReplicaReport,
    ReplicaStatus,
)
from izwi.errors import EngineStopped, InvalidRequest, ModelNotFound, Overloaded
from izwi.model.protocol import Model
from izwi.request.request import Chunk, Reason, Request
from izwi.router.breaker import CircuitEvent
from izwi.router.options import RouterOptions
from izwi.router.placement import Placement, ReplicaLoad
from izwi_api.serve.event_loop_lag import EventLoopLag
from izwi_api.serve.remote_engine import RemoteEngine, is_fault
from izwi_api.serve.resumable_request import ResumableRequest

logger = logging.getLogger(__name__)

# Turns of the event loop that a first output takes beside what is measured from placing a request
# to reading its output: one to receive the request, one to send the response.
_TURNS = 2


class ChangesModels(Protocol):
    """What starts and ends engines for models that come and go."""

    async def load(self, name: str, folder: Path) -> None:
        """Serve another model. Raises InvalidRequest and EngineStopped."""
        ...

    async def unload(self, name: str) -> None:
        """Serve a model no more. Raises EngineStopped."""
        ...

    def stop(self) -> None:
        """End what still waits with EngineStopped."""
        ...


class ReplicaRouter:
    """Implements `EngineClient` over the clients of several engines, or of one.

    The supervisor says which engines run (`connect`, `disconnect`) and which must not get requests
    (`drain`). Requests of an engine that dies, hangs or drains go to the others at once, with their
    logs; readers notice only a pause. If no other engine accepts requests, they wait for the first
    that does, as `RemoteEngine` says.

    Args:
        engines: A client for each replica, in order.
        options: How requests are placed.
        num_needed: Engines that must accept requests before the server says that it is ready.
        make_engine: Makes the client of an engine that is started later, by its number.

    Attributes:
        when_lost: Called with the number of an engine whose connection is lost.
        changes: Starts and ends engines for models that come and go; None: they cannot.
    """

    def __init__(
        self,
        engines: Sequence[RemoteEngine],
        options: RouterOptions,
        num_needed: int = 1,
        make_engine: Callable[[int], RemoteEngine] | None = None,
    ):
        self._engines, self._num_needed = list(engines), num_needed
        self._make_engine, self._num_first = make_engine, len(self._engines)
        self._loads = [ReplicaLoad(number) for number in range(len(engines))]
        self._placement = Placement(options, self._loads, seed=time.monotonic_ns())
        self._lag = EventLoopLag() if options.max_wait_s > 0 else None
        self._placement.own_delay_s = self._own_delay_s
        self.changes: ChangesModels | None = None
        self.when_lost: Callable[[int], object] = self.disconnect
        self._vacant: set[int] = set()  # places of which no engine is expected
        # those that run, and must not get requests
        self._drained: dict[int, ReplicaStatus] = {}
        self._on_start: Callable[[EngineClient], None] = lambda _: None
        for engine in engines:
            engine.router = self

    # -- as an engine client -------------------------------------------------------------------
    @property
    def alive(self) -> bool:
        """Whether enough engines accept requests."""
        first = self._loads[: self._num_first]
        return sum(load.accepts for load in first) >= self._num_needed

    @property
    def load(self) -> Mapping[str, Mapping[str, float]]:
        """Figures of each model: of the first engine that has it; see `replicas` for all."""
        merged: dict[str, Mapping[str, float]] = {}
        for engine in reversed(self._engines):
            merged |= engine.load
        return merged

    @property
    def replicas(self) -> tuple[ReplicaReport, ...]:
        """The engines in order, also those that do not run; empty if there is one alone."""
        if len(self._engines) == 1:
            return ()
        return tuple(
            ReplicaReport(
                *(number, self._status(number), engine.load),
                self._placement.open_circuits(number),
            )
            for number, engine in enumerate(self._engines)
            if number not in self._vacant
        )

    def on_start(self, call: Callable[[EngineClient], None]) -> None:
        """See `StartsEngines.on_start`."""
        self._on_start = call

    def start(self) -> None:
        """Do nothing: the engines run as long as their processes do."""

    async def stop(self) -> None:
        """Disconnect; requests in flight end with EngineStopped."""
        if self.changes is not None:
            self.changes.stop()
        for load in self._loads:
            load.accepts = False
        for engine in self._engines:
            await engine.stop()

    def check_admission(self, model: str) -> None:
        """See `LimitsWaits.check_admission`."""
        self._update_figures()
        self._placement.check_admission(model)

    def submit(self, request: Request) -> Answer:
        """Submit a request; see `submit_all`."""
        return self.submit_all([request])[0]

    def submit_all(self, requests: Sequence[Request]) -> Answers[Answer]:
        """Submit requests to one engine, so that they enter the same step: all or none.

        Without an engine that accepts requests, some wait, as `RemoteEngine.submit_all` says. If
        the queue of one engine refuses them, they go to another.

        Raises:
            EngineStopped: No engine is running.
            InvalidRequest: A request with the same id is running.
            ModelNotFound: The model was unloaded meanwhile.
            Overloaded: The limits of requests in flight are reached, or the predicted wait is too
                long.
        """
        if len(self._engines) > 1:
            for request in requests:
                if any(engine.runs(request.request_id) for engine in self._engines):
                    raise InvalidRequest(f"request {request.request_id!r} is running already")
        self._update_figures()
        if self._placement.takes(requests):
            chosen = self._placement.choose(requests)
            source = self._placement.choose_prefill(requests, chosen)
            if source is not None:
                return self._submit_apart(requests, source, chosen)
            return self._engines[chosen].submit_all(requests)
        gone = [
            engine
            for engine, load in zip(self._engines, self._loads, strict=True)
            if not engine.alive and load.serves(requests)
        ]
        if not any(load.serves(requests) for load in self._loads):
            raise ModelNotFound(f"no model {requests[0].model!r} is served", param="model")
        if not gone:  # all of them drain
            raise EngineStopped("no engine accepts requests")
        # the one that died last keeps those that may wait
        return max(gone, key=lambda one: one.gone_s).submit_all(requests)

    def _submit_apart(
        self, requests: Sequence[Request], source: int, chosen: int
    ) -> Answers[Answer]:
        """Submit requests to an engine once another one has computed the prompt of the first.

        If that one dies or refuses it, the engine computes the prompt itself.
        """
        computing, engine = self._engines[source], self._engines[chosen]
        first = requests[0].request_id
        answers = engine.submit_all(requests, awaits_pages=True)
        prefill = prefill_of(requests[0])
        work = self._placement.place_request(source, prefill)

        def computed(path: str) -> None:
            self._placement.end(source, work)
            engine.start_awaiting(first, path, lambda: computing.free_pages(prefill.request_id))

        computing.prefill(prefill, computed)
        return answers

    async def add(self, name: str, model: Model | None, folder: Path) -> None:
        """See `EngineClient.add`; engine processes of its own will run the model."""
        if self.changes is None:
            await self._engines[0].add(name, model, folder)
        else:
            await self.changes.load(name, folder)

    async def remove(self, name: str) -> None:
        """See `EngineClient.remove`."""
        if self.changes is None:
            await self._engines[0].remove(name)
        else:
            await self.changes.unload(name)

    # -- from the supervisor -------------------------------------------------------------------
    def connect(self, replica: int, address: str) -> None:
        """Connect to a new engine; it gets requests once it has answered."""
        if self._lag is not None:
            self._lag.start(asyncio.get_running_loop())
        self._make_places(replica)
        self._drained.pop(replica, None)
        self._vacant.discard(replica)
        self._engines[replica].connect(address)

    def disconnect(self, replica: int) -> None:
        """Move the requests of an engine that is gone to the others."""
        self._drained.pop(replica, None)
        self._loads[replica].clear()
        self._engines[replica].disconnect()
        self._move(replica)

    def vacate(self, replica: int) -> None:
        """Expect no engine at a place: one that had been there is gone for good."""
        self.disconnect(replica)
        self._vacant.add(replica)

    def place_model(self, model: str, replicas: Sequence[int]) -> None:
        """Send requests for a model to these engines only; to none if it was unloaded."""
        for load in self._loads:
            if load.models is not None:
                rest = load.models - {model}
                load.models = rest | {model} if load.replica in replicas else rest

    def num_requests_of(self, model: str) -> int:
        """Return how many requests for a model run or wait."""
        return sum(engine.num_requests_of(model) for engine in self._engines)

    def num_requests(self, replica: int) -> int:
        """Return how many requests an engine runs, or will run when it is back."""
        return self._engines[replica].num_requests

    def drain(self, replica: int, *, is_hung: bool = False) -> None:
        """Move the requests of an engine that runs to the others; it gets no more.

        Without another engine that accepts requests, its own stay.

        Args:
            replica: Its number.
            is_hung: It has stopped responding, so its requests may be the cause.
        """
        status = ReplicaStatus.UNRESPONSIVE if is_hung else ReplicaStatus.DRAINED
        self._drained[replica] = status
        self._loads[replica].accepts = False
        if is_hung:
            self._engines[replica].give_up_prefills()
        self._move(replica, is_hung=is_hung)

    def accept(self, replica: int) -> None:
        """Let an engine that was drained get requests again."""
        self._drained.pop(replica, None)
        if self._engines[replica].alive:
            self._loads[replica].accepts = True
            self._collect()

    def share_circuits(self, tell: Callable[[int, str, CircuitEvent], object]) -> None:
        """Call a function with each change of a circuit here, for other API servers."""
        self._placement.when_circuit_changes = tell

    def change_circuit(self, replica: int, model: str, event: CircuitEvent) -> None:
        """Change a circuit as another API server has."""
        if replica < len(self._loads) and self._placement.change_circuit(replica, model, event):
            _log_open(replica, model)

    def running(self) -> list[RemoteEngine]:
        """Return the clients of the engines that run, in order."""
        return [engine for engine in self._engines if engine.alive]

    def give_up(self) -> None:
        """End all requests that wait for an engine with EngineStopped: no engine will start."""
        for engine in self._engines:
            if not engine.alive:
                engine.give_up()

    # -- from the clients of the engines -------------------------------------------------------
    def welcomed(self, engine: RemoteEngine) -> None:
        """Let a new engine get requests, first those that wait for any."""
        number = engine.replica
        self._loads[number].models = frozenset(engine.load)
        if number not in self._drained:
            self._loads[number].accepts = True
            self._collect()
        self._on_start(engine)

    def lost(self, engine: RemoteEngine) -> None:
        """Give up an engine whose connection is lost."""
        self.when_lost(engine.replica)

    def published(self, engine: RemoteEngine, digests: dict[str, list[int]]) -> None:
        """Keep what an engine says of its prefixes."""
        self._loads[engine.replica].prefixes.publish(digests)

    def begun(self, engine: RemoteEngine, request: Request) -> float:
        """Count a request; return its predicted work."""
        return self._placement.place_request(engine.replica, request)

    def has_output(self, engine: RemoteEngine, resumable: ResumableRequest) -> None:
        """Learn how long a request has waited for its first output."""
        self._placement.end_wait(engine.replica, resumable.request, has_output=True)

    def paused(self, engine: RemoteEngine, resumable: ResumableRequest) -> None:
        """Wait no longer for the first output of a request: its caller may pause it for long."""
        self._placement.end_wait(engine.replica, resumable.request, has_output=False)

    def ended(self, engine: RemoteEngine, resumable: ResumableRequest, last: Chunk | None) -> None:
        """Count a request that has left an engine."""
        self._placement.end_wait(engine.replica, resumable.request, has_output=False)
        self._placement.end(engine.replica, resumable.work)
        if last is None:
            return
        works = last.reason in (Reason.STOP, Reason.LENGTH)
        if works:
            self._placement.learn(resumable.request.model, resumable.num_entries)
        self._note_outcome(engine, resumable, False if is_fault(last.error) else works or None)

    def failed(self, engine: RemoteEngine, resumable: ResumableRequest) -> bool:
        """Send a request that an engine failed to run to another, if one is left."""
        if not self.refused(engine, [resumable]):
            return False
        self._note_outcome(engine, resumable, works=False)
        return True

    def _note_outcome(
        self, engine: RemoteEngine, resumable: ResumableRequest, works: bool | None
    ) -> None:
        model = resumable.request.model
        if self._placement.note_outcome(engine.replica, model, works=works):
            _log_open(engine.replica, model)

    def refused(self, engine: RemoteEngine, resumables: Sequence[ResumableRequest]) -> bool:
        """Send requests that an engine has not begun to another one, if one is left."""
        number = engine.replica
        tried = frozenset({number}).union(*(one.refused_by for one in resumables))
        requests = [one.request for one in resumables]
        if not self._placement.takes(requests, tried):
            return False
        self._update_figures()
        try:
            chosen = self._placement.choose(requests, tried)
        except Overloaded:
            return False
        moved = [engine.release(one.request.request_id, has_ended=True) for one in resumables]
        for one in moved:
            one.refused_by = tried
        self._engines[chosen].take_over(moved, is_begun=False)
        return True

    def _make_places(self, replica: int) -> None:
        """Make clients of engines up to a number that came later."""
        while len(self._engines) <= replica and self._make_engine is not None:
            number = len(self._engines)
            self._engines.append(self._make_engine(number))
            self._engines[number].router = self
            self._loads.append(ReplicaLoad(number, models=frozenset()))
            self._vacant.add(number)

    def _own_delay_s(self) -> float:
        if self._lag is None:
            return 0.0
        return _TURNS * self._lag.seconds(asyncio.get_running_loop().time())

    def _update_figures(self) -> None:
        for load, engine in zip(self._loads, self._engines, strict=True):
            load.figures = engine.load

    def _status(self, replica: int) -> ReplicaStatus:
        if not self._engines[replica].alive:
            return ReplicaStatus.DOWN
        return self._drained.get(replica, ReplicaStatus.READY)

    def _collect(self) -> None:
        """Move requests that wait on engines without one, or on drained ones, to those that run."""
        for load in self._loads:
            if not load.accepts:
                self._move(load.replica)

    def _move(self, replica: int, *, is_hung: bool = False) -> None:
        """Move the requests of an engine to the others that accept requests for their models."""
        moved = self._engines[replica].give_away(
            lambda request: bool(self._placement.takes([request])), is_hung=is_hung
        )
        for resumable in moved:
            if resumable.has_output:  # a full queue must not cut its answer off
                resumable.request = replace(resumable.request, continues=True)
            self._update_figures()
            chosen = self._chosen_for(resumable.request)
            self._engines[chosen].take_over([resumable], is_begun=True)
        if moved:
            logger.warning("%d requests of replica %d go on elsewhere", len(moved), replica)

    def _chosen_for(self, request: Request) -> int:
        """Return the engine for a request that must go on, whatever the limits."""
        with suppress(Overloaded):
            return self._placement.choose([request])
        return self._placement.choose([replace(request, continues=True)])


def prefill_of(request: Request) -> Request:
    """Return a request that computes the prompt of another one and emits one entry."""
    return replace(
        request,
        request_id=f"{request.request_id}/prompt",
        max_entries=1,
        min_entries=0,
        streams=False,
        listener="",
        continues=False,
        awaits_engine=False,
        logprobs=False,
        top_logprobs=0,
        grammar=None,
        ask=None,
    )


def _log_open(replica: int, model: str) -> None:
    logger.warning("%s keeps failing on replica %d", model, replica)
