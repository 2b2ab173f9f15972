"""ElevenLabs' WebSocket for several texts in pieces: a context for each, spoken independently.

Each context is a session of /v1/audio/speech/stream, as `stream_input.py` has one; they share the
socket with its limits. A context that is closed still says what was flushed, and nothing else. The
text of a context waits in the context, up to a limit; beyond it, this context alone ends.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from fastapi import APIRouter, WebSocket
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from izwi.errors import IzwiError
from izwi_api.http.errors import response_to
from izwi_api.http.live_socket import serve_socket
from izwi_api.routes import speech_stream
from izwi_api.schemas.speech_stream import StreamLimits
from izwi_api.services.context import Services
from izwi_api.services.speech.session import SpeechSession
from izwi_api.sessions.core import Message, Outbox, Session
from izwi_api.sessions.errors import NORMAL, POLICY, SessionOver
from izwi_api.vendors.elevenlabs.formats import (
    DEFAULT_FORMAT,
    PREFIX,
    VoiceSettings,
    parse_format,
)
from izwi_api.vendors.elevenlabs.stream_input import StreamInput, session_config
from izwi_api.vendors.translated_wire import check_size

router = APIRouter()
# As ElevenLabs has it.
_MAX_CONTEXTS = 5
# Messages of a context that wait; the session of the context has its own.
_MAX_WAITING = 4096
_DEFAULT = "default"


@router.websocket(PREFIX + "/v1/text-to-speech/{voice_id}/multi-stream-input")
async def multi_stream_input(socket: WebSocket, voice_id: str) -> None:
    """Speak several texts while they are written."""
    services: Services = socket.app.state.izwi.services
    try:
        audio = parse_format(socket.query_params.get("output_format", DEFAULT_FORMAT))
        config = session_config(services, voice_id, socket.query_params, audio)
    except IzwiError as error:
        await socket.send_denial_response(response_to(error))
        return
    limits = speech_stream.LIMITS.under(services.settings)

    def open_speech(outbox: Outbox) -> SpeechSession:
        return SpeechSession(outbox, services, limits, speech_stream.error_message)

    def translate(fields: dict[str, str]) -> StreamInput:
        return StreamInput(config, audio, fields)

    await serve_socket(
        socket,
        limits.of_session,
        lambda session: Contexts(session, open_speech, translate, limits),
    )


class ContextMessage(BaseModel):
    """A client's message; without an id it is of the default context."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    text: str | None = None
    context_id: str = Field(_DEFAULT, max_length=256)
    flush: bool | None = None
    close_context: bool | None = None
    close_socket: bool | None = None
    voice_settings: VoiceSettings | None = None


class _Output:
    """An `Outbox` of one context: its messages in ElevenLabs' form, into the session."""

    def __init__(self, session: Session, translation: StreamInput):
        self._session, self._translation = session, translation

    @property
    def num_unread(self) -> int:
        return self._session.num_unread

    def put(self, message: Message) -> None:
        for translated in self._translation.outgoing(message):
            self._session.put(translated)
        self._end_after_failure()

    async def send(self, message: Message) -> None:
        for translated in self._translation.outgoing(message):
            await self._session.send(translated)
        self._end_after_failure()

    def _end_after_failure(self) -> None:
        if (failure := self._translation.failure) is not None:
            over = SessionOver(
                "a context failed", failure.reason, failure.close_code, is_told=False
            )
            self._session.end(over)


class _Context:
    """One text on its way to be spoken.

    Its messages wait here, so that no other context waits for them.

    Attributes:
        speech: Speaks it.
        is_closed: It gets no more text.
    """

    def __init__(
        self,
        session: Session,
        translation: StreamInput,
        open_speech: Callable[[Outbox], SpeechSession],
        pending_chars: int,
    ):
        self._session, self._translation = session, translation
        self.speech = open_speech(_Output(session, translation))
        self.is_closed = self._is_full = False
        self._inbox: deque[ContextMessage] = deque()  # not passed on yet
        self._num_chars, self._most_chars = 0, pending_chars  # in the inbox
        self._changed = asyncio.Event()

    def add(self, read: ContextMessage) -> None:
        """Add text, and end the part of it that is flushed; too much ends the context."""
        if self.is_closed:  # it ended by itself
            return
        size = len(read.text or "")
        is_long = self._inbox and self._num_chars + size > self._most_chars
        if is_long or len(self._inbox) >= _MAX_WAITING:
            self._end_full()
            return
        self._inbox.append(read)
        self._num_chars += size
        self._changed.set()

    def close(self) -> None:
        """End it: what was not flushed is not spoken."""
        if self.is_closed:
            return
        self.is_closed = True
        while self._inbox and not self._inbox[-1].flush:
            self._inbox.pop()
        if not self._inbox:  # otherwise a flush completes the utterance
            self._drop_unwanted()
        self._changed.set()

    def _end_full(self) -> None:
        """Report that too much text waits, and speak no more of it."""
        message = "too much text of this context waits to be spoken"
        self._session.put(self._translation.error_message("context_full", message))
        self._inbox.clear()
        self._is_full = True
        self.close()

    def _drop_unwanted(self) -> None:
        if self._is_full:
            self.speech.cancel_all()
        self.speech.drop_open_text()

    async def run(self) -> None:
        """Speak until it is closed and all was said."""
        reading = asyncio.create_task(self._read())
        try:
            for work in self.speech.background_tasks():
                await work
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        for message in self._translation.farewell(NORMAL):
            await self._session.send(message)

    async def _read(self) -> None:
        """Pass the messages on, as fast as they are spoken; an error ends the session."""
        is_flushed = True
        try:
            while self._inbox or not self.is_closed:
                if not self._inbox:
                    self._changed.clear()
                    await self._changed.wait()
                    continue
                read = self._inbox.popleft()
                self._num_chars -= len(read.text or "")
                is_flushed = await self._pass_on(read, is_flushed=is_flushed)
            self._drop_unwanted()  # also what was being passed on when it was closed
            await self.speech.handle_message('{"type": "session.close"}')
        except Exception as error:
            self.speech.report(error)

    async def _pass_on(self, read: ContextMessage, *, is_flushed: bool) -> bool:
        """Return whether all text so far is flushed."""
        if read.text:
            given = read.model_dump_json(include={"text", "voice_settings"})
            for message in self._translation.incoming(given):
                await self.speech.handle_message(message)
            is_flushed = is_flushed and not read.text.strip()
        if read.flush and not is_flushed:
            await self.speech.handle_message('{"type": "input.done"}')
            return True
        return is_flushed


