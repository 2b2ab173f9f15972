"""The stepping thread's loop on a clock that advances only while it waits or computes."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from izwi.engine.step_thread import SteppingThread
from izwi.request.request import Chunk, Request
from tests.engine.world import World


class _Wake:
    """Stands for the condition on which the thread waits: waiting moves the clock."""

    def __init__(self, loop: VirtualLoop):
        self._loop = loop

    def __enter__(self) -> None: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def notify(self) -> None: ...

    def wait_for(self, predicate: Callable[[], object], timeout_s: float | None) -> None:
        loop, clock = self._loop, self._loop.world.clock
        until_s = None if timeout_s is None else clock.now_s + timeout_s
        loop.arrive()
        while not predicate() and (until_s is None or clock.now_s < until_s):
            next_s = loop.next_arrival_s
            if next_s is None and (until_s is None or not loop.has_work):
                loop.end()
                return
            clock.now_s = min(x for x in (next_s, until_s) if x is not None)
            loop.arrive()


class VirtualLoop:
    """Runs requests that arrive at given times to their ends, in this thread.

    Attributes:
        chunk_s: When each request's chunks left, by request id.
    """

    def __init__(self, world: World):
        self.world = world
        self.chunk_s: dict[str, list[float]] = {}
        self.ended_s: dict[str, float] = {}
        self._arrivals: list[tuple[float, Request]] = []
        self.thread = SteppingThread(world.engine, self)
        self.thread._wake = _Wake(self)  # type: ignore[assignment]

    @property
    def has_work(self) -> bool:
        return self.world.engine.has_work

    @property
    def next_arrival_s(self) -> float | None:
        return self._arrivals[0][0] if self._arrivals else None

    def arrive(self) -> None:
        """Submit what has arrived by now."""
        while self._arrivals and self._arrivals[0][0] <= self.world.clock.now_s:
            _, request = self._arrivals.pop(0)
            self.thread.enqueue(lambda request=request: self.thread.take_in([request]))  # type: ignore[misc]

    def end(self) -> None:
        """Leave the loop."""
        self.thread._halt()

    def run(self, arrivals: list[tuple[float, Request]]) -> dict[str, float]:
        """Run to the end of all; when each ended, in seconds after its arrival.

        Args:
            arrivals: Seconds from now, and the request.
        """
        began_s = self.world.clock.now_s
        self._arrivals = sorted(
            ((began_s + at_s, request) for at_s, request in arrivals), key=lambda pair: pair[0]
        )
        arrived_s = {request.request_id: at_s for at_s, request in self._arrivals}
        self.thread._stopping = False
        self.thread._step_until_notified()
        return {name: self.ended_s[name] - at_s for name, at_s in arrived_s.items()}

    # -- the listener ------------------------------------------------------------------------
    def deliver(self, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            now_s = self.world.clock.now_s
            self.chunk_s.setdefault(chunk.request_id, []).append(now_s)
            if chunk.reason is not None:
                self.ended_s[chunk.request_id] = now_s

    def stepped(self) -> None: ...

    def ended(self, broken: BaseException | None) -> None: ...
