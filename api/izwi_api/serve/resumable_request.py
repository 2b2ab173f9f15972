"""A request in flight with its log: enough for another engine to resume it."""

from __future__ import annotations

from dataclasses import dataclass, field
from weakref import ref

import numpy as np
from msgspec.structs import replace

from izwi.arrays import Float32, Int64
from izwi.engine_client.output_stream import Stream
from izwi.request.log import Log
from izwi.request.request import Chunk, Request


@dataclass(slots=True, eq=False)
class ResumableRequest:
    """A request, the log of its output, and the commands sent for it since.

    Attributes:
        stream: A weak reference: dropping the stream aborts the request.
        is_aborted: Its reader left, so no other engine may run it.
        written: Text ids that were written to it.
        closed: No more text will be written.
        paused: It was paused; see `set_paused`.
        backpressured: Its reader is behind.
        num_deaths: Engines that died while they ran it, without output in between, unless others
            are more likely to be the cause; see `izwi_api.serve.suspects`.
        num_far: Engines that died in a row while they ran it, before each of which it was given
            about as much output; below 0 once others were found more likely to be the cause.
        reach: Chunks with output that it was given before the last death, since the one before.
        lived_s: Seconds for which that engine ran it.
        num_seen: All engines that died while they ran it.
        num_since: Chunks with output since the last of these deaths, or the beginning.
        is_cause: It may not run again.
        together: Ids of the requests that it was submitted with, itself included.
        submitted_s: When, on the event loop's clock.
        moves_s: When other engines were told to resume it, in seconds since it was submitted.
        refused_by: Replicas that did not run it: their queues refused it, or they failed.
        work: Its predicted work, if a router counts that.
    """

    request: Request
    stream: ref[Stream]
    is_aborted: bool = False
    written: list[int] = field(default_factory=list)
    closed: bool = False
    paused: bool = False
    backpressured: bool = False
    num_deaths: int = 0
    num_far: int = 0
    reach: int = 0
    lived_s: float = 0.0
    num_seen: int = 0
    num_since: int = 0
    is_cause: bool = False
    together: tuple[str, ...] = ()
    submitted_s: float = 0.0
    moves_s: list[float] = field(default_factory=list)
    refused_by: frozenset[int] = frozenset()
    work: float = 0.0
    _entries: list[Int64] = field(default_factory=list)
    _logprobs: list[Float32] = field(default_factory=list)
    _chunk_samples: list[int] = field(default_factory=list)
    # when each was given, on the event loop's clock, as if no pause had been before that ended
    _chunk_times_s: list[float] = field(default_factory=list)
    _paused_s: float = 0.0

    @property
    def started_s(self) -> float:
        """When it was given to its present engine, on the event loop's clock."""
        return self.submitted_s + (self.moves_s[-1] if self.moves_s else 0.0)

    @property
    def has_output(self) -> bool:
        """Whether its reader was given any output."""
        return bool(self._entries or self._chunk_samples)

    @property
    def num_entries(self) -> int:
        """Entries that its reader was given."""
        return sum(map(len, self._entries))

    def set_paused(self, paused: bool, now_s: float) -> None:
        """Note that it was paused or resumed; a listener does not play during a pause."""
        if self.paused and not paused:
            lasted_s = now_s - self._paused_s
            self._chunk_times_s = [time_s + lasted_s for time_s in self._chunk_times_s]
        elif paused and not self.paused:
            self._paused_s = now_s
        self.paused = paused

    def give(self, chunk: Chunk, now_s: float) -> None:
        """Pass a chunk to the reader, and add its output to the log."""
        if chunk.timing is not None and chunk.timing.is_resumed:
            chunk = replace(chunk, timing=chunk.timing.after_moves(self.moves_s))
        if len(chunk.entries):
            self._entries.append(chunk.entries)
        if chunk.logprobs is not None and len(chunk.logprobs):
            self._logprobs.append(chunk.logprobs)
        if chunk.pcm is not None:
            self._chunk_samples.append(len(chunk.pcm))
            self._chunk_times_s.append(now_s)
        self.deliver(chunk)

    def deliver(self, chunk: Chunk) -> None:
        """Pass a chunk to the reader, if it is still there."""
        stream = self.stream()
        if stream is not None:
            stream.put(chunk)

    def log(self, now_s: float) -> Log:
        """Return the log from which another engine resumes the request."""
        played_s = self._paused_s if self.paused else now_s
        nothing = np.zeros((0, 0), np.int64)
        return Log(
            entries=np.concatenate(self._entries) if self._entries else nothing,
            logprobs=np.concatenate(self._logprobs) if self._logprobs else None,
            chunk_samples=tuple(self._chunk_samples),
            written=tuple(self.written),
            closed=self.closed,
            paused=self.paused,
            chunk_ages_s=tuple([max(0.0, played_s - one) for one in self._chunk_times_s]),
        )
