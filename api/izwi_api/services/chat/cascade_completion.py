"""Responses of POST /v1/chat/completions from a cascade: a chat model and a speech model."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from izwi_api.services.chat.answer import AnswerDelta
from izwi_api.services.chat.cascade import SpokenAnswer
from izwi_api.services.chat.completion import Completion, usage_of


class CascadeCompletion:
    """The response to one request, complete or as chunks with the same id.

    Args:
        model_name: The chat model, by the name in the request.
        audio_id: Id of the audio; clients may send it instead of the answer's text.
        spoken: The answer.
        num_heard: Prompt positions of the transcription model, for `usage`.
    """

    def __init__(self, model_name: str, audio_id: str, spoken: SpokenAnswer, num_heard: int):
        self._text = Completion(model_name)
        self.audio_id, self._spoken, self._num_heard = audio_id, spoken, num_heard

    def full(self, audio: bytes, expires_at: int | None) -> dict[str, Any]:
        """Return the complete response.

        Args:
            audio: The audio file.
            expires_at: Expiry of the audio id; None if there is no audio.
        """
        answer = self._text.full([self._spoken.answer])
        message = answer["choices"][0]["message"]
        message["content"], message["audio"] = None, None
        if expires_at is not None:
            message["audio"] = {
                "id": self.audio_id,
                "expires_at": expires_at,
                "data": _base64(audio),
                "transcript": self._spoken.answer.content,
            }
        return answer | {"usage": self._usage()}

    def first_chunk(self) -> dict[str, Any]:
        """Return the first chunk, with the role."""
        return self._with_delta({"role": "assistant"})

    def delta_chunk(self, delta: AnswerDelta) -> dict[str, Any]:
        """Return a chunk with new reasoning, content and function calls."""
        plain = self._text.delta_chunk(0, delta)
        grown = plain["choices"][0]["delta"]
        if text := grown.pop("content", ""):
            grown["audio"] = {"id": self.audio_id, "transcript": text}
        return plain

    def audio_chunk(self, data: bytes) -> dict[str, Any]:
        """Return a chunk of the audio file."""
        return self._with_delta({"audio": {"id": self.audio_id, "data": _base64(data)}})

    def expiry_chunk(self, expires_at: int) -> dict[str, Any]:
        """Return the last chunk of audio, with the expiry of its id."""
        return self._with_delta({"audio": {"id": self.audio_id, "expires_at": expires_at}})

    def last_chunk(self) -> dict[str, Any]:
        """Return the last chunk, with the finish reason."""
        return self._text.last_chunk(0, self._spoken.answer)

    def usage_chunk(self) -> dict[str, Any]:
        """Return the usage chunk, which follows the last one on request."""
        return self._text.usage_chunk([self._spoken.answer]) | {"usage": self._usage()}

    def _with_delta(self, delta: Mapping[str, Any]) -> dict[str, Any]:
        piece = self._text.first_chunk(0)
        piece["choices"][0]["delta"] = delta
        return piece

    def _usage(self) -> dict[str, Any]:
        """Return the usage. Audio counts as positions that models processed; a frame is a token."""
        spoken = self._spoken
        read, text = spoken.answer.num_prompt_tokens, spoken.answer.num_tokens
        heard, frames = self._num_heard, spoken.num_frames
        details: Any = usage_of([spoken.answer])["completion_tokens_details"]
        return {
            "prompt_tokens": read + heard,
            "completion_tokens": text + frames,
            "total_tokens": read + heard + text + frames,
            "prompt_tokens_details": {"audio_tokens": heard, "text_tokens": read},
            "completion_tokens_details": details | {"audio_tokens": frames, "text_tokens": text},
        }


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
