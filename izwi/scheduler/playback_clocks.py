"""Playback clocks: how much of each answer was played, and when it underruns. No tensors.

Requests of one listener (the pieces of one text) play one after the other, so they share a clock. A
piece is due when those before it have been played: audio of a later piece does not prevent a gap in
an earlier one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf

from izwi.request.sequence import Sequence
from izwi.scheduler.plan import FramesDue
from izwi.scheduler.playback import chunk_frames, full_chunks, short_chunk_frames, slack_s

# An incomplete piece is assumed to continue for at least this long.
_TURN_S = 1.0
# Slack of text, which is read as fast as it arrives and has no audible gaps.
_TEXT_SLACK_S = 0.5


@dataclass(slots=True, eq=False)
class PlaybackClock:
    """One playback clock.

    Attributes:
        submitted_s: When its first request was submitted.
        first_audio_s: When its first audio was delivered, or None.
        played_s: Seconds of audio of the pieces before the queue.
        gaps_s: Seconds of gaps in playback so far.
        queue: Its pieces, in the order in which they are played; the first has not ended.
        is_paused: A request of it is paused: no audio is due.
        end_s: When all delivered audio will have been played.
    """

    name: str
    submitted_s: float
    first_audio_s: float | None = None
    played_s: float = 0.0
    gaps_s: float = 0.0
    queue: list[_Piece] = field(default_factory=list)
    is_paused: bool = False
    end_s: float = 0.0


@dataclass(slots=True, eq=False)
class _Piece:
    """One request of a listener.

    Attributes:
        audio_s: Seconds of its audio that were delivered.
        dry_s: When playback underruns, or, before the first audio, when that is late.
        ended: Whether its audio is complete.
    """

    clock: PlaybackClock
    audio_s: float = 0.0
    dry_s: float = 0.0
    ended: bool = False


class PlaybackClocks:
    """The clocks of one model's requests.

    Attributes:
        gaps_s: Seconds for which listeners heard nothing in the middle of an answer.
    """

    def __init__(self, frame_s: float | None, target_s: float):
        """Start without requests.

        Args:
            frame_s: Seconds of audio in a frame, or None for a model that writes text.
            target_s: Target for the first audio, in seconds.
        """
        self._frame_s, self._target_s = frame_s, target_s
        self.gaps_s = 0.0
        self._clocks: dict[str, PlaybackClock] = {}
        self._pieces: dict[int, _Piece] = {}  # by arrival
        # clocks without a piece, by the end of playback: another piece may still follow
        self._resting: list[tuple[float, str]] = []

    def knows(self, sequence: Sequence) -> bool:
        """Whether its listener has received audio of an answer that still continues or plays."""
        clock = self._clocks.get(_name(sequence))
        return clock is not None and clock.first_audio_s is not None

    def add(self, sequence: Sequence) -> None:
        """Add a request."""
        self._forget_played(sequence.submitted_s)
        name = _name(sequence)
        clock = self._clocks.get(name)
        if clock is None:
            clock = self._clocks[name] = PlaybackClock(name, sequence.submitted_s)
        piece = self._pieces[sequence.arrival] = _Piece(clock)
        clock.queue.append(piece)
        self._foresee(clock)

    def remove(self, sequence: Sequence) -> None:
        """Remove an ended request, and its clock once all delivered audio has played."""
        piece = self._pieces.pop(sequence.arrival, None)
        if piece is None:
            return
        clock, piece.ended = piece.clock, True
        while clock.queue and clock.queue[0].ended:
            clock.played_s += clock.queue.pop(0).audio_s
        self._foresee(clock)
        if clock.queue:
            return
        if clock.first_audio_s is None or self._frame_s is None:
            del self._clocks[clock.name]
        else:
            heappush(self._resting, (clock.end_s, clock.name))

    def delivered(self, sequence: Sequence, frames: float, now_s: float) -> float:
        """Record that audio, or for text an entry, was delivered; return the gap before it."""
        gap_s = 0.0
        piece = self._pieces[sequence.arrival]
        clock = piece.clock
        if clock.queue[0] is piece or self._frame_s is None:
            if clock.first_audio_s is None:
                clock.first_audio_s = now_s
            elif self._frame_s is not None:
                gap_s = max(0.0, now_s - piece.dry_s)
                clock.gaps_s += gap_s
                self.gaps_s += gap_s
        piece.audio_s += frames * (self._frame_s or 0.0)
        self._foresee(clock)
        return gap_s

    def pause(self, sequence: Sequence) -> None:
        """Note that a request is paused: its listener waits for no audio."""
        self._pieces[sequence.arrival].clock.is_paused = True

    def shift(self, sequence: Sequence, pause_s: float) -> None:
        """Shift a clock by the duration of a pause that ends."""
        clock = self._pieces[sequence.arrival].clock
        clock.is_paused = False
        clock.submitted_s += pause_s
        if clock.first_audio_s is not None:
            clock.first_audio_s += pause_s
        self._foresee(clock)

    def least_slack_s(self, now_s: float) -> float:
        """Return the smallest slack of answers that play and go on; infinite if there is none."""
        if self._frame_s is None:
            return inf
        clocks = list(self._clocks.values())  # a copy: other threads read figures
        playing = [c for c in clocks if c.first_audio_s is not None and not c.is_paused]
        return min((queue[0].dry_s - now_s for c in playing if (queue := c.queue[:1])), default=inf)

    def urgency(self, sequence: Sequence, now_s: float) -> tuple[float, bool]:
        """Return slack in seconds, and whether its listener has received any of the answer."""
        if not sequence.request.streams:
            return inf, True
        piece = self._pieces[sequence.arrival]
        clock = piece.clock
        started = clock.first_audio_s is not None
        if started and self._frame_s is None:
            return _TEXT_SLACK_S, True
        first = clock.queue[0]
        if first is piece:
            return piece.dry_s - now_s, started
        # a piece is not urgent before those ahead of it have been played, however late they are
        return piece.dry_s - min(now_s, first.dry_s), True

    def _foresee(self, clock: PlaybackClock) -> None:
        # stored, because every step reads it for every sequence, and only delivered audio changes
        # it
        start_s = slack_s(
            0.0,
            clock.submitted_s,
            clock.first_audio_s,
            clock.played_s,
            self._target_s,
            gaps_s=clock.gaps_s,
        )
        for piece in clock.queue:
            audio_s = piece.audio_s
            piece.dry_s = start_s + audio_s
            start_s += audio_s if piece.ended else audio_s + _TURN_S
        clock.end_s = start_s

    def _forget_played(self, now_s: float) -> None:
        while self._resting and self._resting[0][0] < now_s:
            end_s, name = heappop(self._resting)
            clock = self._clocks.get(name)
            if clock is not None and clock.end_s <= end_s:  # and no piece followed
                del self._clocks[name]


def next_chunk(sequence: Sequence, ramp: tuple[int, ...]) -> int:
    """Return the frames of a stream's next chunk, as if the steps in flight had ended."""
    count = full_chunks(sequence.audio.chunks, ramp)
    frames = sequence.pending.frames  # of two chunks in flight, one may be taken for full
    for _ in range(sequence.pending.chunks):
        if frames >= chunk_frames(count, ramp):
            frames -= chunk_frames(count, ramp)
            count += 1
    return chunk_frames(count, ramp)


