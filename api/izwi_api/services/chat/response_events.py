"""A response in progress: its items, and the events that report them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

from izwi.request.request import Reason
from izwi_api.schemas.responses import ResponseBody
from izwi_api.services.chat.answer import AnswerDelta, CallDelta, ChatAnswer

Event = dict[str, Any]


class ResponseWriter:
    """Converts deltas of an answer to events, and accumulates the response."""

    def __init__(self, body: ResponseBody, response_id: str):
        """Create the response to a request."""
        self.body, self._number = body, 0
        self._open: dict[str, Any] | None = None  # the item in progress
        text = body.text.model_dump(by_alias=True, exclude_none=True) if body.text else {}
        self.response: dict[str, Any] = {
            "id": response_id,
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "model": body.model,
            "output": [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "store": body.store is not False,
            "temperature": body.temperature,
            "text": {"format": {"type": "text"}} | text,
            "tool_choice": body.model_dump(include={"tool_choice"})["tool_choice"] or "auto",
            "tools": [tool.model_dump() for tool in body.tools or ()],
            "top_p": body.top_p,
            "truncation": body.truncation or "disabled",
            "usage": None,
            "metadata": body.metadata or {},
        }

    def start_response(self) -> Iterator[Event]:
        """Return the events for the start of the response."""
        yield self._event("response.created", response=dict(self.response))
        yield self._event("response.in_progress", response=dict(self.response))

    def grow(self, delta: AnswerDelta) -> Iterator[Event]:
        """Return the events for a delta of the answer."""
        if delta.reasoning:
            yield from self._grow_text("reasoning", delta.reasoning)
        if delta.content:
            yield from self._grow_text("message", delta.content)
        for call in delta.calls:
            yield from self._grow_call(call)

    def end(self, answer: ChatAnswer) -> Iterator[Event]:
        """Return the events for the end of the answer, complete or truncated."""
        yield from self._close("completed" if answer.reason is Reason.STOP else "incomplete")
        cut = answer.reason is Reason.LENGTH
        status = "incomplete" if cut else "completed"
        self.response["status"] = status
        if cut:
            self.response["incomplete_details"] = {"reason": "max_output_tokens"}
        read, written = answer.num_prompt_tokens, answer.num_tokens
        self.response["usage"] = {
            "input_tokens": read,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": written,
            "output_tokens_details": {"reasoning_tokens": answer.num_reasoning_tokens},
            "total_tokens": read + written,
        }
        yield self._event(f"response.{status}", response=self.response)

    def fail(self, message: str, code: str = "server_error") -> Event:
        """Return the event for a failure; its code is one of OpenAI's."""
        if self._open is not None:
            self._open["status"] = "incomplete"
        self.response["status"] = "failed"
        self.response["error"] = {"code": code, "message": message}
        return self._event("response.failed", response=self.response)

    def _event(self, kind: str, **fields: Any) -> Event:
        number, self._number = self._number, self._number + 1
        return {"type": kind, "sequence_number": number, **fields}

    def _at(self) -> dict[str, Any]:
        assert self._open is not None
        return {"item_id": self._open["id"], "output_index": len(self.response["output"]) - 1}

    def _begin_item(self, item: dict[str, Any]) -> Iterator[Event]:
        yield from self._close("completed")
        self._open = item
        self.response["output"].append(item)
        place = len(self.response["output"]) - 1
        yield self._event("response.output_item.added", output_index=place, item=dict(item))

    def _grow_text(self, kind: str, text: str) -> Iterator[Event]:
        if self._open is None or self._open["type"] != kind:
            item: dict[str, Any] = {"id": f"{kind[:3]}_{uuid4().hex}", "type": kind}
            if kind == "message":
                item |= {"status": "in_progress", "role": "assistant"}
            else:
                item["summary"] = []
            yield from self._begin_item(item | {"content": []})
            assert self._open is not None
            self._open["content"] = [self._part(kind)]
            part = dict(self._open["content"][0])
            yield self._event(
                "response.content_part.added", **self._at(), content_index=0, part=part
            )
        self._open["content"][0]["text"] += text
        grown = {"delta": text, "content_index": 0}
        if kind == "message":
            yield self._event("response.output_text.delta", **self._at(), **grown, logprobs=[])
        else:
            yield self._event("response.reasoning_text.delta", **self._at(), **grown)

    @staticmethod
    def _part(kind: str) -> dict[str, Any]:
        if kind == "message":
            return {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        return {"type": "reasoning_text", "text": ""}

    def _grow_call(self, call: CallDelta) -> Iterator[Event]:
        if call.call_id:
            item = {
                "id": f"fc_{uuid4().hex}",
                "type": "function_call",
                "status": "in_progress",
                "call_id": call.call_id,
                "name": call.name,
                "arguments": "",
            }
            yield from self._begin_item(item)
        assert self._open is not None
        if call.arguments:
            self._open["arguments"] += call.arguments
            yield self._event(
                "response.function_call_arguments.delta", **self._at(), delta=call.arguments
            )

    def _close(self, status: str) -> Iterator[Event]:
        item = self._open
        if item is None:
            return
        at = self._at()
        if item["type"] == "function_call":
            done = {"name": item["name"], "arguments": item["arguments"]}
            yield self._event("response.function_call_arguments.done", **at, **done)
        else:
            part = item["content"][0]
            kind = "output_text" if item["type"] == "message" else "reasoning_text"
            more: dict[str, Any] = {"logprobs": []} if item["type"] == "message" else {}
            done = {"content_index": 0, "text": part["text"], **more}
            yield self._event(f"response.{kind}.done", **at, **done)
            yield self._event("response.content_part.done", **at, content_index=0, part=part)
        if item["type"] != "reasoning":
            item["status"] = status
        yield self._event("response.output_item.done", output_index=at["output_index"], item=item)
        self._open = None
