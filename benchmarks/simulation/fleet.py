"""Simulate regions of replicas behind the router's own placement, and what is lost in them.

An engine that dies loses the step in flight. Its streams move with their logs, as API servers keep
them, and what the log does not have is computed again. A region that is lost takes its API servers
and thus the logs along: its streams end, and later arrivals go to the other regions.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from benchmarks.simulation.arrivals import Arrival, Playback
from benchmarks.simulation.device import Device, Script, SimulatedModel
from benchmarks.simulation.machine import Machine
from izwi.arrays import Int64
from izwi.config import EngineConfig
from izwi.errors import Overloaded
from izwi.request.log import Log
from izwi.request.request import Chunk, Reason, Request
from izwi.router.options import RouterOptions
from izwi.router.placement import Placement, ReplicaLoad

# Seconds between the reports of an engine, as in `izwi_api.serve.engine_process`.
_FIGURES_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class FleetShape:
    """How many engines there are, and how requests reach them.

    Attributes:
        regions: Engines of each region.
        router: How each region's router places requests.
        round_trip_s: From a listener to a region that is not its own, and back.
        notice_s: From an engine's death until its streams are sent to others.
    """

    regions: tuple[int, ...]
    router: RouterOptions = field(default_factory=RouterOptions)
    round_trip_s: float = 0.0
    notice_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Failure:
    """What dies, and when: one engine of a region, or all of it.

    Attributes:
        at_s: Seconds after the start.
        replica: Number of the engine in its region; None loses the region.
    """

    at_s: float
    region: int
    replica: int | None = None


@dataclass(slots=True, eq=False)
class _Stream:
    """A request in flight: its listener, its log, and where it runs."""

    played: Playback
    way_s: float  # from its listener to its region
    work: float = 0.0
    entries: list[Int64] = field(default_factory=list)
    given_s: list[float] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)

    def log(self, now_s: float) -> Log | None:
        """Return what was given so far; None: nothing."""
        if not self.entries and not self.samples:
            return None
        entries = np.concatenate(self.entries) if self.entries else np.zeros((0, 0), np.int64)
        ages_s = tuple([now_s - one for one in self.given_s])
        return Log(entries, chunk_samples=tuple(self.samples), chunk_ages_s=ages_s)


@dataclass(slots=True, eq=False)
class _Replica:
    device: Device
    load: ReplicaLoad
    inbox: list[tuple[_Stream, Log | None]] = field(default_factory=list)
    streams: dict[str, _Stream] = field(default_factory=dict)
    num_sent: int = 0
    busy: bool = False
    dead: bool = False
    reported_s: float = -_FIGURES_EVERY_S


class Fleet:
    """Regions of equal engines; each region has one router, and listeners have home regions."""

    def __init__(
        self,
        shape: FleetShape,
        model: SimulatedModel,
        machine: Machine,
        config: EngineConfig,
        scripts: Mapping[str, Script],
        seed: int = 0,
    ):
        """Set up engines; see `Device` for the arguments."""
        self._shape, self._machine, self._frame_s = shape, machine, model.frame_s or 0.0
        self._now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        seeds = count(seed)
        self.regions = [
            [
                _Replica(
                    Device(model, machine, config, scripts, next(seeds)),
                    ReplicaLoad(place, accepts=True),
                )
                for place in range(num_replicas)
            ]
            for num_replicas in shape.regions
        ]
        self._placements = [
            Placement(shape.router, [one.load for one in region], seed, lambda: self._now_s)
            for region in self.regions
        ]
        self.num_moved = self.num_cut_off = 0

    def run(self, arrivals: Sequence[Arrival], failures: Sequence[Failure] = ()) -> list[Playback]:
        """Run a list of arrivals, whose listeners live in one region after the other.

        Returns:
            What each listener received, in the order given.
        """
        heard = []
        for number, (at_s, request) in enumerate(arrivals):
            played = Playback(request, at_s)
            heard.append(played)
            self._at(at_s, self._arrival(played, number))
        for failure in failures:
            self._at(failure.at_s, self._failure(failure))
        while self._events:
            self._now_s, _, happen = heapq.heappop(self._events)
            happen()
        return heard

    def _at(self, at_s: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), happen))

    def _arrival(self, played: Playback, number: int) -> Callable[[], None]:
        def arrive() -> None:
            home = number % len(self.regions)
            alive = [at for at in range(len(self.regions)) if self._accepts(at)]
            if not alive:
                played.refused = True
                return
            region = home if home in alive else alive[number // len(self.regions) % len(alive)]
            way_s = 0.0 if region == home else self._shape.round_trip_s / 2
            stream = _Stream(played, way_s)
            self._at(self._now_s + way_s, lambda: self._place(region, stream, None))

        return arrive

    def _accepts(self, region: int) -> bool:
        return any(one.load.accepts for one in self.regions[region])

    def _place(
        self, region: int, stream: _Stream, log: Log | None, without: frozenset[int] = frozenset()
    ) -> None:
        """Send a request to the engine that the router chooses."""
        placement, request = self._placements[region], stream.played.request
        try:
            if not placement.takes([request], without):
                raise Overloaded("no engine accepts it")
            place = placement.choose([request], without)
        except Overloaded:
            stream.played.refused = True
            return
        replica = self.regions[region][place]
        stream.work = placement.place_request(place, request)
        replica.num_sent += 1
        replica.inbox.append((stream, log))
        replica.streams[request.request_id] = stream
        if not replica.busy:
            replica.busy = True
            begin_s = self._now_s + self._machine.wake_s
            self._at(begin_s, lambda: self._step(region, replica, cold=True))

    def _step(self, region: int, replica: _Replica, *, cold: bool = False) -> None:
        if replica.dead:
            return
        device, now_s = replica.device, self._now_s
        device.runner.now_s = now_s
        for stream, log in replica.inbox:
            try:
                device.submit(stream.played.request, log)
            except Overloaded:
                self._leave(region, replica, stream.played.request)
                others = frozenset({replica.load.replica})
                self._place(region, stream, log, others)
        replica.inbox.clear()
        if not device.has_work:
            replica.busy = False
            return
        chunks = device.step(now_s, cold)
        end_s = float(device.runner.now_s)
        self._at(end_s, lambda: self._end_step(region, replica, chunks))

    def _end_step(self, region: int, replica: _Replica, chunks: Sequence[Chunk]) -> None:
        if replica.dead:  # the step in flight is lost
            return
        for chunk in chunks:
            self._deliver(region, replica, chunk)
        self._report(replica)
        self._step(region, replica)

    def _deliver(self, region: int, replica: _Replica, chunk: Chunk) -> None:
        stream = replica.streams[chunk.request_id]
        heard_s = self._now_s + self._machine.reach_s + stream.way_s
        if len(chunk.entries):
            stream.entries.append(chunk.entries)
        if chunk.pcm is not None:
            stream.samples.append(len(chunk.pcm))
            stream.given_s.append(self._now_s)
            self._placements[region].end_wait(
                replica.load.replica, stream.played.request, has_output=True
            )
            stream.played.chunks.append((heard_s, len(chunk.pcm) * self._frame_s))
        if chunk.reason is None:
            return
        self._leave(region, replica, stream.played.request)
        if chunk.reason is Reason.ERROR:
            stream.played.refused = True
            return
        stream.played.ended_s = heard_s
        if chunk.reason is Reason.STOP:
            num_entries = sum(map(len, stream.entries))
            self._placements[region].learn(stream.played.request.model, num_entries)

    def _leave(self, region: int, replica: _Replica, request: Request) -> None:
        stream = replica.streams.pop(request.request_id)
        self._placements[region].end_wait(replica.load.replica, request, has_output=False)
        self._placements[region].end(replica.load.replica, stream.work)

    def _report(self, replica: _Replica) -> None:
        """Publish figures, as an engine does while it has work and once when that ends."""
        if self._now_s - replica.reported_s < _FIGURES_EVERY_S and replica.device.has_work:
            return
        replica.reported_s = self._now_s
        scheduler = replica.device.worker.scheduler
        running, waiting = float(scheduler.num_running), float(scheduler.num_waiting)
        replica.load.figures = {"paper": {"running": running, "waiting": waiting}}

    def _failure(self, failure: Failure) -> Callable[[], None]:
        def fail() -> None:
            region = self.regions[failure.region]
            place = failure.replica
            for replica in region if place is None else [region[place]]:
                replica.dead = True
                replica.load.clear()
                replica.load.figures = {}
                orphans = list(replica.streams.values())
                for stream in orphans:
                    self._leave(failure.region, replica, stream.played.request)
                if place is None:
                    self.num_cut_off += len(orphans)
                else:
                    self.num_moved += len(orphans)
                    self._move(failure.region, orphans)

        return fail

    def _move(self, region: int, orphans: Sequence[_Stream]) -> None:
        def move() -> None:
            for stream in orphans:
                self._place(region, stream, stream.log(self._now_s))

        self._at(self._now_s + self._shape.notice_s, move)
