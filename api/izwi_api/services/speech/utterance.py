"""A text that one task writes and another synthesises, piece by piece. Without HTTP."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from izwi.errors import TooLarge
from izwi.inputs.speech import SpeechInput
from izwi_api.schemas.speech_stream import SessionConfig, has_word, unit_end
from izwi_api.services.transcription.align import Aligner

# Characters of the text that are kept, to be shown with the audio.
_SHOWN_CHARS = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Setting:
    """How utterances are synthesised: the configuration with its model and voice resolved.

    Attributes:
        timing: Aligner and language for word times; None if not requested.
        ignored: Fields of the configuration that the model cannot follow.
    """

    config: SessionConfig
    model_name: str
    ask: SpeechInput
    timing: tuple[Aligner, str | None] | None = None
    ignored: tuple[str, ...] = ()


class Utterance:
    """Text up to its `input.done`, and counts of its synthesis.

    Attributes:
        index: Number of utterances before it.
        shown: The first characters that were taken.
        num_chars: Characters written.
        num_pending: Characters written but not yet taken.
        num_files: Audio files begun.
        usage: Prompt positions computed and frames generated.
        is_closed: Its text is complete.
        is_cancelled: The caller cancelled it.
    """

    def __init__(self, index: int, setting: Setting, room: asyncio.Event):
        self.index, self.setting = index, setting
        self.shown, self.num_chars, self.num_pending, self.num_files = "", 0, 0, 0
        self.usage = [0, 0]
        self.is_closed = self.is_cancelled = False
        self._texts: deque[str] = deque()
        self._changed, self._room = asyncio.Event(), room
        self._saying: asyncio.Task[None] | None = None

    def write(self, text: str) -> None:
        """Add text."""
        self._texts.append(text)
        self.num_chars += len(text)
        self.num_pending += len(text)
        self._changed.set()

    def close(self) -> None:
        """End the text."""
        self.is_closed = True
        self._changed.set()

    async def next_piece(self) -> str | None:
        """Wait for the next piece of the text; None at its end. Only one task may call it."""
        while not self._texts:
            if self.is_closed:
                return None
            self._changed.clear()
            await self._changed.wait()
        text = self._texts.popleft()
        self.num_pending -= len(text)
        self._room.set()
        if len(self.shown) < _SHOWN_CHARS:
            self.shown = (self.shown + text)[:_SHOWN_CHARS]
        return text

    async def beginning(self, is_undecided: Callable[[str], bool]) -> str:
        """Wait while more text is needed to know what it is; return the text, which stays."""
        while True:
            text = "".join(self._texts)
            if self.is_closed or not is_undecided(text):
                return text
            self._changed.clear()
            await self._changed.wait()

    async def whole(self, max_chars: int) -> str:
        """Wait for the end of the text, and return all of it.

        Raises:
            TooLarge: It is longer than `max_chars`.
        """
        text = ""
        while (piece := await self.next_piece()) is not None:
            text += piece
            if len(text) > max_chars:
                raise TooLarge(f"SSML has at most {max_chars} characters", param="text")
        return text

    async def units(self, max_chars: int) -> AsyncGenerator[str]:
        """Yield sentences or clauses as they become complete."""
        granularity, pending = self.setting.config.split_granularity, ""
        while (text := await self.next_piece()) is not None:
            pending += text
            while end := unit_end(pending, granularity, max_chars):
                unit, pending = pending[:end].strip(), pending[end:]
                if has_word(unit):
                    yield unit
        if has_word(pending):
            yield pending.strip()

    async def until_said(self, saying: asyncio.Task[None]) -> None:
        """Wait for the task that synthesises the text; cancelling this wait cancels the task."""
        self._saying = saying
        try:
            await asyncio.wait({saying})
        finally:
            saying.cancel()
            await asyncio.gather(saying, return_exceptions=True)
        if not self.is_cancelled:
            saying.result()

    def cancel(self) -> None:
        """Stop the synthesis."""
        self.is_closed = self.is_cancelled = True
        self._texts.clear()
        self.num_pending = 0
        self._room.set()
        if self._saying is not None:
            self._saying.cancel()
