"""One response in progress: sends its events, and its audio at the pace of playback."""

from __future__ import annotations

import asyncio
import base64
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from izwi.arrays import Float32
from izwi.errors import InvalidRequest, IzwiError
from izwi.request.request import Reason
from izwi_api.realtime.answering.audio import EncodedAudio, encoded_pieces
from izwi_api.realtime.answering.live_answer import LiveAnswer
from izwi_api.realtime.answering.playback import SessionPlayback
from izwi_api.realtime.answering.prebuffer import Prebuffer
from izwi_api.realtime.answering.response_cost import ResponseCost
from izwi_api.realtime.answering.speaker import LEAD_MS, Speaker
from izwi_api.realtime.protocol.formats import InputDecoder, WireFormat
from izwi_api.realtime.protocol.items import Content, Item
from izwi_api.realtime.protocol.speaking_rate import SpeakingRates
from izwi_api.services.chat.answer import AnswerDelta, CallDelta
from izwi_api.services.chat.speech_to_speech import ConversationAnswer
from izwi_api.services.production_pace import ProductionPace
from izwi_api.telemetry.calls import Call, Turn, current_call
from izwi_api.telemetry.conventions import Operation
from izwi_api.telemetry.engine_request import EngineRequest

# Audio per event, which is also the longest delay of a pause.
_SLICE_MS = 40

logger = logging.getLogger(__name__)

Emit = Callable[..., None]


@dataclass(frozen=True, slots=True)
class ResponseSetting:
    """Settings for generating and sending a response.

    Attributes:
        wire: Audio format; None for text only.
        speed: Playback speed of the audio.
        lead_ms: See `SessionPlayback`.
        in_conversation: Whether it becomes part of the conversation.
        max_tokens: Maximum number of tokens; None for the model's limit.
        rates: Speaking rates of the session's voices; this answer's is added at its end.
        pace: Pace at which answers are made; this one's is added.
        session_id: The session that it is part of.
    """

    wire: WireFormat | None
    voice: str | None = None
    speed: float = 1.0
    lead_ms: float | None = None
    in_conversation: bool = True
    max_tokens: int | None = None
    metadata: dict[str, str] | None = None
    conversation_id: str = ""
    rates: SpeakingRates = field(default_factory=SpeakingRates)
    pace: ProductionPace = field(default_factory=ProductionPace)
    session_id: str = ""


@dataclass(frozen=True, slots=True)
class Hooks:
    """Callbacks from a response to its session.

    Attributes:
        emit: Sends an event.
        add_item: Adds an item to the conversation.
        sent: Called with audio that was sent, as samples at 16 kHz.
        room: Waits while the client reads too slowly (backpressure).
        ended: Called when everything is sent, or with the error that ended the response.
        speaker: Plays the audio, if it is not sent in events.
        call: The call of the session, for logs and traces.
    """

    emit: Emit
    add_item: Callable[[Item], str | None]
    sent: Callable[[Float32], None]
    room: Callable[[], Awaitable[None]]
    ended: Callable[[IzwiError | None], None]
    speaker: Speaker | None = None
    call: Call | None = None


@dataclass(slots=True)
class _Output:
    """An item of the response, and its position."""

    item: Item
    index: int
    previous_id: str | None = None


