"""The answers of POST /v1/chat/completions that are spoken, whole or in pieces."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from izwi.chat import AnswerText
from izwi.request import Reason
from izwi_api.services.speech_to_speech import ConversationAnswer


class SpokenCompletion:
    """The answer to one body, whole or in pieces: they share an id.

    Args:
        model_name: The model, by the name that the caller gave.
        audio_id: Of the sound; a client may send it back instead of the sound.
        answer: The answer.
        speaks: The answer has sound, and its text is the transcript of that.
    """

    def __init__(self, model_name: str, audio_id: str, answer: ConversationAnswer, *, speaks: bool):
        self._head = {"id": f"chatcmpl-{uuid4().hex}", "created": int(time.time())}
        self._model, self._speaks = model_name, speaks
        self.audio_id, self._answer = audio_id, answer

    def whole(self, sound: bytes, expires_at: int | None) -> dict[str, Any]:
        """Return an answer that is complete.

        Args:
            sound: The file.
            expires_at: Until when its id can be sent back; None: the answer has no sound.
        """
        answer = self._answer
        message: dict[str, Any] = {"role": "assistant", "refusal": None}
        if expires_at is None:
            message["content"] = answer.text
        else:
            message |= {"content": None, "audio": {"id": self.audio_id, "expires_at": expires_at}}
            message["audio"] |= {"data": _base64(sound), "transcript": answer.text}
        choice = {"index": 0, "message": message, "logprobs": None}
        choice["finish_reason"] = _finish_reason(answer)
        return self._object("chat.completion", [choice]) | {"usage": spoken_usage(answer)}

    def opening(self) -> dict[str, Any]:
        """Return the first piece: who speaks, and the id of the sound to come."""
        delta: dict[str, Any] = {"role": "assistant"}
        delta |= {"audio": {"id": self.audio_id}} if self._speaks else {"content": ""}
        return self._piece(delta)

    def piece(self, delta: AnswerText) -> dict[str, Any]:
        """Return a piece of text."""
        if not self._speaks:
            return self._piece({"content": delta.content})
        return self._piece({"audio": {"id": self.audio_id, "transcript": delta.content}})

    def sound(self, data: bytes) -> dict[str, Any]:
        """Return a piece of the file of sound."""
        return self._piece({"audio": {"id": self.audio_id, "data": _base64(data)}})

    def expiry(self, expires_at: int) -> dict[str, Any]:
        """Return the last piece of sound: until when its id can be sent back."""
        return self._piece({"audio": {"id": self.audio_id, "expires_at": expires_at}})

    def closing(self) -> dict[str, Any]:
        """Return the last piece: why it ended."""
        return self._piece({}, _finish_reason(self._answer))

    def bill(self) -> dict[str, Any]:
        """Return what comes after the last piece, if it is asked for: the usage."""
        return self._object("chat.completion.chunk", []) | {"usage": spoken_usage(self._answer)}

    def _piece(self, delta: Mapping[str, Any], reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return self._object("chat.completion.chunk", [choice])

    def _object(self, kind: str, choices: list[Any]) -> dict[str, Any]:
        return {**self._head, "object": kind, "model": self._model, "choices": choices}


def spoken_usage(answer: ConversationAnswer) -> dict[str, object]:
    """Return the bill in tokens: a frame of sound counts as one."""
    read, text, frames = answer.num_prompt_positions, answer.num_tokens, answer.num_frames
    return {
        "prompt_tokens": read,
        "completion_tokens": text + frames,
        "total_tokens": read + text + frames,
        "completion_tokens_details": {"audio_tokens": frames, "text_tokens": text},
    }


def _finish_reason(answer: ConversationAnswer) -> str:
    return "length" if answer.reason is Reason.LENGTH else "stop"


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
