"""Playback: chunk sizes, slack, gaps, and the clocks of listeners. Pure: times are arguments.

Times are seconds on the caller's clock. Playback runs at 1x from the first audio on, so the
delivered audio runs out in `slack` seconds, and a chunk that arrives later causes a gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from izwi.metrics import Observed

# A stream whose next chunk would arrive with a smaller margin than this runs in every step.
URGENT_S = 0.2
# A stream with this much slack can be preempted like background work.
FAR_S = 5.0
# Below this slack, the last frames of a stream that waits for text are decoded although they do not
# fill a chunk.
DRY_S = 0.2
# An incomplete piece is assumed to continue for at least this long.
_TURN_S = 1.0
# Slack of text, which is read as fast as it arrives and has no audible gaps.
_TEXT_SLACK_S = 0.5


class Gap(NamedTuple):
    """A gap in playback while the stream continues."""

    start_s: float
    length_s: float


def slack_s(
    now_s: float,
    submitted_s: float,
    first_audio_s: float | None,
    audio_s: float,
    ttfa_target_s: float,
    *,
    gaps_s: float = 0.0,
) -> float:
    """Return slack: seconds until an underrun; before the first audio, until that is late.

    Args:
        now_s: The time.
        submitted_s: When the request was submitted.
        first_audio_s: When its first audio chunk was delivered, or None.
        audio_s: Seconds of audio delivered.
        ttfa_target_s: Target for the first audio, in seconds after `submitted_s`.
        gaps_s: Total of the gaps so far; playback is delayed by as much.
    """
    if first_audio_s is None:
        return submitted_s + ttfa_target_s - now_s
    return first_audio_s + audio_s + gaps_s - now_s


def margin_s(slack_s: float, num_missing: int, frame_s: float) -> float:
    """Return the margin when the next chunk arrives; negative is the length of a gap.

    Args:
        slack_s: The stream's slack.
        num_missing: Frames that the chunk still lacks; each step emits one.
        frame_s: Predicted time of a step.
    """
    return slack_s - num_missing * frame_s


def find_gaps(chunks: Iterable[tuple[float, float]]) -> list[Gap]:
    """Find the gaps in playback.

    Args:
        chunks: (time of arrival, seconds of audio) of each chunk, in order. Playing begins with
            the first; after a gap it resumes with the chunk that ended the gap.
    """
    gaps: list[Gap] = []
    played_until_s: float | None = None
    for arrival_s, audio_s in chunks:
        if played_until_s is None:
            played_until_s = arrival_s
        elif arrival_s > played_until_s:
            gaps.append(Gap(played_until_s, arrival_s - played_until_s))
            played_until_s = arrival_s
        played_until_s += audio_s
    return gaps


def underrun_s(chunks: Iterable[tuple[float, float]]) -> float:
    """Return the total seconds of gaps in playback; `chunks` as for `find_gaps`."""
    return sum(gap.length_s for gap in find_gaps(chunks))


def chunk_frames(num_chunks: int, ramp: Sequence[int]) -> int:
    """Return the number of frames of the chunk after `num_chunks` chunks of full length.

    The first chunk is small so that audio starts early; later ones grow, because each call of
    the codec costs something beyond its frames and the listener has audio in hand by then.
    """
    return ramp[min(num_chunks, len(ramp) - 1)]


def full_chunks(chunks: Iterable[int], ramp: Sequence[int]) -> int:
    """Return how many of a stream's chunks had their full length, up to the last of the ramp.

    A chunk is shorter if the text ran out. It gives the listener little audio, so the next one
    must not be longer than it would have been without it.

    Args:
        chunks: Frames of each chunk.
        ramp: Frames of a stream's first, second, ... chunk of full length.
    """
    count = 0
    for frames in chunks:
        if count == len(ramp) - 1:
            break
        count += frames >= ramp[count]
    return count


def short_chunk_frames(num_frames: int, ramp: Sequence[int]) -> int:
    """Return the largest chunk size that this many frames fill; 0 without a frame.

    Only sizes of the ramp, and 1: a device has recorded steps for these.
    """
    return max((size for size in (1, *ramp) if size <= num_frames), default=0)


def frames_to_vocode(num_pending: int, chunk: int, *, ended: bool) -> int:
    """Return the frames of a planned chunk to decode now; 0 to wait for more.

    Args:
        num_pending: Frames emitted that are not audio yet.
        chunk: Frames of the chunk.
        ended: Whether no frame will follow, so that a short rest goes too.
    """
    if num_pending >= chunk:
        return chunk
    return num_pending if ended else 0


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
        streams: See `Request.streams`.
        audio_s: Seconds of its audio that were delivered.
        dry_s: When playback underruns, or, before the first audio, when that is late.
        ended: Whether its audio is complete.
    """

    clock: PlaybackClock
    streams: bool
    audio_s: float = 0.0
    dry_s: float = 0.0
    ended: bool = False


