"""Cut long audio in its pauses. Pure: samples in, ranges out.

A cut is placed in the last clear pause of a piece, wherever that is. Without one it is placed as by
qwen_asr 0.0.6, inference/utils.py `split_audio_into_chunks`: where the audio is quietest, near the
longest allowed piece. The reference looks nowhere else, so it cuts a sentence after silence in two.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from izwi.arrays import Float32, Samples
from izwi.audio.pauses import Float64, find_pauses, frame_levels_db, frame_samples

_ENERGY_SECONDS = 0.1  # the quietest stretch of this length is looked for
_MIN_PIECE_SECONDS = 0.5
# Shorter pauses occur within phrases too, so they are used only if there is no other.
_CLEAR_PAUSE_SECONDS = 0.5
# Silence left before and after a cut: transcribers take the end of a word for the middle of another
# with less than 0.2 s behind it.
_BEHIND_SECONDS, _AHEAD_SECONDS = 0.25, 0.2
# A longer pause becomes a piece of its own, which has no speech.
_LONG_PAUSE_SECONDS = 2.0
_BEHIND_LONG_SECONDS = 0.5
# Audio at the end of a piece that is expected to have a pause.
_REACH_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class CutRules:
    """How long the pieces are, in samples.

    Attributes:
        sample_rate: In Hz.
        limit: Audio up to this long stays whole.
        search: A cut without a clear pause is looked for this far on both sides of its place.
        overrun: That place is `limit`, as in the reference, so that a piece may be longer by
            `search`; otherwise it is `search` below it, so that no piece is longer than `limit`.
    """

    sample_rate: int
    limit: int
    search: int
    overrun: bool

    @property
    def centre(self) -> int:
        """Place of a cut without a clear pause."""
        return self.limit if self.overrun else self.limit - self.search

    @property
    def smallest(self) -> int:
        """Length of the smallest piece."""
        return min(self._samples(_MIN_PIECE_SECONDS), self.limit // 2)

    @property
    def enough(self) -> int:
        """Samples from which the first cut is the same whatever follows."""
        return self.centre + self.search + max(1, self.smallest)

    def first_cut(self, window: Float32, after: int = 0) -> int:
        """Return the length of the first piece.

        Args:
            window: (n,) the audio, its first `enough` samples or fewer; more than `limit`.
            after: The cut is not before this sample.
        """
        left = max(after, self.smallest)
        right = min(self.centre + self.search, len(window) - self.smallest)
        for pause in self._usable_pauses(frame_levels_db(window, self.sample_rate)):
            cut = self._cut_in_pause(window, pause, left, right)
            if cut is not None:
                return cut
        near = max(left, self.centre - self.search)
        right = max(near, right)
        return near + _quietest(window[near:right], self._samples(_ENERGY_SECONDS))

    def earliest_cut(self, levels_db: Float64) -> int:
        """Return a place that the first cut will hardly be before, in samples.

        Args:
            levels_db: Levels of the frames of the audio so far.
        """
        so_far = len(levels_db) * frame_samples(self.sample_rate)
        # a cut may be so far before speech, which differs from silence only when both are there
        ahead = self._samples(_AHEAD_SECONDS + _CLEAR_PAUSE_SECONDS)
        near = min(so_far - ahead, self.centre - self.search)
        pauses = self._usable_pauses(levels_db)
        if not pauses:
            return near
        start, stop = pauses[0]
        place = start + min(self._samples(_BEHIND_SECONDS), (stop - start) // 2)
        # a long piece has a pause near its end
        return min(near, max(place, self.limit - self._samples(_REACH_SECONDS)))

    def _usable_pauses(self, levels_db: Float64) -> list[tuple[int, int]]:
        """Return the pauses that a cut may be in, the best one first; [start, stop) in samples.

        The last clear one is the best, so that pieces are long. Where the reference's pieces
        may be kept, a short pause is no reason for another.
        """
        size = frame_samples(self.sample_rate)
        pauses = [(start * size, stop * size) for start, stop in reversed(find_pauses(levels_db))]
        clear = [each for each in pauses if self._is_clear(each)]
        return clear if self.overrun else clear + [each for each in pauses if each not in clear]

    def _is_clear(self, pause: tuple[int, int]) -> bool:
        return pause[1] - pause[0] >= self._samples(_CLEAR_PAUSE_SECONDS)

    def _cut_in_pause(
        self, window: Float32, pause: tuple[int, int], left: int, right: int
    ) -> int | None:
        """Return where to cut in a pause, within [left, right]; None if it is elsewhere."""
        start, stop = pause
        if start > 0 and stop - start >= self._samples(_LONG_PAUSE_SECONDS):
            first = last = start + self._samples(_BEHIND_LONG_SECONDS)
        elif self._is_clear(pause):
            first = start + self._samples(_BEHIND_SECONDS)
            last = stop - self._samples(_AHEAD_SECONDS)
        else:
            first = last = (start + stop) // 2
        if right < first or stop < left:
            return None
        last = max(left, min(last, right))
        # a voice that is much quieter than another is no pause: look for the quietest place
        first = max(first, left, last - self._samples(_CLEAR_PAUSE_SECONDS))
        return first + _quietest(window[first:last], self._samples(_ENERGY_SECONDS))

    def _samples(self, seconds: float) -> int:
        return int(seconds * self.sample_rate)


def cut_rules(
    sample_rate: int, *, limit_s: float, search_s: float, overrun: bool = False
) -> CutRules:
    """Return `CutRules` of lengths in seconds."""
    limit, search = int(limit_s * sample_rate), int(search_s * sample_rate)
    return CutRules(sample_rate, limit, search, overrun)


def split_at_silence(
    samples: Samples, sample_rate: int, *, limit_s: float, search_s: float, overrun: bool
) -> list[tuple[int, int]]:
    """Cut `samples` into pieces, which join up to the whole.

    The reference pads a last piece below half a second with zeros; here the last cut is placed
    as early as the search allows, to leave that much.

    Args:
        samples: One piece is read at a time.
        sample_rate: In Hz.
        limit_s: As in `CutRules`, in seconds.
        search_s: As in `CutRules`, in seconds.
        overrun: As in `CutRules`.

    Returns:
        Ranges [start, stop) of sample indices, in order.
    """
    rules = cut_rules(sample_rate, limit_s=limit_s, search_s=search_s, overrun=overrun)
    pieces, start = [], 0
    while len(samples) - start > rules.limit:
        stop = start + rules.first_cut(samples[start : start + rules.enough])
        pieces.append((start, stop))
        start = stop
    return [*pieces, (start, len(samples))]


def _quietest(samples: Float32, stretch: int) -> int:
    """Index of the smallest sample inside the quietest stretch."""
    loudness = np.abs(samples)
    if len(samples) <= stretch:
        return len(samples)
    sums = np.concatenate([[0.0], np.cumsum(loudness, dtype=np.float64)])
    quiet = int(np.argmin(sums[stretch:] - sums[:-stretch]))
    return quiet + int(np.argmin(loudness[quiet : quiet + stretch]))