class Response:
    """A response, from `prepare` to its end. Nothing is sent before `release`."""

    def __init__(self, number: int, setting: ResponseSetting, hooks: Hooks):
        self.number, self.setting = number, setting
        self.response_id = f"resp_{uuid4().hex[:24]}"
        self.clock = SessionPlayback(setting.lead_ms)
        self.message: Item | None = None
        self.times_s: dict[str, float] = {}  # of its first text and its first audio that was sent
        self.heard_s: dict[str, float] = {}  # times of the turn that it answers
        self._call = None if hooks.call is None else hooks.call.answer()
        self._hearing: list[EngineRequest] = []
        self._hooks = hooks
        self._outputs: list[_Output] = []
        self._calls: dict[int, _Output] = {}
        self._spoken: LiveAnswer | None = None
        self._cost = ResponseCost()
        self._released, self._going = asyncio.Event(), asyncio.Event()
        self._going.set()
        self._task: asyncio.Task[None] | None = None
        self._prebuffer = Prebuffer(setting.pace)
        wire = setting.wire
        self._reference = InputDecoder(wire) if wire is not None else None

    def prepare(self, open_answer: Callable[[], Awaitable[LiveAnswer]]) -> None:
        """Start generating."""
        self._task = asyncio.create_task(self._run(open_answer))

    def release(self) -> None:
        """Start sending events."""
        self._hooks.emit("response.created", response=self._as_json("in_progress"))
        self._released.set()
        if self._hooks.call is not None:
            self._hearing = self._hooks.call.take_requests(Operation.TRANSCRIPTION)

    def pause(self) -> None:
        """Stop sending, and pause the models."""
        self._going.clear()
        self._prebuffer.skip_pause()
        if self._hooks.speaker is not None:
            self._hooks.speaker.pause()
        if self._spoken is not None:
            self._spoken.pause()

    def resume(self) -> None:
        """Resume with the next sample."""
        self._going.set()
        self.clock = self.clock.resume()
        if self._hooks.speaker is not None:
            self._hooks.speaker.resume()
        if self._spoken is not None:
            self._spoken.resume()

    def discard(self) -> None:
        """Abort the response and send nothing more of it."""
        if self._task is not None:
            self._task.cancel()
        if self._spoken is not None:
            self._spoken.abort()

    def finish(self, status: str, reason: str | None, error: IzwiError | None = None) -> None:
        """End the response: completed, cancelled or failed."""
        self.discard()
        # a cancelled one is cleared, also if all of its audio so far was played
        if self._hooks.speaker is not None and status != "cancelled":
            self._hooks.speaker.complete(self.response_id)
        spoken = self._spoken
        if spoken is not None:
            answer = spoken.answer
            self._cost = ResponseCost(
                answer.num_prompt_tokens, answer.num_tokens, spoken.num_frames
            )
            self._keep_entries(spoken)
            if status == "completed" and answer.reason is Reason.LENGTH:
                status, reason = "incomplete", "max_output_tokens"
        for output in self._outputs:
            self._end_output(output, "completed" if status == "completed" else "incomplete")
        details: dict[str, Any] | None = None
        if status != "completed":
            details = {"type": status}
            if reason is not None:
                details["reason"] = reason
            if error is not None:
                is_asked = isinstance(error, InvalidRequest)
                kind = "invalid_request_error" if is_asked else "server_error"
                details["error"] = {"type": kind, "code": error.code, "message": str(error)}
        self._hooks.emit("response.done", response=self._as_json(status, details))
        self.end_call(status, reason)

    def end_call(self, status: str, reason: str | None) -> None:
        """Report it to logs, metrics and traces, once, if it was released."""
        call, self._call = self._call, None
        if call is None or not self._released.is_set():
            return
        call.status = 500 if status == "failed" else 200
        setting = self.setting
        call.turn = Turn(
            self.heard_s | self.times_s,
            setting.session_id,
            setting.conversation_id if setting.in_conversation else "",
            status,
            reason,
            self._hearing,
        )
        call.end()

    def _keep_entries(self, spoken: LiveAnswer) -> None:
        """Store the log entries of a speech-to-speech model, for the next prompt."""
        if isinstance(spoken, ConversationAnswer) and self.message is not None:
            content = self.message.content[0]
            content.entries = spoken.entries
            content.frame_ms = spoken.frame_ms / self.setting.speed

    @property
    def played_ms(self) -> int:
        """Return how much of its audio the client has played."""
        if self._hooks.speaker is not None:
            return int(self._hooks.speaker.played_ms(self.response_id))
        return int(self.clock.played_ms(_now_ms()))

    @property
    def sent_ms(self) -> int:
        """Return how much of its audio was sent."""
        return int(self.clock.sent_ms)

    @property
    def gaps(self) -> tuple[int, float]:
        """Return the number of gaps in its playback so far, and their milliseconds."""
        if self._hooks.speaker is not None:
            return self._hooks.speaker.gaps(self.response_id)
        return self.clock.num_gaps, self.clock.gaps_ms

    async def _run(self, open_answer: Callable[[], Awaitable[LiveAnswer]]) -> None:
        current_call.set(self._call)  # of this task and those that it starts
        try:
            async with await open_answer() as spoken:
                self._spoken = spoken
                if not self._going.is_set():
                    spoken.pause()
                await self._send_pieces(spoken)
            await self._released.wait()
            if self.message is not None:
                content, setting = self.message.content[0], self.setting
                content.is_complete, spoken_s = True, content.audio_ms / 1000 * setting.speed
                setting.rates.learn(setting.voice, content.text, spoken_s)
            await self._going.wait()
            self._hooks.ended(None)
        except Exception as error:
            if not isinstance(error, IzwiError):
                logger.error("a response failed", exc_info=error)
                error = IzwiError("internal error")
            await self._released.wait()
            self._hooks.ended(error)

    async def _send_pieces(self, spoken: LiveAnswer) -> None:
        made = encoded_pieces(spoken, self.setting.wire, self.setting.speed)
        async with (
            aclosing(made),
            aclosing(self._prebuffer.pieces(made, self._is_dry)) as pieces,
        ):
            async for piece in pieces:
                await self._released.wait()
                if isinstance(piece, EncodedAudio):
                    await self._send_audio(piece.data)
                else:
                    await self._going.wait()
                    self._tell_text(piece)

    def _tell_text(self, delta: AnswerDelta) -> None:
        if delta.content:
            message = self._message()
            content = message.item.content[0]
            content.text += delta.content
            kind = "output_text" if self.setting.wire is None else "output_audio_transcript"
            self._emit_part(f"response.{kind}.delta", message, delta=delta.content)
            self.times_s.setdefault("text", time.monotonic())
        for call in delta.calls:
            self._tell_call(call)

    def _tell_call(self, call: CallDelta) -> None:
        output = self._calls.get(call.place)
        if output is None:
            item = Item("function_call", status="in_progress", name=call.name)
            item.call_id = call.call_id
            output = self._calls[call.place] = self._begin_output(item)
        output.item.arguments += call.arguments
        if call.arguments:
            self._hooks.emit(
                "response.function_call_arguments.delta",
                **self._place(output),
                call_id=output.item.call_id,
                delta=call.arguments,
            )

    async def _send_audio(self, data: bytes) -> None:
        wire = self.setting.wire
        assert wire is not None
        assert self._reference is not None
        size = wire.num_bytes(_SLICE_MS)
        for start in range(0, len(data), size):
            await self._until_due()
            await self._hooks.room()
            piece = data[start : start + size]
            message = self._message()
            content = message.item.content[0]
            content.add_audio(piece)
            duration_ms = wire.duration_ms(len(piece))
            content.audio_ms += duration_ms
            self.clock = self.clock.send(duration_ms, _now_ms())
            if self._hooks.speaker is not None:
                self._hooks.speaker.play(self.response_id, piece)
            else:
                encoded = base64.b64encode(piece).decode()
                self._emit_part("response.output_audio.delta", message, delta=encoded)
            self.times_s.setdefault("audio", time.monotonic())
            self._hooks.sent(self._reference.write(piece))

    def _is_dry(self) -> bool:
        """Return whether a client that plays has played all that was sent."""
        speaker = self._hooks.speaker
        if speaker is not None:
            return speaker.buffered_ms == 0.0
        return self.clock.lead_ms is not None and self.clock.ends_ms <= _now_ms()

    async def _until_due(self) -> None:
        """Wait while the response is paused or its audio is too far ahead of playback."""
        while True:
            await self._going.wait()
            wait_ms, speaker = self.clock.wait_ms(_now_ms()), self._hooks.speaker
            if speaker is not None:
                wait_ms = speaker.buffered_ms - LEAD_MS
            if wait_ms <= 0.0:
                return
            await asyncio.sleep(wait_ms / 1000)

    def _message(self) -> _Output:
        for output in self._outputs:
            if output.item is self.message:
                return output
        with_audio = self.setting.wire is not None
        content = Content("output_audio" if with_audio else "output_text")
        content.is_complete = not with_audio
        content.characters_per_s = self.setting.rates.rate(self.setting.voice) * self.setting.speed
        self.message = Item("message", role="assistant", status="in_progress")
        output = self._begin_output(self.message)
        self.message.content.append(content)
        part = {"type": "audio", "transcript": ""} if with_audio else {"type": "text", "text": ""}
        self._emit_part("response.content_part.added", output, part=part)
        return output

    def _begin_output(self, item: Item) -> _Output:
        output = _Output(item, len(self._outputs))
        self._outputs.append(output)
        self._hooks.emit(
            "response.output_item.added",
            response_id=self.response_id,
            output_index=output.index,
            item=item.as_json(),
        )
        if self.setting.in_conversation:
            before = output.previous_id = self._hooks.add_item(item)
            added = item.as_json()
            self._hooks.emit("conversation.item.added", previous_item_id=before, item=added)
        return output

    def _end_output(self, output: _Output, status: str) -> None:
        item = output.item
        item.status = status
        if item.kind == "function_call":
            self._hooks.emit(
                "response.function_call_arguments.done",
                **self._place(output),
                call_id=item.call_id,
                name=item.name,
                arguments=item.arguments,
            )
        else:
            self._end_content(output)
        if self.setting.in_conversation:
            before, done = output.previous_id, item.as_json()
            self._hooks.emit("conversation.item.done", previous_item_id=before, item=done)
        self._hooks.emit(
            "response.output_item.done",
            response_id=self.response_id,
            output_index=output.index,
            item=item.as_json(),
        )

    def _end_content(self, output: _Output) -> None:
        text = output.item.content[0].text
        if self.setting.wire is None:
            self._emit_part("response.output_text.done", output, text=text)
            part = {"type": "text", "text": text}
        else:
            self._emit_part("response.output_audio.done", output)
            self._emit_part("response.output_audio_transcript.done", output, transcript=text)
            part = {"type": "audio", "transcript": text}
        self._emit_part("response.content_part.done", output, part=part)

    def _emit_part(self, kind: str, output: _Output, **fields: object) -> None:
        self._hooks.emit(kind, **self._place(output), content_index=0, **fields)

    def _place(self, output: _Output) -> dict[str, object]:
        return {
            "response_id": self.response_id,
            "item_id": output.item.item_id,
            "output_index": output.index,
        }

    def _as_json(self, status: str, details: dict[str, Any] | None = None) -> dict[str, Any]:
        setting = self.setting
        made: dict[str, Any] = {
            "id": self.response_id,
            "object": "realtime.response",
            "status": status,
            "status_details": details,
            "output": [output.item.as_json() for output in self._outputs],
            "conversation_id": setting.conversation_id if setting.in_conversation else None,
            "output_modalities": ["text" if setting.wire is None else "audio"],
            "max_output_tokens": setting.max_tokens or "inf",
            "metadata": setting.metadata,
            "usage": None,
        }
        if setting.wire is not None:
            audio_format: dict[str, Any] = {"type": setting.wire.name}
            if setting.wire.law is None:
                audio_format["rate"] = setting.wire.rate
            made["audio"] = {"output": {"format": audio_format, "voice": setting.voice}}
        if status != "in_progress":
            made["usage"] = self._cost.as_json()
        return made


def _now_ms() -> float:
    return time.monotonic() * 1000
