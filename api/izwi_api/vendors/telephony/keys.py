"""Keys that a caller presses: the events of a session that they stand for.

Keys that follow each other are one message of the user. It is complete after `#`, or after 2 s of
the call's audio without another key; what is being said is then cut off, as by speech.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

_KEYS = frozenset("0123456789*#ABCD")
_LAST = "#"
_PAUSE_S = 2.0
# Longer than any number that a caller is asked for; more begin another message.
_MOST = 64


class PressedKeys:
    """The keys of one call."""

    def __init__(self) -> None:
        self._keys = ""
        self._silent_s = 0.0

    def press(self, key: str) -> Sequence[str]:
        """Add a key; return client events if the message is complete. Others are ignored."""
        if key not in _KEYS:
            return ()
        self._keys += key
        self._silent_s = 0.0
        return self._complete() if key == _LAST or len(self._keys) == _MOST else ()

    def wait(self, seconds: float) -> Sequence[str]:
        """Let time pass; return client events if the message is complete."""
        if not self._keys:
            return ()
        self._silent_s += seconds
        return self._complete() if self._silent_s >= _PAUSE_S else ()

    def _complete(self) -> Sequence[str]:
        keys, self._keys = self._keys, ""
        content = [{"type": "input_text", "text": f"(Keys pressed on the phone: {keys})"}]
        item = {"type": "message", "role": "user", "content": content}
        events: list[dict[str, object]] = [
            {"type": "output_audio_buffer.clear"},
            {"type": "conversation.item.create", "item": item},
            {"type": "response.create"},
        ]
        return [json.dumps(event) for event in events]
