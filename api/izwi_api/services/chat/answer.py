"""Answer a conversation: submit it, decode its tokens, end at the caller's stop strings.

Without HTTP: endpoints and live sessions answer through this module.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from typing import NamedTuple
from uuid import uuid4

import msgspec

from izwi.engine_client.protocol import Answer, Answers
from izwi.errors import ModelNotFound
from izwi.inputs.chat import AnswerReader, AnswerText, CallText, ChatInput, ToolCall
from izwi.model.capability import Capability
from izwi.model.frontend import ChatFrontend
from izwi.request.request import Chunk, Reason, Request
from izwi.sandbox.grammar_check import grammar_check
from izwi_api.services.context import chunks_of, tokens_of
from izwi_api.services.generation import ChargedGeneration
from izwi_api.services.models.served import Registry, ServedModel
from izwi_api.usage.metering import Charge

_SEEDS = 1 << 64


class StopText:
    """Ends a text before the first complete stop string, however the text is split.

    Attributes:
        matched: The stop string that was found; empty before.
    """

    def __init__(self, stops: Sequence[str]):
        """Search for these strings, none of which is empty."""
        self.matched = ""
        self._stops = tuple(stops)
        self._buffered = ""  # may begin a stop string

    def write(self, text: str) -> str:
        """Add text; return what is certainly before a stop string."""
        text = self._buffered + text
        places = [(text.find(stop), stop) for stop in self._stops]
        complete = [(start + len(stop), start, stop) for start, stop in places if start >= 0]
        if complete:
            self._buffered = ""
            _, start, self.matched = min(complete)
            return text[:start]
        size = self._num_begun(text)
        self._buffered = text[len(text) - size :]
        return text[: len(text) - size]

    def close(self) -> str:
        """Return the rest; no text follows."""
        rest, self._buffered = self._buffered, ""
        return rest

    def _num_begun(self, text: str) -> int:
        """Return how many characters at the end of a text begin a stop string."""
        most = min(len(text), max(map(len, self._stops), default=1) - 1)
        return next((n for n in range(most, 0, -1) if self._begins(text[-n:])), 0)

    def _begins(self, end: str) -> bool:
        return any(stop.startswith(end) for stop in self._stops)


class TokenLogprob(NamedTuple):
    """A token and the natural log of its probability.

    Attributes:
        spelled: The token's bytes.
        top: The most likely tokens at this position, if requested.
    """

    token_id: int
    spelled: bytes
    logprob: float
    top: tuple[TokenLogprob, ...] = ()


class CallDelta(NamedTuple):
    """New text of a function call.

    Attributes:
        place: Index of the call in the answer.
        call_id: Set, with the name, in the first delta of a call; else empty.
    """

    place: int
    call_id: str = ""
    name: str = ""
    arguments: str = ""


class AnswerDelta(NamedTuple):
    """New text of an answer, with at most one call."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[CallDelta, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()


class ChatAnswer(ChargedGeneration):
    """An answer while it is written. Leaving its context aborts it.

    Attributes:
        num_prompt_tokens: Tokens of the prompt, for usage.
        num_tokens: Tokens written so far, including thoughts.
        reasoning: Thoughts so far.
        content: Text so far.
        calls: Function calls so far; the last one may be incomplete.
        logprobs: One for each token so far, if requested.
        reason: Why it ended: `stop` or `length`; None before.
    """

    def __init__(
        self,
        request: Request,
        answer: Answer,
        reader: AnswerReader,
        stops: Sequence[str],
        charge: Charge,
    ):
        super().__init__(charge)
        self.num_prompt_tokens = request.prompt.num_positions
        self.num_tokens = 0
        self.reasoning = self.content = ""
        self.calls: list[ToolCall] = []
        self.logprobs: list[TokenLogprob] = []
        self.reason: Reason | None = None
        self._answer, self._reader, self._stops = answer, reader, StopText(stops)

    @property
    def num_reasoning_tokens(self) -> int:
        """Tokens of `num_tokens` that are thoughts."""
        return self._reader.num_reasoning_tokens

    @property
    def num_calls(self) -> int:
        """Number of complete calls."""
        return self._reader.num_calls

    @property
    def stopped_by(self) -> str:
        """The stop string that ended the text; empty if none did."""
        return self._stops.matched

    async def deltas(self) -> AsyncGenerator[AnswerDelta]:
        """Yield new thoughts, text and calls; leaving early aborts the request.

        Raises:
            IzwiError: The engine failed.
        """
        with self.reading():
            async for chunk in chunks_of(self._answer):
                ids = tokens_of(chunk)
                self.num_tokens += len(ids)
                text = self._grow(self._reader.read(ids), chunk.reason)
                logprobs = self._logprobs_of(ids, chunk)
                self.logprobs += logprobs
                calls = self._called(text)
                delta = AnswerDelta(text.reasoning, text.content, calls[:1], logprobs)
                if any(delta):
                    yield delta
                for call in calls[1:]:
                    yield AnswerDelta(calls=(call,))
                if self.reason is not None:
                    return

    def sources(self) -> tuple[Answer]:
        """Return the engine's answer."""
        return (self._answer,)

    def output(self) -> AsyncGenerator[AnswerDelta]:
        """Yield the deltas."""
        return self.deltas()

    def _grow(self, text: AnswerText, reason: Reason | None) -> AnswerText:
        reasoning, content, calls = text.reasoning, self._stops.write(text.content), text.calls
        if reason is not None and not self._stops.matched:
            rest = self._reader.close()
            reasoning += rest.reasoning
            calls += rest.calls
            content += self._stops.write(rest.content)
        if (reason is not None or self._reader.ended) and not self._stops.matched:
            content += self._stops.close()
        ended = self._stops.matched or self._reader.ended
        self.reason = Reason.STOP if ended else reason
        self.reasoning += reasoning
        self.content += content
        return AnswerText(reasoning, content, () if self._stops.matched else calls)

    def _called(self, text: AnswerText) -> tuple[CallDelta, ...]:
        """Return new text of calls, one delta each: some clients read only one call of a delta."""
        grown: dict[int, CallDelta] = {}
        for call in text.calls:
            delta = self._grow_call(call)
            known = grown.get(call.place)
            grown[call.place] = (
                delta
                if known is None
                else known._replace(arguments=known.arguments + delta.arguments)
            )
        return tuple(grown.values())

    def _grow_call(self, call: CallText) -> CallDelta:
        if call.place == len(self.calls):
            call_id = f"call_{uuid4().hex}"
            self.calls.append(ToolCall(call_id, call.name, call.arguments))
            return CallDelta(call.place, call_id, call.name, call.arguments)
        known = self.calls[call.place]
        self.calls[call.place] = msgspec.structs.replace(
            known, arguments=known.arguments + call.arguments
        )
        return CallDelta(call.place, arguments=call.arguments)

    def _logprobs_of(self, ids: Sequence[int], chunk: Chunk) -> tuple[TokenLogprob, ...]:
        if chunk.logprobs is None:
            return ()
        reported = []
        for index, values in zip(ids, chunk.logprobs.tolist(), strict=True):
            own, *pairs = values if isinstance(values, list) else [values]
            top = zip(map(int, pairs[::2]), pairs[1::2], strict=True)
            others = tuple(
                TokenLogprob(other, self._reader.spell(other), value) for other, value in top
            )
            reported.append(TokenLogprob(index, self._reader.spell(index), own, others))
        return tuple(reported)


