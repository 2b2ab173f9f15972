"""When each character of a text is said, from the times of its words."""

from __future__ import annotations

from collections.abc import Sequence

from izwi.model.alignment import AlignedWord


class CharacterTimes:
    """The characters of a text with their times, as the times of its words become known.

    A word's time is shared by its characters in equal parts. What stands between two words lasts
    from the end of one to the start of the next. A word that is spoken as another one, such as a
    number, has no place in the text; its time belongs to what is around it.
    """

    def __init__(self, text: str):
        self._text, self._folded = text, text.lower()
        self._place = 0  # characters that have a time
        self._time_s = 0.0
        self._ready: list[tuple[str, float, float]] = []

    def add(self, words: Sequence[AlignedWord]) -> None:
        """Add the next words."""
        for word in words:
            start = self._folded.find(word.word.lower(), self._place)
            if start < 0:
                continue
            self._share(start, word.start_s)
            self._share(start + len(word.word), word.end_s)

    def pop(self, *, is_last: bool = False) -> dict[str, object] | None:
        """Return the characters that have got a time since the last call; None if none has.

        Args:
            is_last: No word follows: the rest of the text ends with the last word.
        """
        if is_last:
            self._share(len(self._text), self._time_s)
        ready, self._ready = self._ready, []
        if not ready:
            return None
        return {
            "characters": [character for character, _, _ in ready],
            "character_start_times_seconds": [round(start_s, 3) for _, start_s, _ in ready],
            "character_end_times_seconds": [round(end_s, 3) for _, _, end_s in ready],
        }

    def _share(self, stop: int, end_s: float) -> None:
        """Share the time up to `end_s` among the characters up to `stop`."""
        start_s, end_s = self._time_s, max(self._time_s, end_s)
        characters = self._text[self._place : stop]
        if not characters and self._place:
            # nothing stands between two words, so the next one begins later
            self._time_s = end_s
            return
        step_s = (end_s - start_s) / max(1, len(characters))
        self._ready += [
            (character, start_s + index * step_s, start_s + (index + 1) * step_s)
            for index, character in enumerate(characters)
        ]
        self._place, self._time_s = stop, end_s
