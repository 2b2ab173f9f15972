"""Simulate short requests beside long texts on one device.

A long text is a list of requests. Its caller reads as fast as audio arrives and has a limited
number of requests in flight, as `izwi_api.services.speech.synthesis` does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.simulation.arrivals import Arrival, Playback
from benchmarks.simulation.device import Device
from izwi.request.request import Request


@dataclass(slots=True)
class Waited:
    """One short request.

    Attributes:
        played: What its caller received.
        steps: Steps from its arrival to its first audio; None without audio.
    """

    played: Playback
    submitted_step: int
    steps: int | None = None


class Scene:
    """One device with its long texts and arriving short requests.

    Attributes:
        audio_s: Seconds of audio of the long texts so far.
        num_steps: Steps so far.
    """

    def __init__(
        self, device: Device, frame_s: float, long_texts: Iterable[Sequence[Request]], ahead: int
    ):
        """Submit the first requests of each text.

        Args:
            device: A device with the script of every request.
            frame_s: Seconds of audio in a frame.
            long_texts: The requests of each text, in order.
            ahead: Number of requests of a text in flight.
        """
        self.audio_s, self.num_steps = 0.0, 0
        self._device, self._frame_s = device, frame_s
        self._later: dict[str, deque[Request]] = {}
        self._shorts: dict[str, Waited] = {}
        for requests in long_texts:
            for request in requests[:ahead]:
                device.submit(request)
            self._later[requests[0].listener] = deque(requests[ahead:])
        self._text_of = {
            request.request_id: request.listener for text in long_texts for request in text
        }

    def run(self, arrivals: Sequence[Arrival], most_steps: int) -> list[Waited]:
        """Run until each short request has been played to its end, or for a number of steps."""
        pending, now_s = deque(arrivals), self._device.runner.now_s
        until = self.num_steps + most_steps
        while (pending or self._shorts_live) and self.num_steps < until:
            if not self._device.has_work and pending:
                now_s = max(now_s, pending[0].at_s)
            while pending and pending[0].at_s <= now_s:
                at_s, request = pending.popleft()
                self._shorts[request.request_id] = Waited(Playback(request, at_s), self.num_steps)
                self._device.submit(request)
            self._step(now_s)
            now_s = self._device.runner.now_s
        return list(self._shorts.values())

    @property
    def _shorts_live(self) -> bool:
        return any(one.played.ended_s is None for one in self._shorts.values())

    def _step(self, now_s: float) -> None:
        self.num_steps += 1
        for chunk in self._device.step(now_s):
            end_s = self._device.runner.now_s
            audio_s = 0.0 if chunk.pcm is None else len(chunk.pcm) * self._frame_s
            short = self._shorts.get(chunk.request_id)
            if short is None:
                self.audio_s += audio_s
                later = self._later[self._text_of[chunk.request_id]]
                if chunk.reason is not None and later:
                    self._device.submit(later.popleft())
                continue
            if audio_s:
                short.played.chunks.append((end_s, audio_s))
                if short.steps is None:
                    short.steps = self.num_steps - short.submitted_step
            if chunk.reason is not None:
                short.played.ended_s = end_s