class Contexts:
    """A `Service` of several texts.

    Args:
        session: The session that it serves.
        open_speech: Makes what speaks one text, with where its messages go.
        translate: Makes the translation of a context's messages, given the fields of each.
        limits: What the client may send.
    """

    def __init__(
        self,
        session: Session,
        open_speech: Callable[[Outbox], SpeechSession],
        translate: Callable[[dict[str, str]], StreamInput],
        limits: StreamLimits,
    ):
        self._session, self._open_speech, self._translate = session, open_speech, translate
        self._limits = limits
        self._contexts: dict[str, _Context] = {}
        self._running: dict[asyncio.Task[None], _Context] = {}
        self._is_closing = False
        self._changed = asyncio.Event()

    @property
    def is_busy(self) -> bool:
        """Whether the engine is working for the client."""
        return any(context.speech.is_busy for context in self._running.values())

    def start_session(self) -> None:
        """Do nothing: the client speaks first."""

    def background_tasks(self) -> Sequence[Coroutine[Any, Any, None]]:
        """Return the task that waits for the contexts."""
        return (self._until_closed(),)

    def tick(self, now_s: float) -> None:
        """Check the time limits of each context. Raises SessionOver."""
        for context in self._running.values():
            if not context.is_closed:
                context.speech.tick(now_s)

    def close(self) -> None:
        """Abort what still runs."""
        for task in self._running:
            task.cancel()

    async def handle_message(self, message: Message) -> None:
        """Handle a message. Raises SessionOver."""
        check_size(message, self._limits.message_bytes)
        try:
            read = ContextMessage.model_validate_json(message)
        except ValidationError as error:
            raise SessionOver(
                "a message must be a JSON object of a context", "invalid_message", POLICY
            ) from error
        if self._is_closing:
            return
        if read.close_socket:
            self._is_closing = True
            for name in list(self._contexts):
                self._contexts.pop(name).close()
            self._changed.set()
        elif read.close_context:
            if (context := self._contexts.pop(read.context_id, None)) is not None:
                context.close()
        elif read.text or read.flush:  # anything else only keeps the connection open
            self._context(read.context_id).add(read)
            await asyncio.sleep(0)  # messages that came together do not all wait in the inbox

    def _context(self, name: str) -> _Context:
        """Return a context, which is opened by its first message. Raises SessionOver."""
        context = self._contexts.get(name)
        if context is not None:
            return context
        if len({*self._running.values(), *self._contexts.values()}) >= _MAX_CONTEXTS:
            message = f"at most {_MAX_CONTEXTS} contexts may be open; close one first"
            raise SessionOver(message, "too_many_contexts", POLICY)
        translation = self._translate({"contextId": name})
        pending = self._limits.pending_chars
        context = _Context(self._session, translation, self._open_speech, pending)
        self._contexts[name] = context
        task = asyncio.create_task(context.run())
        self._running[task] = context
        task.add_done_callback(lambda _: self._changed.set())
        return context

    async def _until_closed(self) -> None:
        """Wait until the client has closed the socket and all was said."""
        while True:
            for task in [task for task in self._running if task.done()]:
                del self._running[task]
                task.result()
            if self._is_closing and not self._running:
                return
            self._changed.clear()
            await self._changed.wait()

    def report(self, error: Exception) -> None:
        """Report a bad message, or why the session ends."""
        message_json = json.dumps(speech_stream.error_message(error))
        for message in self._translate({}).outgoing(message_json):
            self._session.put(message)
