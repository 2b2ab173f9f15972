"""Answer a conversation: submit it, decode its tokens, stop at the caller's stop strings.

Knows no HTTP: the web and the command line both chat through here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from uuid import uuid4

from izwi.chat import AnswerReader, AnswerText, ChatInput
from izwi.request import Reason, Request
from izwi_api.services.context import Engine, Registry, Stream, chunks_of


class StopText:
    """Ends a text before the string that is complete first among some, however it is cut.

    Attributes:
        found: The text has ended.
    """

    def __init__(self, stops: Sequence[str]):
        """Look for these, none of which is empty."""
        self.found = False
        self._stops = tuple(stops)
        self._buffered = ""  # may be the beginning of one

    def write(self, text: str) -> str:
        """Take more text, and return what certainly comes before the end."""
        text = self._buffered + text
        places = [(text.find(stop), stop) for stop in self._stops]
        complete = [(start + len(stop), start) for start, stop in places if start >= 0]
        if complete:
            self.found, self._buffered = True, ""
            return text[: min(complete)[1]]
        size = self._num_begun(text)
        self._buffered = text[len(text) - size :]
        return text[: len(text) - size]

    def close(self) -> str:
        """Return the rest, as no text follows."""
        rest, self._buffered = self._buffered, ""
        return rest

    def _num_begun(self, text: str) -> int:
        """Characters at the end of a text that one of the strings begins with."""
        most = min(len(text), max(map(len, self._stops), default=1) - 1)
        return next((n for n in range(most, 0, -1) if self._begins(text[-n:])), 0)

    def _begins(self, end: str) -> bool:
        return any(stop.startswith(end) for stop in self._stops)


class Answer:
    """The next turn of a conversation while it is written. Call `abort` to stop early.

    Attributes:
        request_id: Of its request of the engine.
        num_prompt_tokens: What the engine read, for the bill.
        num_tokens: What it has written, thoughts included.
        reasoning: What was thought so far.
        content: What was said so far.
        reason: Why it ended: `stop` or `length`; None before.
    """

    def __init__(
        self, request: Request, stream: Stream, reader: AnswerReader, stops: Sequence[str]
    ):
        self.request_id = request.request_id
        self.num_prompt_tokens = request.prompt.num_positions
        self.num_tokens = 0
        self.reasoning = self.content = ""
        self.reason: Reason | None = None
        self._stream, self._reader, self._stops = stream, reader, StopText(stops)

    @property
    def num_reasoning_tokens(self) -> int:
        """Tokens of `num_tokens` that were thought."""
        return self._reader.num_reasoning_tokens

    async def deltas(self) -> AsyncGenerator[AnswerText]:
        """Yield what is thought and said as it grows; when left early, nothing goes on running.

        Raises:
            IzwiError: The engine failed.
        """
        try:
            async for chunk in chunks_of(self._stream):
                ids = chunk.entries.ravel().tolist()  # a token is an entry of one id
                self.num_tokens += len(ids)
                delta = self._grow(self._reader.read(ids), chunk.reason)
                if any(delta):
                    yield delta
                if self.reason is not None:
                    return
        finally:
            self.abort()

    async def finish(self) -> None:
        """Wait until all of it is written."""
        async for _ in self.deltas():
            pass

    def abort(self) -> None:
        """Stop what still runs."""
        self._stream.abort()

    def _grow(self, text: AnswerText, reason: Reason | None) -> AnswerText:
        reasoning, content = text.reasoning, self._stops.write(text.content)
        if reason is not None and not self._stops.found:
            rest = self._reader.close()
            reasoning += rest.reasoning
            content += self._stops.write(rest.content)
            content += self._stops.close()
        self.reason = Reason.STOP if self._stops.found else reason
        self.reasoning += reasoning
        self.content += content
        return AnswerText(reasoning, content)


async def open_answer(
    engine: Engine,
    registry: Registry,
    model_name: str,
    ask: ChatInput,
    *,
    stops: Sequence[str] = (),
) -> Answer:
    """Start to answer a conversation.

    Args:
        engine: Which writes the answer.
        registry: Where the model is found.
        model_name: Who answers.
        ask: The conversation, and how to answer it.
        stops: What is said ends before the first of these; a thought may hold them.

    Raises:
        ModelNotFound: No such model.
        InvalidRequest: The model does something else, or not what was asked.
        ContextTooLong: The conversation is too long.
        Overloaded: The engine's queue is full; nothing was started.
    """
    model = registry.chat(model_name)
    request_id = f"chat-{uuid4().hex}"
    request = await asyncio.to_thread(model.prepare_chat, request_id, model_name, ask)
    return Answer(request, engine.submit(request), model.open_answer(request), stops)