def planned_chunk(sequence: Sequence, frames: int, ramp: tuple[int, ...]) -> int:
    """Return the size of a chunk for which `frames` frames were planned.

    The last chunk before an end is shorter. The end may be a prediction, and if it was wrong, its
    frames must wait for a whole chunk.
    """
    ends = sequence.status.ended or sequence.pending.ends
    return next_chunk(sequence, ramp) if ends else frames


def frames_due(
    sequence: Sequence, num_frames: int, ramp: tuple[int, ...], *, dry: bool = False
) -> FramesDue:
    """Return the frames that are not audio yet, as if the steps in flight had ended.

    Args:
        sequence: A stream.
        num_frames: Frames that it has then.
        ramp: Frames of a stream's first, second, ... chunk of audio.
        dry: No frame follows soon and playback is about to underrun, so that the next chunk is as
            long as its frames allow.
    """
    frames = num_frames - sequence.audio.num_vocoded - sequence.pending.frames
    chunk = next_chunk(sequence, ramp)
    if dry and 0 < frames < chunk:
        chunk = short_chunk_frames(frames, ramp)
    return FramesDue(
        frames=frames,
        chunk=chunk,
        next_frames=sequence.next_frames,
    )


def _name(sequence: Sequence) -> str:
    return sequence.request.listener or sequence.request.request_id
