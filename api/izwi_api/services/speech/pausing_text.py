"""A text written to a speech model, with its pauses and pronunciations. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from izwi.errors import InvalidRequest
from izwi.request.input_stream import TextPart, TextStream
from izwi_api.services.speech.spoken_text import Pause, Pronunciations, SpokenText


class PausingText:
    """Turns text into parts of pieces, and the pauses between them.

    A pause ends a piece. The text between two pauses is a text of its own for the model.

    Args:
        open_stream: Opens the model's text stream for one such text, with a name for its requests.
        name: The name of the first one.
        pronunciations: Replacements of words.

    Raises:
        InvalidRequest: The model cannot do what was requested.
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
        self._num_pieces = self._first_piece = 0  # of all texts; of the current one
        self._unsayable: InvalidRequest | None = None

    def write(self, text: str) -> Sequence[TextPart | Pause]:
        """Add text; return what is now certain.

        Raises:
            InvalidRequest: A pause is too long.
        """
        return self._parts(self._spoken.write(text))

    def close(self) -> Sequence[TextPart | Pause]:
        """Return the rest; no text follows.

        Raises:
            InvalidRequest: Nothing in the whole text can be spoken.
        """
        made = [*self._parts(self._spoken.close()), *self._end()]
        if self._num_pieces == 0:
            raise self._unsayable or InvalidRequest(
                "the text contains nothing that can be spoken", param="input"
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
        """End the current text; skip it if nothing in it can be spoken."""
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
