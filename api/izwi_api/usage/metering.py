"""Meter the usage of models at the engine, which every call goes through.

The middleware creates a `Usage` for each HTTP request or WebSocket. `CountedEngine` finds it in the
caller's context, charges the key before anything runs, and adds up the audio that is returned.
Routes need no code for this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar

from izwi.engine_client.protocol import Answer, Answers, EngineClient, ForwardingEngine
from izwi.errors import Overloaded
from izwi.inputs.chat import ChatInput
from izwi.inputs.conversation import ConversationInput, size_of
from izwi.inputs.speech import AlignmentInput, SpeechInput, TranscriptionInput
from izwi.model.capability import Capability
from izwi.request.request import Chunk, Request
from izwi_api.services.served_models import Registry
from izwi_api.usage.limits import KeyLimits, Level, Meter

_HEARD_RATE = 16_000  # of TranscriptionInput.samples, and AlignmentInput's
# Text that is spoken while it is written reaches the engine as ids; an English word piece has about
# this many characters. An API server that knows the characters sets `Usage.counts_itself`.
CHARACTERS_PER_ID = 4


class Usage:
    """The usage of one HTTP request or WebSocket so far.

    Attributes:
        key_name: The caller's key; None if no key is required.
        model: The model that it used last, by the name under which it is served, or None.
        characters: Of text to speak, and of conversations to answer.
        heard_s: Seconds of audio to transcribe.
        spoken_s: Seconds of generated audio.
        counts_itself: Set by a service that calls `charge` itself, because the engine gets its
            input late or in other units; the engine then counts none.
    """

    def __init__(
        self,
        key_name: str | None = None,
        meter: Meter | None = None,
        current_limits: Callable[[], KeyLimits | None] | None = None,
    ):
        """Start without usage.

        Args:
            key_name: The caller's key.
            meter: The meter of that key.
            current_limits: Returns the key's limits of now, or None if it was removed. Without it
                the key stays as it is.
        """
        self.key_name, self._current_limits = key_name, current_limits
        self.model: str | None = None
        self.characters = 0
        self.heard_s = 0.0
        self.spoken_s = 0.0
        self.counts_itself = False
        self._meter = meter

    def charge(self, *, characters: int = 0, heard_s: float = 0.0) -> None:
        """Charge for input before it is processed.

        Raises:
            QuotaExceeded: The key has not enough left today; nothing is charged.
        """
        if self._meter is not None:
            self._meter.charge({"characters": characters, "audio-seconds": heard_s})
        self.characters += characters
        self.heard_s += heard_s

    def refund(self, *, characters: int = 0, heard_s: float = 0.0) -> None:
        """Refund a charge for input that was refused."""
        if self._meter is not None:
            self._meter.refund({"characters": characters, "audio-seconds": heard_s})
        self.characters -= characters
        self.heard_s -= heard_s

    def keeps_access(self) -> bool:
        """Apply changed limits of the key; return whether the key is still valid."""
        if self._meter is None or self._current_limits is None:
            return True
        limits = self._current_limits()
        if limits is not None:
            self._meter.change(limits)
        return limits is not None

    @property
    def max_sessions(self) -> int | None:
        """Maximum number of live sessions of the key; None without a limit of its own."""
        return self._meter.limits.sessions if self._meter is not None else None

    def headers(self) -> Mapping[str, str]:
        """Return the x-ratelimit-* headers of the key."""
        return self._meter.headers() if self._meter is not None else {}

    def levels(self) -> list[Level]:
        """Return the rest of each limit of the key."""
        return self._meter.levels() if self._meter is not None else []


# The usage of the call in this context; tasks that it starts inherit it.
current_usage: ContextVar[Usage | None] = ContextVar("current_usage", default=None)


def key_name() -> str:
    """Return the name of the caller's key; empty if none is required."""
    usage = current_usage.get()
    return "" if usage is None else usage.key_name or ""


class CountedEngine(ForwardingEngine):
    """An engine client that charges requests to the calls that submit them."""

    def __init__(self, engine: EngineClient, registry: Registry):
        super().__init__(engine)
        self._registry = registry

    def submit(self, request: Request) -> Answer:
        """Charge for a request and submit it. Raises QuotaExceeded, and as the engine does."""
        return self.submit_all([request])[0]

    def submit_all(self, requests: Sequence[Request]) -> Answers[Answer]:
        """Charge for requests and submit them, all or none; raises as `submit`."""
        usage = current_usage.get()
        if usage is None:
            return self._engine.submit_all(requests)
        rates = [self._sample_rate(request) for request in requests]  # it may be unloaded by now
        costs = [_cost(request, usage) for request in requests]
        characters, heard_s = sum(cost[0] for cost in costs), sum(cost[1] for cost in costs)
        usage.charge(characters=characters, heard_s=heard_s)
        try:
            streams = self._engine.submit_all(requests)
        except BaseException:
            usage.refund(characters=characters, heard_s=heard_s)
            raise
        for request in requests:
            usage.model = request.model
        return Answers(
            _CountedAnswer(stream, usage, cost, rate)
            for stream, cost, rate in zip(streams, costs, rates, strict=True)
        )

    def _sample_rate(self, request: Request) -> int:
        model = self._registry.model(request.model)
        if Capability.CONVERSE in model.capabilities:
            return self._registry.conversation(request.model).sample_rate
        is_speech = Capability.SPEAK in model.capabilities
        return self._registry.speech(request.model).sample_rate if is_speech else 0


class _CountedAnswer(Answer):
    def __init__(self, answer: Answer, usage: Usage, cost: tuple[int, float], sample_rate: int):
        self._answer, self._usage, self._cost = answer, usage, cost
        self._sample_rate = sample_rate

    async def __anext__(self) -> Chunk:
        chunk = await anext(self._answer)
        if isinstance(chunk.error, Overloaded):  # the queue refused it, so nothing was done
            self._usage.refund(characters=self._cost[0], heard_s=self._cost[1])
        if chunk.pcm is not None and self._sample_rate:
            self._usage.spoken_s += len(chunk.pcm) / self._sample_rate
        return chunk

    def write(self, text_ids: Sequence[int], closed: bool) -> None:
        """Charge for text ids and write them. Raises QuotaExceeded."""
        if not self._usage.counts_itself:
            self._usage.charge(characters=CHARACTERS_PER_ID * len(text_ids))
        self._answer.write(text_ids, closed)

    def pause(self) -> None:
        self._answer.pause()

    def resume(self) -> None:
        self._answer.resume()

    def abort(self) -> None:
        self._answer.abort()


def _cost(request: Request, usage: Usage) -> tuple[int, float]:
    """Return the characters to speak and the seconds to transcribe of one engine request."""
    ask = request.ask
    if usage.counts_itself or request.open_input or ask is None:
        return 0, 0.0
    match ask:
        case SpeechInput():
            return len(ask.text), 0.0
        case TranscriptionInput() | AlignmentInput():
            return 0, len(ask.samples) / _HEARD_RATE
        case ChatInput():
            return sum(len(message.content) for message in ask.messages), 0.0
        case ConversationInput():
            characters, samples = size_of(ask)
            return characters, samples / _HEARD_RATE
