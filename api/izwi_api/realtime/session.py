"""One client of the Realtime protocol: its events, their errors, and the limits of its session.

Knows no HTTP: a `Wire` carries the messages.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import uuid4

import msgspec

from izwi.errors import InvalidRequest, IzwiError
from izwi_api.realtime.client_events import (
    ClientEvent,
    InputAudioAppend,
    InputAudioClear,
    InputAudioCommit,
    ItemCreate,
    ItemDelete,
    ItemRetrieve,
    ItemTruncate,
    OutputAudioClear,
    ResponseCancel,
    ResponseCreate,
    ResponseOptions,
    SessionUpdate,
    parse_event,
)
from izwi_api.realtime.dialogue import Dialogue
from izwi_api.realtime.errors import EventError, SessionOver
from izwi_api.realtime.items import parse_item
from izwi_api.realtime.making import (
    ResponseMaker,
    check_settings,
    response_items,
    response_settings,
)
from izwi_api.realtime.settings import RealtimeSettings, Settings, as_json, named, updated
from izwi_api.realtime.turn_events import Cancel, Commit
from izwi_api.services.context import Services

logger = logging.getLogger(__name__)

_NORMAL, _POLICY, _INTERNAL = 1000, 1008, 1011  # codes of RFC 6455
_TICK_S = 0.05


class Wire(Protocol):
    """Carries messages between a session and its client."""

    async def receive(self) -> str | None:
        """Return the next message, None for one that is not text. Raises ClientLeft."""
        ...

    async def send(self, message: str) -> None:
        """Send a message; waits while the client reads nothing. Raises ClientLeft."""
        ...

    async def close(self, code: int, reason: str) -> None:
        """Hang up."""
        ...


class ClientLeft(Exception):
    """The client has hung up."""


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """When a session ends, in seconds, and how much it may hold.

    Attributes:
        total_s: Of a session.
        idle_s: Without an event of the client, and without an answer.
        unread_s: With events that the client does not read.
        unread_events: Events that may wait for a client.
        pending_events: The same, from which on answers wait.
        bad_events: Errors in a row.
    """

    total_s: float = 3600.0
    idle_s: float = 900.0
    unread_s: float = 30.0
    unread_events: int = 4096
    pending_events: int = 64
    bad_events: int = 100


class RealtimeSession:
    """Serves one client until it leaves, or has to be left."""

    def __init__(self, wire: Wire, services: Services, settings: Settings, limits: SessionLimits):
        self._wire, self._services, self._limits = wire, services, limits
        self._outbox: deque[str] = deque()
        self._news, self._space = asyncio.Event(), asyncio.Event()
        self._begun_s = self._active_s = self._read_s = time.monotonic()
        self._maker = ResponseMaker(services)
        settings = named(settings, int(time.time() + limits.total_s))
        self._dialogue = Dialogue(services, settings, self._emit, self._until_space)

    async def run(self) -> None:
        """Serve; returns when the connection is closed."""
        self._emit("session.created", session=as_json(self._dialogue.settings))
        if isinstance(self._dialogue.settings, RealtimeSettings):
            conversation = {
                "id": self._dialogue.conversation.conversation_id,
                "object": "realtime.conversation",
            }
            self._emit("conversation.created", conversation=conversation)
        works: tuple[Coroutine[Any, Any, None], ...]
        works = (self._read(), self._write(), self._watch())
        tasks = {asyncio.create_task(work) for work in works}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._dialogue.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        errors = [error for task in done if (error := task.exception()) is not None]
        if not any(isinstance(error, ClientLeft) for error in errors):
            await self._part(errors[0] if errors else None)

    async def _part(self, error: BaseException | None) -> None:
        """Tell the client why it is left."""
        code, reason = _NORMAL, ""
        if isinstance(error, SessionOver):
            code, reason = error.close_code, error.code
            self._emit_error(str(error), error.code)
        elif error is not None:
            logger.error("a realtime session failed", exc_info=error)
            code, reason = _INTERNAL, "internal_error"
            self._emit_error("internal error", "internal_error", kind="server_error")
        try:
            async with asyncio.timeout(2.0):  # to a client that reads nothing there is no farewell
                while self._outbox:
                    await self._wire.send(self._outbox.popleft())
                await self._wire.close(code, reason)
        except (ClientLeft, TimeoutError):
            pass

    # -- what comes in ---------------------------------------------------------------------------
    async def _read(self) -> None:
        num_bad = 0
        while True:
            text = await self._wire.receive()
            self._active_s = time.monotonic()
            event: ClientEvent | None = None
            try:
                event = parse_event(text)
                await self._handle(event)
                num_bad = 0
            except Exception as error:
                num_bad += 1
                self._report(error, event)
                if num_bad >= self._limits.bad_events:
                    raise SessionOver("too many bad events", "too_many_errors", _POLICY) from error

    async def _handle(self, event: ClientEvent) -> None:
        dialogue = self._dialogue
        match event:
            case InputAudioAppend(audio=audio):
                dialogue.append(audio)
            case InputAudioCommit():
                dialogue.tell(Commit(dialogue.end_ms))
            case InputAudioClear():
                dialogue.clear()
                self._emit("input_audio_buffer.cleared")
            case SessionUpdate(session=changes):
                settings = updated(dialogue.settings, changes)
                await check_settings(self._services, settings)
                dialogue.configure(settings)
                self._emit("session.updated", session=as_json(settings))
            case OutputAudioClear():
                raise EventError(
                    "output_audio_buffer.clear is for WebRTC", "invalid_event", param="type"
                )
            case ResponseCreate(response=options):
                await self._create_response(options or ResponseOptions())
            case ResponseCancel(response_id=response_id):
                dialogue.tell(Cancel(dialogue.number_of(response_id)))
            case _:
                self._change_items(event)

    def _change_items(self, event: ClientEvent) -> None:
        conversation = self._dialogue.conversation
        match event:
            case ItemCreate(item=value, previous_item_id=place):
                item = parse_item(value)
                previous = conversation.add(item, place)
                for kind in ("added", "done"):
                    self._emit(
                        f"conversation.item.{kind}", previous_item_id=previous, item=item.as_json()
                    )
            case ItemRetrieve(item_id=item_id):
                item = conversation.get(item_id, "item_retrieve_invalid_item_id")
                self._emit("conversation.item.retrieved", item=item.as_json(with_audio=True))
            case ItemDelete(item_id=item_id):
                conversation.delete(item_id)
                self._emit("conversation.item.deleted", item_id=item_id)
            case ItemTruncate(item_id=item_id, content_index=index, audio_end_ms=end_ms):
                conversation.truncate(item_id, index, end_ms)
                self._emit(
                    "conversation.item.truncated",
                    item_id=item_id,
                    content_index=index,
                    audio_end_ms=end_ms,
                )

    async def _create_response(self, options: ResponseOptions) -> None:
        settings = self._dialogue.settings
        if not isinstance(settings, RealtimeSettings):
            raise EventError("this session only transcribes", "invalid_event", param="type")
        changed = response_settings(settings, options)
        await check_settings(self._services, changed)
        known = {item.item_id: item for item in self._dialogue.conversation.items}
        items = response_items(options, known)
        self._dialogue.create(changed, self._maker.setting(changed, options), items)

    def _report(self, error: Exception, event: ClientEvent | None) -> None:
        event_id = getattr(error, "event_id", None)
        if event is not None:
            event_id = event.event_id
        if isinstance(error, InvalidRequest):
            code = error.code if error.code != "invalid_request" else "invalid_value"
            self._emit_error(str(error), code, param=error.param, event_id=event_id)
            return
        logger.error("a realtime session goes on after a failure", exc_info=error)
        message = str(error) if isinstance(error, IzwiError) else "internal error"
        code = error.code if isinstance(error, IzwiError) else "internal_error"
        self._emit_error(message, code, event_id=event_id, kind="server_error")

    # -- what goes out ---------------------------------------------------------------------------
    def _emit(self, kind: str, **fields: object) -> None:
        event = {"type": kind, "event_id": f"event_{uuid4().hex[:24]}", **fields}
        if not self._outbox:
            self._read_s = time.monotonic()
        self._outbox.append(msgspec.json.encode(event).decode())
        self._news.set()

    def _emit_error(
        self,
        message: str,
        code: str,
        *,
        param: str | None = None,
        event_id: str | None = None,
        kind: str = "invalid_request_error",
    ) -> None:
        error = {"type": kind, "code": code, "message": message[:400], "param": param}
        self._emit("error", error=error | {"event_id": event_id})

    async def _write(self) -> None:
        while True:
            while self._outbox:
                await self._wire.send(self._outbox[0])
                self._outbox.popleft()
                self._read_s = time.monotonic()
                if len(self._outbox) < self._limits.pending_events:
                    self._space.set()
            self._news.clear()
            await self._news.wait()

    async def _until_space(self) -> None:
        """Wait while the client is far behind with reading."""
        while len(self._outbox) >= self._limits.pending_events:
            self._space.clear()
            await self._space.wait()

    async def _watch(self) -> None:
        limits = self._limits
        while True:
            self._dialogue.tick()
            now_s = time.monotonic()
            if self._dialogue.is_responding:
                self._active_s = now_s
            if now_s - self._begun_s >= limits.total_s:
                raise SessionOver("the session has reached its limit", "session_expired", _NORMAL)
            if now_s - self._active_s >= limits.idle_s:
                raise SessionOver("no event came for too long", "idle_timeout", _NORMAL)
            is_late = self._outbox and now_s - self._read_s >= limits.unread_s
            if is_late or len(self._outbox) > limits.unread_events:
                raise SessionOver("the client does not read its events", "unread_output", _POLICY)
            await asyncio.sleep(_TICK_S)
