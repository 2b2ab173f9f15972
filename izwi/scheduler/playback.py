"""Playback arithmetic: chunk sizes, slack, gaps. Pure: no clock, no tensor, no I/O.

Times are seconds on the caller's clock. Playback runs at 1x from the first audio on, so the
delivered audio runs out in `slack` seconds, and a chunk that arrives later causes a gap.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

# A stream whose next chunk would arrive with a smaller margin than this runs in every step.
URGENT_S = 0.2
# A stream with this much slack can be preempted like background work.
FAR_S = 5.0
# Below this slack, the last frames of a stream that waits for text are decoded although they do not
# fill a chunk.
DRY_S = 0.2


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