class PlaybackClocks:
    """The clocks of one model's requests.

    Requests of one listener (the pieces of one text) play one after the other, so they share a
    clock. A piece is due when those before it have been played: audio of a later piece does not
    prevent a gap in an earlier one.

    Attributes:
        gaps_s: Seconds for which listeners heard nothing in the middle of an answer.
        slacks_s: With how much slack audio was delivered to listeners who play.
    """

    def __init__(self, frame_s: float | None, target_s: float):
        """Start without requests.

        Args:
            frame_s: Seconds of audio in a frame, or None for a model that writes text.
            target_s: Target for the first audio, in seconds.
        """
        self._frame_s, self._target_s = frame_s, target_s
        self.gaps_s, self.slacks_s = 0.0, Observed("slack")
        self._clocks: dict[str, PlaybackClock] = {}
        self._pieces: dict[int, _Piece] = {}  # by key
        # clocks without a piece, by the end of playback: another piece may still follow
        self._resting: list[tuple[float, str]] = []

    def knows(self, listener: str) -> bool:
        """Whether a listener has received audio of an answer that still continues or plays."""
        clock = self._clocks.get(listener)
        return clock is not None and clock.first_audio_s is not None

    def add(self, key: int, listener: str, submitted_s: float, *, streams: bool = True) -> None:
        """Add a request of a listener, which has a key of its own; see `Request.streams`."""
        self._forget_played(submitted_s)
        clock = self._clocks.get(listener)
        if clock is None:
            clock = self._clocks[listener] = PlaybackClock(listener, submitted_s)
        piece = self._pieces[key] = _Piece(clock, streams)
        clock.queue.append(piece)
        self._foresee(clock)

    def restore(self, key: int, heard: Sequence[tuple[float, float]]) -> None:
        """Set the clock of a request that another engine has begun, which was added before.

        Pieces of the answer that ended there are not known here, so slack is a lower bound: the
        listener may play the first audio later than it arrived.

        Args:
            key: The request.
            heard: (time of arrival, seconds of audio) of each chunk of its audio, in order.
        """
        piece = self._pieces[key]
        clock = piece.clock
        piece.audio_s = sum(audio_s for _, audio_s in heard)
        if heard and clock.first_audio_s is None and clock.queue[0] is piece:
            clock.first_audio_s, clock.gaps_s = heard[0][0], underrun_s(heard)
        self._foresee(clock)

    def remove(self, key: int) -> None:
        """Remove an ended request, and its clock once all delivered audio has played."""
        piece = self._pieces.pop(key, None)
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

    def delivered(self, key: int, frames: float, now_s: float) -> float:
        """Record that audio, or for text an entry, was delivered; return the gap before it."""
        gap_s = 0.0
        piece = self._pieces[key]
        clock = piece.clock
        if clock.queue[0] is piece or self._frame_s is None:
            if clock.first_audio_s is None:
                clock.first_audio_s = now_s
            elif self._frame_s is not None:
                gap_s = max(0.0, now_s - piece.dry_s)
                if piece.streams:
                    self.slacks_s.add(piece.dry_s - now_s)
                clock.gaps_s += gap_s
                self.gaps_s += gap_s
        piece.audio_s += frames * (self._frame_s or 0.0)
        self._foresee(clock)
        return gap_s

    def pause(self, key: int) -> None:
        """Note that a request is paused: its listener waits for no audio."""
        self._pieces[key].clock.is_paused = True

    def shift(self, key: int, pause_s: float) -> None:
        """Shift a clock by the duration of a pause that ends."""
        clock = self._pieces[key].clock
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

    def urgency(self, key: int, now_s: float) -> tuple[float, bool]:
        """Return slack in seconds, and whether its listener has received any of the answer."""
        piece = self._pieces[key]
        if not piece.streams:
            return inf, True
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
