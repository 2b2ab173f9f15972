"""The Realtime protocol in a live session: its events and errors. Independent of HTTP."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import uuid4

import msgspec

from izwi.errors import InvalidRequest, IzwiError
from izwi_api.realtime.answering.response_maker import (
    ResponseMaker,
    check_images,
    check_settings,
    ignored_settings,
    response_items,
    response_settings,
)
from izwi_api.realtime.answering.speaker import Speaker
from izwi_api.realtime.dialogue import Dialogue
from izwi_api.realtime.protocol.client_events import (
    BadEvent,
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
from izwi_api.realtime.protocol.errors import EventError
from izwi_api.realtime.protocol.items import parse_item
from izwi_api.realtime.protocol.settings import (
    RealtimeSettings,
    Settings,
    as_json,
    check_formats,
    input_wire,
    named,
    updated,
)
from izwi_api.realtime.turns.events import Cancel
from izwi_api.services.context import Services
from izwi_api.sessions.core import Message, Session
from izwi_api.sessions.errors import INTERNAL, SessionOver

logger = logging.getLogger(__name__)

# Takes a short piece of the user's audio: tens of milliseconds.
AppendAudio = Callable[[bytes], None]
Work = Coroutine[Any, Any, None]


class RealtimeSession:
    """A `Service` that converses with one client, or transcribes it.

    Args:
        session: Transports the events.
        services: Models and voices.
        settings: Initial settings.
        total_s: Seconds after which the session ends.
        tracks: Returns the tasks that carry audio both ways, given a callback for the user's audio
            (16-bit PCM at 24 kHz). None if events carry the audio.
        rate_limits: Returns the caller's remaining limits, in the form of the event.

    Attributes:
        speaker: Plays audio over the tracks.
    """

    def __init__(
        self,
        session: Session,
        services: Services,
        settings: Settings,
        total_s: float,
        tracks: Callable[[AppendAudio], Sequence[Work]] | None = None,
        rate_limits: Callable[[], list[dict[str, object]]] = list,
    ):
        services = replace(services, registry=services.registry.live())
        self._session, self._services = session, services
        self._maker = ResponseMaker(services)
        self._rate_limits = rate_limits
        self._event_id: str | None = None  # id of the event being processed
        settings = named(settings, int(time.time() + total_s))
        self._tracks = tracks
        self.speaker = None if tracks is None else Speaker(self._emit)
        room = session.until_space
        self._dialogue = Dialogue(services, settings, self._emit, room, self.speaker)

    @property
    def is_busy(self) -> bool:
        """Return whether a response is in progress."""
        return self._dialogue.is_responding

    def start_session(self) -> None:
        """Send the first events."""
        self._emit_settings("session.created")
        if isinstance(self._dialogue.settings, RealtimeSettings):
            conversation = {
                "id": self._dialogue.conversation.conversation_id,
                "object": "realtime.conversation",
            }
            self._emit("conversation.created", conversation=conversation)

    def background_tasks(self) -> Sequence[Work]:
        """Return the tasks that carry audio; the dialogue runs those of responses."""
        return () if self._tracks is None else self._tracks(self._append_audio)

    def tick(self, now_s: float) -> None:
        """Process elapsed time."""
        self._dialogue.tick(now_s)

    def close(self) -> None:
        """Stop all tasks."""
        self._dialogue.close()

    # -- what comes in ---------------------------------------------------------------------------
    async def handle_message(self, message: Message) -> None:
        """Process a client's event. Raises BadEvent or EventError."""
        self._event_id = None
        event = parse_event(message if isinstance(message, str) else None)
        self._event_id = event.event_id
        await self._handle(event)
        await self._dialogue.until_transcribed()

    def _append_audio(self, audio: bytes) -> None:
        """Add audio from the track; a full buffer is cleared."""
        try:
            self._dialogue.append_piece(audio)
        except EventError as error:
            self._dialogue.clear()
            self.report(error)

    async def _handle(self, event: ClientEvent) -> None:
        dialogue = self._dialogue
        match event:
            case InputAudioAppend() if self._tracks is not None:
                raise EventError("audio comes over the WebRTC track", "invalid_event", param="type")
            case InputAudioAppend(audio=audio):
                await dialogue.append(audio)
            case InputAudioCommit():
                dialogue.commit()
            case InputAudioClear():
                dialogue.clear()
                self._emit("input_audio_buffer.cleared")
            case SessionUpdate(session=changes):
                settings = updated(dialogue.settings, changes)
                if self._tracks is not None:
                    check_formats(settings)
                await check_settings(self._services, settings)
                dialogue.configure(settings)
                self._emit_settings("session.updated")
            case OutputAudioClear():
                if self.speaker is None:
                    message = "output_audio_buffer.clear is for WebRTC"
                    raise EventError(message, "invalid_event", param="type")
                with suppress(EventError):  # the response may have ended already
                    dialogue.apply_request(Cancel())
                self.speaker.clear()
            case ResponseCreate(response=options):
                await self._create_response(options or ResponseOptions())
            case ResponseCancel(response_id=response_id):
                if response_id is None or not dialogue.out_of_band.cancel(response_id):
                    dialogue.apply_request(Cancel(dialogue.number_of(response_id)))
            case _:
                self._change_items(event)

    def _change_items(self, event: ClientEvent) -> None:
        conversation = self._dialogue.conversation
        match event:
            case ItemCreate(item=value, previous_item_id=place):
                item = parse_item(value, input_wire(self._dialogue.settings))
                if isinstance(settings := self._dialogue.settings, RealtimeSettings):
                    check_images(self._services, settings.model, [item])
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
                self._dialogue.silence(item_id, end_ms)

    async def _create_response(self, options: ResponseOptions) -> None:
        settings = self._dialogue.settings
        if not isinstance(settings, RealtimeSettings):
            raise EventError("this session only transcribes", "invalid_event", param="type")
        changed = await response_settings(self._services, settings, options)
        known = {item.item_id: item for item in self._dialogue.conversation.items}
        items = response_items(options, known, input_wire(settings))
        check_images(self._services, settings.model, items or ())
        setting = self._maker.setting(changed, options)
        if setting.in_conversation:
            self._dialogue.create(changed, setting, items)
            return
        if items is None:
            items = self._dialogue.conversation.remembered
        self._dialogue.out_of_band.create(changed, setting, items)

    def report(self, error: Exception) -> None:
        """Send an error for an event, or the reason why the session ends."""
        event_id = error.event_id if isinstance(error, BadEvent) else self._event_id
        if isinstance(error, SessionOver):
            kind = "server_error" if error.close_code == INTERNAL else "invalid_request_error"
            self._emit_error(str(error), error.code, kind=kind)
            return
        if isinstance(error, InvalidRequest):
            code = error.code if error.code != "invalid_request" else "invalid_value"
            self._emit_error(str(error), code, param=error.param, event_id=event_id)
            return
        logger.error("a realtime session continues after a failure", exc_info=error)
        message = str(error) if isinstance(error, IzwiError) else "internal error"
        code = error.code if isinstance(error, IzwiError) else "internal_error"
        self._emit_error(message, code, event_id=event_id, kind="server_error")

    # -- what goes out ---------------------------------------------------------------------------
    def _emit(self, kind: str, **fields: object) -> None:
        # after the question is counted, and before the answer
        is_first = kind == "response.output_item.added" and fields["output_index"] == 0
        if is_first and (limits := self._rate_limits()):
            self._emit("rate_limits.updated", rate_limits=limits)
        event = {"type": kind, "event_id": f"event_{uuid4().hex[:24]}", **fields}
        self._session.put(msgspec.json.encode(event).decode())

    def _emit_settings(self, kind: str) -> None:
        """Send the settings, and an extension: the paths of those that have no effect here."""
        settings = self._dialogue.settings
        ignored = ignored_settings(self._services, settings)
        self._emit(kind, session=as_json(settings), **({"ignored": ignored} if ignored else {}))

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
