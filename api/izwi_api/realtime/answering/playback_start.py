"""When playback of an answer may begin so that it does not run dry. Pure: time is an argument.

Chunks of audio grow: 80, 160, 320, then 640 ms with the embedded voice. At half of real time, each
takes as long to make as the one before it lasts. An answer that is played from its first chunk on
therefore has gaps in its first second wherever the models are a little slower than that.
"""

from __future__ import annotations

from collections.abc import Sequence

from izwi_api.services.production_pace import AudioChunk, measured_rate

# The next chunk is as long as the last one, times this, up to the longest chunk.
_GROWTH = 2.0
# Share of the measured pace that is counted on.
_CAUTION = 0.9
# A chunk may be late by so much.
_MARGIN_MS = 30.0
# The expected pace counts as much as so many milliseconds of this answer.
_EXPECTED_MS = 100.0
# The lead must survive so much more audio. An answer that is made slower than it is played begins
# with a longer lead, and has gaps only if it is longer than that.
_HORIZON_MS = 3000.0
# The most that playback waits for, from the first chunk on.
MOST_HELD_MS = 1000.0


def safe_start_ms(
    chunks: Sequence[AudioChunk], measured: Sequence[AudioChunk], rate: float, longest_ms: float
) -> float:
    """Return when playback of the chunks in hand may begin.

    Args:
        chunks: What was made and is not played; at least one.
        measured: Chunks of this answer without a break between them, ending with the last one.
        rate: Expected pace, in seconds of audio a second.
        longest_ms: Longest chunk that is expected.
    """
    playable_ms = sum(chunk.playable_ms for chunk in chunks)
    first_ms = next(chunk.made_ms for chunk in chunks if chunk.playable_ms or chunk is chunks[-1])
    pace = _CAUTION * measured_rate(measured, rate, _EXPECTED_MS)
    length_ms, made_ms = chunks[-1].audio_ms, chunks[-1].made_ms
    start_ms, end_ms = first_ms, playable_ms + _HORIZON_MS
    while playable_ms < end_ms:
        length_ms = max(min(_GROWTH * length_ms, longest_ms), 1.0)
        made_ms += length_ms / pace
        start_ms = max(start_ms, made_ms - playable_ms + _MARGIN_MS)
        playable_ms += length_ms
    return min(start_ms, first_ms + MOST_HELD_MS)
