"""Spoken responses of POST /v1/chat/completions, complete or as chunks."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from izwi.request.request import Reason
from izwi_api.services.chat.answer import AnswerDelta
from izwi_api.services.chat.speech_to_speech import ConversationAnswer


class SpokenCompletion:
    """The response to one request, complete or as chunks with the same id.

    Args:
        model_name: The model, by the name in the request.
        audio_id: Id of the audio; clients may send it instead of the audio.
        answer: The answer.
        speaks: Whether the answer has audio; its text is then the transcript.
    """

    def __init__(self, model_name: str, audio_id: str, answer: ConversationAnswer, *, speaks: bool):
        self._head = {"id": f"chatcmpl-{uuid4().hex}", "created": int(time.time())}
        self._model, self._speaks = model_name, speaks
        self.audio_id, self._answer = audio_id, answer

    def full(self, audio: bytes, expires_at: int | None) -> dict[str, Any]:
        """Return the complete response.

        Args:
            audio: The audio file.
            expires_at: Expiry of the audio id; None if there is no audio.
        """
        answer = self._answer
        message: dict[str, Any] = {"role": "assistant", "refusal": None}
        if expires_at is None:
            message["content"] = answer.text
        else:
            message |= {"content": None, "audio": {"id": self.audio_id, "expires_at": expires_at}}
            message["audio"] |= {"data": _base64(audio), "transcript": answer.text}
        choice = {"index": 0, "message": message, "logprobs": None}
        choice["finish_reason"] = _finish_reason(answer)
        return self._object("chat.completion", [choice]) | {"usage": spoken_usage(answer)}

    def first_chunk(self) -> dict[str, Any]:
        """Return the first chunk, with the role and the audio id."""
        delta: dict[str, Any] = {"role": "assistant"}
        delta |= {"audio": {"id": self.audio_id}} if self._speaks else {"content": ""}
        return self._piece(delta)

    def delta_chunk(self, delta: AnswerDelta) -> dict[str, Any]:
        """Return a chunk of text."""
        if not self._speaks:
            return self._piece({"content": delta.content})
        return self._piece({"audio": {"id": self.audio_id, "transcript": delta.content}})

    def audio_chunk(self, data: bytes) -> dict[str, Any]:
        """Return a chunk of the audio file."""
        return self._piece({"audio": {"id": self.audio_id, "data": _base64(data)}})

    def expiry_chunk(self, expires_at: int) -> dict[str, Any]:
        """Return the last chunk of audio, with the expiry of its id."""
        return self._piece({"audio": {"id": self.audio_id, "expires_at": expires_at}})

    def last_chunk(self) -> dict[str, Any]:
        """Return the last chunk, with the finish reason."""
        return self._piece({}, _finish_reason(self._answer))

    def usage_chunk(self) -> dict[str, Any]:
        """Return the usage chunk, which follows the last one on request."""
        return self._object("chat.completion.chunk", []) | {"usage": spoken_usage(self._answer)}

    def _piece(self, delta: Mapping[str, Any], reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        return self._object("chat.completion.chunk", [choice])

    def _object(self, kind: str, choices: list[Any]) -> dict[str, Any]:
        return {**self._head, "object": kind, "model": self._model, "choices": choices}


def spoken_usage(answer: ConversationAnswer) -> dict[str, object]:
    """Return the usage in tokens; an audio frame counts as one."""
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
