"""Simulate many devices with one list of arrivals, with events in order of time."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence

from benchmarks.simulation.arrivals import Arrival, Playback
from benchmarks.simulation.device import Device, Script, SimulatedModel
from benchmarks.simulation.machine import Machine
from izwi.config import EngineConfig
from izwi.errors import Overloaded
from izwi.request.request import Chunk, Reason, Request


class Cluster:
    """Devices behind a router that sends each request to the device with the fewest alive."""

    def __init__(
        self,
        num_devices: int,
        model: SimulatedModel,
        machine: Machine,
        config: EngineConfig,
        scripts: Mapping[str, Script],
        seed: int = 0,
    ):
        """Set up equal devices; see `Device` for the arguments."""
        self._machine, self._frame_s = machine, model.frame_s or 0.0
        self.devices = [
            Device(model, machine, config, scripts, seed * num_devices + place)
            for place in range(num_devices)
        ]
        self._inbox: list[list[Request]] = [[] for _ in self.devices]
        self._ended = [0] * num_devices  # in the step in flight
        self._busy = [False] * num_devices
        self._cold = [False] * num_devices  # the next step comes after a sleep
        self._heard: dict[str, Playback] = {}
        self._pending: list[tuple[float, int, Request]] = []  # arrivals, a heap
        self._num_announced = 0
        self._followers: Iterator[Request] = iter(())
        self.num_steps = 0

    def run(
        self,
        arrivals: Sequence[Arrival],
        until_s: float = float("inf"),
        followers: Iterable[Request] = (),
    ) -> list[Playback]:
        """Run a list of arrivals.

        Args:
            arrivals: Arrivals in order of time.
            until_s: Steps that would begin later are not run.
            followers: Each time a request has ended, the next of these arrives: a closed loop.

        Returns:
            What each listener received, in order of arrival.
        """
        begins: list[tuple[float, int]] = []  # when the next step of a busy device begins
        self._followers = iter(followers)
        for at_s, request in arrivals:
            self._announce(at_s, request)
        while self._pending or begins:
            if self._pending and (not begins or self._pending[0][0] <= begins[0][0]):
                at_s, _, request = heapq.heappop(self._pending)
                self._arrive(Arrival(at_s, request), begins)
                continue
            now_s, place = heapq.heappop(begins)
            if now_s > until_s:
                break
            end_s = self._step(place, now_s)
            if end_s is not None:
                heapq.heappush(begins, (end_s, place))
        return list(self._heard.values())

    def _announce(self, at_s: float, request: Request) -> None:
        self._num_announced += 1
        heapq.heappush(self._pending, (at_s, self._num_announced, request))

    def _arrive(self, arrival: Arrival, begins: list[tuple[float, int]]) -> None:
        self._heard[arrival.request.request_id] = Playback(arrival.request, arrival.at_s)
        place = min(range(len(self.devices)), key=lambda at: self.devices[at].num_live)
        self.devices[place].num_live += 1
        self._inbox[place].append(arrival.request)
        if not self._busy[place]:
            self._busy[place] = self._cold[place] = True
            heapq.heappush(begins, (arrival.at_s + self._machine.wake_s, place))

    def _step(self, place: int, now_s: float) -> float | None:
        """Run a device's next step; return its end time, or None if there was nothing to do."""
        device, inbox = self.devices[place], self._inbox[place]
        device.num_live -= self._ended[place]
        self._ended[place] = 0
        device.runner.now_s = now_s
        for request in inbox:
            try:
                device.submit(request)
            except Overloaded:
                self._heard[request.request_id].refused = True
                self._ended[place] += 1
        inbox.clear()
        if not device.has_work:
            self._busy[place] = False
            return None
        chunks = device.step(now_s, self._cold[place])
        self._cold[place] = False
        self.num_steps += 1
        for chunk in chunks:
            self._deliver(place, chunk, device.runner.now_s + self._machine.reach_s)
        return float(device.runner.now_s)

    def _deliver(self, place: int, chunk: Chunk, now_s: float) -> None:
        one = self._heard[chunk.request_id]
        if chunk.pcm is not None:
            one.chunks.append((now_s, len(chunk.pcm) * self._frame_s))
        if chunk.reason is None:
            return
        self._ended[place] += 1
        follower = next(self._followers, None)
        if follower is not None:
            self._announce(now_s, follower)
        if chunk.reason is Reason.ERROR:
            one.refused = True
        else:
            one.ended_s = now_s
