"""Events with the transcript of the user's speech: stable words while it lasts, then all of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from izwi.errors import IzwiError
from izwi_api.realtime.protocol.items import Item

_KIND = "conversation.item.input_audio_transcription"


@dataclass(frozen=True, slots=True)
class SpeakerSegment:
    """What one speaker says in a turn.

    Attributes:
        start_s: Seconds since the turn's audio began.
        end_s: Where it ends.
        speaker: A name; "" if the engine failed to tell.
    """

    start_s: float
    end_s: float
    speaker: str
    text: str


class TranscriptEvents:
    """Sends the events of transcriptions.

    The deltas of an item form a prefix of its transcript. If a later update changes a word that was
    already sent, no more deltas are sent; `completed` has the whole transcript.
    """

    def __init__(self, emit: Callable[..., None]):
        self._emit = emit
        self._delivered: dict[str, str] = {}  # item id -> its deltas so far

    def send_new_words(self, item_id: str, text: str) -> None:
        """Send the new stable words of an item."""
        delivered = self._delivered.get(item_id, "")
        if len(text) > len(delivered) and text.startswith(delivered):
            self._delivered[item_id] = text
            delta = text[len(delivered) :]
            self._emit(f"{_KIND}.delta", item_id=item_id, content_index=0, delta=delta)

    async def follow(
        self, item: Item, transcript: asyncio.Future[str], is_needed: Callable[[], bool]
    ) -> str | None:
        """Store an item's transcript when it is known, and send its events if requested.

        Returns:
            The transcript; None if transcription failed.
        """
        try:
            text = await transcript
        except IzwiError as error:
            if is_needed():
                self.fail(item, error)
            return None
        item.content[0].text = text
        if is_needed():
            self.complete(item, text)
        return text

    def send_segments(self, item: Item, segments: Sequence[SpeakerSegment], start_s: float) -> None:
        """Send what each speaker says in an item.

        Args:
            item: The item.
            segments: What is said.
            start_s: Where the item's audio begins, in seconds of the session's audio.
        """
        for number, segment in enumerate(segments):
            self._emit(
                f"{_KIND}.segment",
                item_id=item.item_id,
                content_index=0,
                id=f"seg_{item.item_id.removeprefix('item_')}_{number}",
                speaker=segment.speaker,
                start=round(start_s + segment.start_s, 3),
                end=round(start_s + segment.end_s, 3),
                text=segment.text,
            )

    def complete(self, item: Item, text: str) -> None:
        """Send the complete transcript of an item."""
        self.send_new_words(item.item_id, text)
        self._delivered.pop(item.item_id, None)
        usage = {"type": "duration", "seconds": round(item.content[0].audio_ms / 1000, 3)}
        place = {"item_id": item.item_id, "content_index": 0}
        self._emit(f"{_KIND}.completed", **place, transcript=text, usage=usage)

    def fail(self, item: Item, error: IzwiError) -> None:
        """Send the reason why an item has no transcript."""
        self._delivered.pop(item.item_id, None)
        reported = {"type": "server_error", "code": error.code, "message": str(error)}
        self._emit(f"{_KIND}.failed", item_id=item.item_id, content_index=0, error=reported)
