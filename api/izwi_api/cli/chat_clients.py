"""Chat clients: the engine in this process, or a running server."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from typing import Any, Protocol, Self

from msgspec.structs import replace

from izwi.chat import AnswerText, ChatInput, ChatMessage
from izwi.errors import EngineStopped, ModelNotFound
from izwi.request import Reason, Task
from izwi_api.cli.remote import Server
from izwi_api.runtime_options import RuntimeOptions
from izwi_api.services.chat import open_answer
from izwi_api.services.context import Services

# No chat model is small enough to come with the code.
EXAMPLE_MODEL = "Qwen/Qwen3-0.6B"
_SEED_BITS = 63


class Answer(Protocol):
    """An answer in flight; what it has come to is complete when its deltas end."""

    content: str
    reasoning: str
    reason: Reason | None
    num_prompt_tokens: int
    num_tokens: int

    def deltas(self) -> AsyncGenerator[AnswerText]:
        """Yield what is thought and said as it grows. Raises IzwiError."""
        ...


class ChatClient(Protocol):
    """Answers conversations, one after the other."""

    async def __aenter__(self) -> Self:
        """Return itself, ready to answer."""
        ...

    async def __aexit__(self, *_: object) -> None:
        """Leave."""
        ...

    async def open(self, ask: ChatInput, seed: int | None) -> Answer:
        """Start to answer. Raises IzwiError.

        Args:
            ask: The conversation; its seed is not looked at.
            seed: None for another one each time.
        """
        ...


class LocalChatClient:
    """The engine of this process, over one model."""

    def __init__(self, model: str, runtime: RuntimeOptions):
        self._model, self._runtime = model, runtime
        self._stack = AsyncExitStack()
        self._services: Services | None = None

    async def __aenter__(self) -> Self:
        """Load the model and start the engine. Raises IzwiError."""
        # torch, which a server's asker can spare
        from izwi_api.serve.local_services import running_services

        async with AsyncExitStack() as stack:
            services = await stack.enter_async_context(
                running_services([self._model], self._runtime)
            )
            services.registry.chat(services.registry.names()[0])  # told before anything is typed
            self._services, self._stack = services, stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop the engine."""
        await self._stack.aclose()

    async def open(self, ask: ChatInput, seed: int | None) -> Answer:
        """Start to answer; see `ChatClient`."""
        assert self._services is not None
        ask = replace(ask, seed=secrets.randbits(_SEED_BITS) if seed is None else seed)
        name = self._services.registry.names()[0]
        return await open_answer(self._services.engine, self._services.registry, name, ask)


class RemoteChatClient:
    """A running server."""

    def __init__(self, server: Server, model: str | None):
        self._server, self._model = server, model

    async def __aenter__(self) -> Self:
        """Find out who answers there. Raises ModelNotFound and EngineStopped."""
        try:
            self._model = await self._server.model(Task.CHAT, self._model)
        except ModelNotFound as error:
            hint = f"{error}; start it with: izwi serve --model {EXAMPLE_MODEL}"
            raise ModelNotFound(hint, param="model") from error
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing is kept open between answers."""

    async def open(self, ask: ChatInput, seed: int | None) -> Answer:
        """Start to answer; see `ChatClient`."""
        fields: dict[str, object] = {
            "model": self._model,
            "messages": [_message_json(message) for message in ask.messages],
            "enable_thinking": ask.thinking,
            "temperature": ask.temperature,
            "max_completion_tokens": ask.max_new_tokens,
            "seed": seed,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return RemoteAnswer(self._server, fields)


class RemoteAnswer:
    """An answer that a server writes; implements `Answer`."""

    def __init__(self, server: Server, fields: dict[str, object]):
        """Ask when its deltas are asked for; the fields are those of POST /v1/chat/completions."""
        self.content = self.reasoning = ""
        self.reason: Reason | None = None
        self.num_prompt_tokens = self.num_tokens = 0
        self._server, self._fields = server, fields

    async def deltas(self) -> AsyncGenerator[AnswerText]:
        """Yield what is thought and said as it comes; left early, the server stops."""
        events = self._server.events("/v1/chat/completions", self._fields)
        async with aclosing(events):
            async for event in events:
                try:
                    delta = self._read(event)
                except (KeyError, TypeError, ValueError, IndexError) as error:
                    raise EngineStopped(f"{self._server.url} gave no answer") from error
                self.reasoning += delta.reasoning
                self.content += delta.content
                if any(delta):
                    yield delta
        if self.reason is None:
            raise EngineStopped(f"{self._server.url} broke off")

    def _read(self, event: dict[str, Any]) -> AnswerText:
        if usage := event.get("usage"):
            self.num_prompt_tokens = int(usage["prompt_tokens"])
            self.num_tokens = int(usage["completion_tokens"])
        if not event["choices"]:
            return AnswerText()
        choice = event["choices"][0]
        if choice["finish_reason"] is not None:
            self.reason = Reason(choice["finish_reason"])
        delta = choice["delta"]
        names = ("reasoning_content", "content")
        reasoning, content = (str(delta.get(name) or "") for name in names)
        return AnswerText(reasoning, content)


def _message_json(message: ChatMessage) -> dict[str, object]:
    return {"role": message.role.value, "content": message.content}
