"""Errors of single events. The client gets an `error` event and the session continues."""

from __future__ import annotations

import re

import msgspec

from izwi.errors import InvalidRequest

_UNKNOWN = "Object contains unknown field"
_FIELD = re.compile(r"(?:missing required|unknown) field `([^`]*)`")


def describe(error: msgspec.ValidationError, root: str = "") -> tuple[str, str | None, str]:
    """Return an error message for a value, the path of its key below `root`, and OpenAI's code."""
    message, _, place = str(error).partition(" - at `$")
    path = root + place.rstrip("`")
    if found := _FIELD.search(message):
        path += f".{found[1][:64]}"
    is_unknown = message.startswith(_UNKNOWN)
    code = "unknown_parameter" if is_unknown else "invalid_value"
    return message, path.lstrip(".") or None, code


class EventError(InvalidRequest):
    """A client's request cannot be fulfilled now. `code` is OpenAI's code if there is one."""

    def __init__(self, message: str, code: str, *, param: str | None = None):
        super().__init__(message, param=param)
        self.code = code


# Refusals of the turn state machine, by code.
REFUSALS = {
    "input_audio_buffer_commit_empty": "the input buffer holds less than 100 ms of audio",
    "conversation_already_has_active_response": "the conversation has a response in progress",
    "response_cancel_not_active": "Cancellation failed: no response is in progress",
}
