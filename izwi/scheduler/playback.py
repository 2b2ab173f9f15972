"""Pace sound: how many frames the next chunk has. Pure: no clock, no tensor, no I/O."""

from __future__ import annotations

from collections.abc import Sequence


def chunk_frames(num_chunks: int, ramp: Sequence[int]) -> int:
    """Frames of the chunk after `num_chunks` chunks.

    The first chunk is small so that sound starts early; later ones grow, because each call of
    the codec costs something beyond its frames and the listener has audio in hand by then.
    """
    return ramp[min(num_chunks, len(ramp) - 1)]


def frames_to_vocode(
    *, num_frames: int, num_vocoded: int, num_chunks: int, ended: bool, ramp: Sequence[int]
) -> int:
    """Frames that should go through the codec now; 0 to wait for more.

    Args:
        num_frames: Frames emitted.
        num_vocoded: Of these, frames that are sound already.
        num_chunks: Chunks that left.
        ended: Whether no frame will follow, so that a short rest goes too.
        ramp: Frames of the first, second, ... chunk; the last repeats.
    """
    pending = num_frames - num_vocoded
    wanted = chunk_frames(num_chunks, ramp)
    if pending >= wanted:
        return wanted
    return pending if ended else 0
