"""Speak a text that is still being written: requests for its pieces, and ids to append to them.

    text ─▶ (plain English) ─▶ pieces ─▶ settled ids ─▶ requests, and ids to append

Requests and ids depend only on the text, not on how it arrives: its pieces are those of
`Qwen3TTSFrontend.split_text`, and their joined ids those of `prepare_speech`.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from izwi.errors import InvalidRequest
from izwi.inputs.speech import SpeechInput, TextMode
from izwi.request.input_stream import TextPart
from izwi.request.request import Request
from izwi_models.qwen3_tts.pieces import Cutter, Part, SpokenStream
from izwi_models.qwen3_tts.prepare import Checkpoint, OpenTurn, condition, lay_out


class TextStream:
    """The pieces of one speech request while its text is written.

    With `TextMode.FULL` a piece begins when its text is complete; otherwise as soon as it has
    enough ids for its prompt: one, or enough to cover the clip that it continues (`first_ids`).
    """

    def __init__(self, checkpoint: Checkpoint, request_id: str, model: str, ask: SpeechInput):
        """Check the request, except for its text.

        Args:
            checkpoint: The checkpoint.
            request_id: The request of piece n gets the id `request_id`-n.
            model: Name under which the checkpoint is served.
            ask: The request; its text is ignored.

        Raises:
            InvalidRequest: See `prepare.condition`.
        """
        mode = ask.text_mode or TextMode.STREAMING
        self._checkpoint = checkpoint
        self._ask = replace(ask, text="", text_mode=mode)
        self._conditioning = condition(checkpoint, self._ask)
        self._name, self._model = request_id, model
        self._spoken = SpokenStream() if checkpoint.config.plain_english else None
        self._cutter = Cutter(checkpoint.config.max_text_characters)
        # plain English with a length limit arrives word by word, separated by one space
        self._word_ends = checkpoint.config.plain_english and self._cutter.limit is not None
        self._half = ""  # a first surrogate, because clients may cut text between UTF-16 units
        self._piece = 0
        self._turn: OpenTurn | None = None
        self._begun = False  # the request of the current piece was returned
        self._first: list[int] = []  # ids of the piece until then
        self._said: list[str] = []

    def write(self, text: str) -> list[TextPart]:
        """Add text; return the requests and ids that are now settled.

        Raises:
            TooLarge: The clip leaves no room for speech.
        """
        text, self._half = _whole_characters(self._half + text)
        parts = self._spoken.write(text) if self._spoken else [Part(text)]
        return self._pieces(parts)

    def close(self) -> list[TextPart]:
        """Return the rest at the end of the text.

        Raises:
            InvalidRequest: The whole text contains nothing that can be spoken.
        """
        parts = self._spoken.close() if self._spoken else []
        made = self._pieces([*parts, Part("", ends=True)])
        if self._piece == 0:
            raise InvalidRequest("the text contains nothing that can be spoken", param="input")
        return made

    def _pieces(self, sentences: Iterable[Part]) -> list[TextPart]:
        """Cut sentences, or a whole text, into pieces, and these into ids."""
        made: list[TextPart] = []
        for sentence in sentences:
            cut = self._cutter.write(sentence.text)
            if sentence.ends:
                cut += self._cutter.close()
            for part in cut:
                self._add(made, part)
        return made

    def _add(self, made: list[TextPart], part: Part) -> None:
        turn = self._turn = self._turn or self._checkpoint.text.open_turn()
        ids = turn.write(part.text, word_ends=self._word_ends)
        if part.ends:
            ids += turn.close()
        name, request = f"{self._name}-{self._piece}", None
        if not self._begun:
            self._first += ids
            self._said.append(part.text)
            request, ids = self._start_request(name, turn, part.ends)
        if self._begun and (request or ids or part.ends):
            if made and made[-1].piece == self._piece:
                before = made.pop()
                request, ids = before.request, [*before.ids, *ids]
            is_whole = request is not None and not request.open_input
            size = sum(map(len, self._said)) if is_whole else 0
            made.append(TextPart(self._piece, name, request, tuple(ids), part.ends, size))
        if part.ends:
            self._piece += 1
            self._turn, self._begun, self._first, self._said = None, False, [], []

    def _start_request(
        self, name: str, turn: OpenTurn, complete: bool
    ) -> tuple[Request | None, list[int]]:
        """Return the request of the current piece, if it can begin, and the ids to append."""
        enough = self._conditioning.first_ids
        is_open = self._ask.text_mode is TextMode.STREAMING and len(self._first) >= enough
        if not (is_open or complete):
            return None, []
        self._begun = True
        text = self._first[:enough] if is_open else self._first
        ids = [*turn.role, *text]
        if is_open:  # so that it can be prepared again
            ask = replace(self._ask, turn_ids=tuple(ids))
        else:  # the text is complete, so the request equals one that is not streamed
            ask = replace(self._ask, text="".join(self._said))
        request = lay_out(self._checkpoint, self._conditioning, name, self._model, ask, ids)
        return request, self._first[len(text) :]


def _whole_characters(text: str) -> tuple[str, str]:
    """Join surrogate pairs and replace single surrogates; return one at the end separately."""
    half = text[-1:] if "\ud800" <= text[-1:] < "\udc00" else ""
    units = text[: len(text) - len(half)].encode("utf-16-le", "surrogatepass")
    return units.decode("utf-16-le", "replace"), half
