"""A text that is written to a speech model, with its pauses and pronunciations. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from izwi.errors import InvalidRequest
from izwi.input_stream import TextPart, TextStream
from izwi_api.services.spoken_text import Pause, Pronunciations, SpokenText


class PausingText:
    """What is written, as parts of pieces and the pauses between them.

    A pause ends a piece. The model sees what stands between two pauses as a text of its own.

    Args:
        open_stream: Opens the model's stream of one such text, by the name of its requests.
        name: Of the first of them.
        pronunciations: Are put into the text.

    Raises:
        InvalidRequest: The model cannot do what is asked.
    """

    def __init__(
        self,
        open_stream: Callable[[str], TextStream],
        name: str,
        pronunciations: Pronunciations,
    ):
        self._open_stream, self._name = open_stream, name
        self._spoken = SpokenText(pronunciations)
        self._stream: TextStream | None = open_stream(name)
        self._num_texts = 1
        self._num_pieces = self._first_piece = 0  # of all texts; of the one that is written
        self._unsayable: InvalidRequest | None = None

    def write(self, text: str) -> Sequence[TextPart | Pause]:
        """Take more text and return what is settled by it.

        Raises:
            InvalidRequest: A pause is too long.
        """
        return self._parts(self._spoken.write(text))

    def close(self) -> Sequence[TextPart | Pause]:
        """Return the rest, as no text follows.

        Raises:
            InvalidRequest: There was nothing to say in all of the text.
        """
        made = [*self._parts(self._spoken.close()), *self._end()]
        if self._num_pieces == 0:
            raise self._unsayable or InvalidRequest(
                "there is no text that can be said", param="input"
            )
        return made

    def _parts(self, spoken: Sequence[str | Pause]) -> list[TextPart | Pause]:
        made: list[TextPart | Pause] = []
        for part in spoken:
            if isinstance(part, Pause):
                made += [*self._end(), part]
                continue
            if self._stream is None:
                self._stream = self._open_stream(f"{self._name}.{self._num_texts}")
                self._num_texts += 1
            made += self._numbered(self._stream.write(part))
        return made

    def _end(self) -> list[TextPart]:
        """End the text that is written; one that cannot be said is left out."""
        stream, self._stream = self._stream, None
        if stream is None:
            return []
        try:
            made = self._numbered(stream.close())
        except InvalidRequest as error:
            self._unsayable = self._unsayable or error
            return []
        self._first_piece = self._num_pieces
        return made

    def _numbered(self, parts: Sequence[TextPart]) -> list[TextPart]:
        made = [replace(part, piece=self._first_piece + part.piece) for part in parts]
        self._num_pieces = max([self._num_pieces, *(part.piece + 1 for part in made)])
        return made