def start_ahead(registry: Registry) -> None:
    """Start what answers that follow a grammar need, if a model chats."""
    with suppress(ModelNotFound):
        registry.default(Capability.CHAT)
        grammar_check().start()


async def open_answers(
    model: ServedModel[ChatFrontend],
    ask: ChatInput,
    *,
    stops: Sequence[str] = (),
    count: int = 1,
) -> Answers[ChatAnswer]:
    """Start several answers to one conversation; its prompt is computed once.

    Args:
        model: The chat model.
        ask: The conversation and its options; each answer has the next seed.
        stops: The text ends before the first of these; thoughts may contain them.
        count: Number of answers.

    Raises:
        InvalidRequest: The model cannot do what was requested.
        ContextTooLong: The conversation is too long.
        Overloaded: The engine's queue is full, or too many grammars wait to be compiled; nothing
            was started.
    """
    model.check_admission()
    request_id, frontend = f"chat-{uuid4().hex}", model.frontend
    first = await asyncio.to_thread(frontend.prepare_chat, request_id, model.name, ask)
    if first.grammar is not None:
        checked = await grammar_check().check(first.grammar)
        first = msgspec.structs.replace(first, grammar=checked)
    requests = [first] + [
        msgspec.structs.replace(
            first, request_id=f"{request_id}-{place}", seed=_wrapped(first.seed + place)
        )
        for place in range(1, count)
    ]
    num_characters = sum(len(message.content) for message in ask.messages)
    charges = Charge.together(count, characters=num_characters)
    try:
        answers = model.submit_all(requests)
    except BaseException:
        for charge in charges:
            charge.settle(is_refused=True)
        raise
    return Answers(
        ChatAnswer(request, answer, frontend.open_answer(request), stops, charge)
        for request, answer, charge in zip(requests, answers, charges, strict=True)
    )


async def open_answer(
    model: ServedModel[ChatFrontend], ask: ChatInput, *, stops: Sequence[str] = ()
) -> ChatAnswer:
    """Start one answer to a conversation, like `open_answers`."""
    (answer,) = await open_answers(model, ask, stops=stops)
    return answer


async def merged_deltas(
    answers: Sequence[ChatAnswer],
) -> AsyncGenerator[tuple[int, AnswerDelta | None]]:
    """Yield deltas of several answers as they come, each with its index; None at an end.

    Leaving early aborts all of them.

    Raises:
        IzwiError: One of the requests failed; the others were aborted.
    """
    queue: asyncio.Queue[tuple[int, AnswerDelta | None]] = asyncio.Queue(maxsize=1)

    async def read(place: int, answer: ChatAnswer) -> None:
        async with aclosing(answer.deltas()) as deltas:
            async for delta in deltas:
                await queue.put((place, delta))
        await queue.put((place, None))

    tasks = [asyncio.create_task(read(place, answer)) for place, answer in enumerate(answers)]
    try:
        num_left = len(tasks)
        while num_left:
            item = await _next(queue, tasks)
            num_left -= item[1] is None
            yield item
    finally:
        for answer, task in zip(answers, tasks, strict=True):
            answer.abort()
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _next(
    queue: asyncio.Queue[tuple[int, AnswerDelta | None]], tasks: Sequence[asyncio.Task[None]]
) -> tuple[int, AnswerDelta | None]:
    """Return the next item. Raises the error of a failed reader."""
    waiting = asyncio.ensure_future(queue.get())
    try:
        while not waiting.done():
            running = [task for task in tasks if not task.done()]
            await asyncio.wait([waiting, *running], return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done() and (error := task.exception()) is not None:
                    raise error
        return waiting.result()
    finally:
        waiting.cancel()


async def finish_all(answers: Sequence[ChatAnswer]) -> None:
    """Wait until all answers are complete; if one fails, abort the others."""
    async with aclosing(merged_deltas(answers)) as deltas:
        async for _ in deltas:
            pass


def _wrapped(seed: int) -> int:
    """Return a seed as a signed 64-bit number."""
    return (seed + _SEEDS // 2) % _SEEDS - _SEEDS // 2
