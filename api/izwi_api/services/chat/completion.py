"""Responses of POST /v1/chat/completions, complete or as chunks."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import uuid4

from izwi.request.request import Reason
from izwi_api.services.chat.answer import AnswerDelta, ChatAnswer, TokenLogprob


class Completion:
    """The response to one request, complete or as chunks with the same id."""

    def __init__(self, model_name: str):
        """Create a response of a model, by the name in the request."""
        self._head = {"id": f"chatcmpl-{uuid4().hex}", "created": int(time.time())}
        self._model = model_name

    def full(self, answers: Sequence[ChatAnswer]) -> dict[str, Any]:
        """Return the complete response. `reasoning_content` is left out if there is none."""
        choices = [_choice(place, answer) for place, answer in enumerate(answers)]
        return self._object("chat.completion", choices) | {"usage": usage_of(answers)}

    def first_chunk(self, place: int) -> dict[str, Any]:
        """Return the first chunk of a choice, with the role."""
        return self._piece(place, {"role": "assistant", "content": ""})

    def delta_chunk(self, place: int, delta: AnswerDelta) -> dict[str, Any]:
        """Return a chunk with new reasoning, content and function calls."""
        fields = {"reasoning_content": delta.reasoning, "content": delta.content}
        grown: dict[str, Any] = {name: text for name, text in fields.items() if text}
        if delta.calls:
            grown["tool_calls"] = [
                {"index": call.place, "function": {"arguments": call.arguments}}
                if not call.call_id
                else {
                    "index": call.place,
                    "id": call.call_id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in delta.calls
            ]
        return self._piece(place, grown, logprobs=_logprobs_json(delta.logprobs))

    def last_chunk(self, place: int, answer: ChatAnswer) -> dict[str, Any]:
        """Return the last chunk, with the finish reason."""
        return self._piece(place, {}, finish_reason(answer))

    def usage_chunk(self, answers: Sequence[ChatAnswer]) -> dict[str, Any]:
        """Return the usage chunk, which follows the last one on request."""
        return self._object("chat.completion.chunk", []) | {"usage": usage_of(answers)}

    def _piece(
        self,
        place: int,
        delta: Mapping[str, Any],
        reason: str | None = None,
        logprobs: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        choice = {"index": place, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return self._object("chat.completion.chunk", [choice])

    def _object(self, kind: str, choices: list[Any]) -> dict[str, Any]:
        return {**self._head, "object": kind, "model": self._model, "choices": choices}


def usage_of(answers: Sequence[ChatAnswer]) -> dict[str, object]:
    """Return the usage in tokens; the prompt counts once for all choices."""
    read = answers[0].num_prompt_tokens
    written = sum(answer.num_tokens for answer in answers)
    thought = sum(answer.num_reasoning_tokens for answer in answers)
    return {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
        "completion_tokens_details": {"reasoning_tokens": thought},
    }


def finish_reason(answer: ChatAnswer) -> str:
    """Return the finish reason; `tool_calls` if a call is complete."""
    if answer.reason is Reason.LENGTH:
        return "length"
    return "tool_calls" if answer.num_calls else "stop"


def _choice(place: int, answer: ChatAnswer) -> dict[str, Any]:
    content = answer.content or (None if answer.calls else "")
    message: dict[str, object] = {"role": "assistant", "content": content, "refusal": None}
    if answer.num_reasoning_tokens:
        message["reasoning_content"] = answer.reasoning
    if answer.calls:
        message["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in answer.calls
        ]
    return {
        "index": place,
        "message": message,
        "logprobs": _logprobs_json(answer.logprobs),
        "finish_reason": finish_reason(answer),
    }


def _logprobs_json(tokens: Iterable[TokenLogprob]) -> dict[str, Any] | None:
    content = [
        _token_json(token) | {"top_logprobs": [_token_json(other) for other in token.top]}
        for token in tokens
    ]
    return {"content": content, "refusal": None} if content else None


def _token_json(token: TokenLogprob) -> dict[str, Any]:
    spelled = token.spelled
    return {
        "token": spelled.decode(errors="replace"),
        "logprob": max(token.logprob, -9999.0),  # JSON has no infinity
        "bytes": list(spelled),
    }
