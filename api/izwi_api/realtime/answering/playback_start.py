"""When playback of an answer may begin so that it does not run dry. Pure: time is an argument.

Chunks of audio grow: 80, 160, 320, then 640 ms with the embedded voice. At half of real time, each
takes as long to make as the one before it lasts. An answer that is played from its first chunk on
therefore has gaps in its first second wherever the models are a little slower than that.

Earlier answers tell how the next chunks will come. The pace so far does not: a voice waits for the
chat model's first words, and is faster once it has them. One pace is assumed only until there are
some answers.
"""

from __future__ import annotations

from collections.abc import Sequence

from izwi_api.services.production_pace import MEASURED, AudioChunk, measured_rate

# The next chunk is as long as the last one, times this, up to the longest chunk.
_GROWTH = 2.0
# Share of the measured pace that is counted on.
_CAUTION = 0.9
# A chunk may be late by so much.
_MARGIN_MS = 30.0
# Behind earlier answers, a chunk that is far ahead may be late by no more than this: what was made
# far ahead may have waited for a client that plays, and says little.
_MOST_LATE_MS = 150.0
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
    """Return when playback of the chunks in hand may begin, if one pace is assumed.

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


def learned_start_ms(
    chunks: Sequence[AudioChunk],
    measured: Sequence[AudioChunk],
    answers: Sequence[Sequence[AudioChunk]],
) -> float:
    """Return when playback may begin, if the rest comes as late as in any earlier answer.

    An answer that has taken longer than all of them is expected to go on as slowly.

    Args:
        chunks: What was made and is not played; at least one.
        measured: All chunks of this answer.
        answers: Chunks of earlier answers, each from its first one on; at least one.
    """
    first_ms = next(chunk.made_ms for chunk in chunks if chunk.playable_ms or chunk is chunks[-1])
    playable_ms = sum(chunk.playable_ms for chunk in chunks)
    audio_ms = sum(chunk.audio_ms for chunk in measured)
    courses = [_course(answer, audio_ms + _HORIZON_MS) for answer in answers]
    reached_ms = [_reached_ms(course, audio_ms) for course in courses]
    taken_ms = measured[-1].made_ms - measured[0].made_ms
    slowness = max(1.0, taken_ms / max(1.0, *reached_ms))
    wait_ms = max(
        _with_caution(slowness * (made_ms - now_ms)) - max(0.0, begins_ms - audio_ms)
        for course, now_ms in zip(courses, reached_ms, strict=True)
        for begins_ms, ends_ms, made_ms in course
        if ends_ms > audio_ms
    )
    start_ms = measured[-1].made_ms + wait_ms + _MARGIN_MS - playable_ms
    return min(max(start_ms, first_ms), first_ms + MOST_HELD_MS)


def _with_caution(time_ms: float) -> float:
    return min(time_ms / _CAUTION, time_ms + _MOST_LATE_MS)


def _course(answer: Sequence[AudioChunk], until_ms: float) -> list[tuple[float, float, float]]:
    """Return where in the answer each chunk begins and ends, and when after the first it was made.

    An answer that ended before `until_ms` is thought to go on, at the pace at which it began.
    """
    course, begins_ms = [], 0.0
    for chunk in answer:
        made_ms = chunk.made_ms - answer[0].made_ms
        course.append((begins_ms, begins_ms + chunk.audio_ms, made_ms))
        begins_ms += chunk.audio_ms
    length_ms = max(1.0, answer[-1].audio_ms)
    pace = measured_rate(answer[:MEASURED], 1.0, 0.0)
    while begins_ms < until_ms:
        _, begins_ms, made_ms = course[-1]
        course.append((begins_ms, begins_ms + length_ms, made_ms + length_ms / pace))
        begins_ms += length_ms
    return course


def _reached_ms(course: Sequence[tuple[float, float, float]], audio_ms: float) -> float:
    """Return when the answer had at most so much audio, for the last time."""
    return max((made_ms for _, ends_ms, made_ms in course if ends_ms <= audio_ms), default=0.0)
