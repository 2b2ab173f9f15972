"""A spoken conversation: input audio, the turn state machine, and its actions."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from izwi.arrays import Float32
from izwi.errors import IzwiError
from izwi_api.realtime.answering.answers import Answers
from izwi_api.realtime.answering.out_of_band import OutOfBandResponses
from izwi_api.realtime.answering.response import Emit, Hooks, ResponseSetting
from izwi_api.realtime.answering.response_maker import ResponseMaker, takes_audio, transcription_of
from izwi_api.realtime.answering.speaker import Speaker
from izwi_api.realtime.hearing.input_audio import InputBuffer, empty_transcript
from izwi_api.realtime.hearing.microphone import Microphone
from izwi_api.realtime.hearing.noise import Distance, reduces_noise
from izwi_api.realtime.hearing.overlap import OverlapCheck
from izwi_api.realtime.hearing.transcriber import SpeechTranscriber
from izwi_api.realtime.hearing.turn_speakers import TurnSpeakers
from izwi_api.realtime.hearing.vad import SpeechFrame
from izwi_api.realtime.protocol.errors import REFUSALS, EventError
from izwi_api.realtime.protocol.items import Conversation, Item, new_item_id
from izwi_api.realtime.protocol.settings import (
    RealtimeSettings,
    Settings,
    detection_of,
    input_wire,
    vad_of,
)
from izwi_api.realtime.protocol.transcript_events import TranscriptEvents
from izwi_api.realtime.turns import events
from izwi_api.realtime.turns.machine import advance
from izwi_api.realtime.turns.rules import Rules
from izwi_api.realtime.turns.state import State
from izwi_api.services.answer_figures import TurnEvent
from izwi_api.services.context import Services
from izwi_api.settings import VadName
from izwi_api.telemetry.calls import current_call

logger = logging.getLogger(__name__)

# Turns of one session that may be transcribed concurrently.
_MAX_TRANSCRIPTIONS = 8
# The last stable words may still change after a pause.
_UNSURE_WORDS = 2
# Audio that is processed at once: detecting speech in it takes about 5 ms.
_PIECE_MS = 100
# Audio kept before speech begins, for the turn's prefix padding.
_KEPT_MS = 2000


class Dialogue:
    """The state of one session, without its transport. Use it from one event loop."""

    def __init__(
        self,
        services: Services,
        settings: Settings,
        emit: Emit,
        room: Callable[[], Awaitable[None]],
        speaker: Speaker | None = None,
    ):
        self.settings = settings
        self.conversation = Conversation()
        self._services, self._emit, self._room, self._speaker = services, emit, room, speaker
        self._words = TranscriptEvents(emit)
        self._maker = ResponseMaker(services)
        hears = transcription_of(services, settings) is not None
        is_ear = isinstance(settings, RealtimeSettings) and takes_audio(services, settings.model)
        rules = Rules(hears_words=hears, answers_words=hears and not is_ear)
        self._state = State(detection_of(settings), rules)
        self._buffer = InputBuffer(input_wire(settings), self._vad)
        self._buffer.reduce_noise(self._distance)
        self._overlap = OverlapCheck()
        self._microphone = Microphone(self._buffer, self._overlap)
        self._transcriber = SpeechTranscriber(services, self._take_text, self._take_transcript)
        self._turn_speakers: TurnSpeakers | None = None
        self._name_speakers()
        self._turn_id = self._unsaid_id = ""  # items of the current turn: its own, the answered one
        add, sent = self.conversation.append, self._overlap.write_sent
        hooks = Hooks(emit, add, sent, room, lambda _: None, speaker, current_call.get())
        self._answers = Answers(self._maker, hooks, self._ended, services.report_answer)
        self._heard_s: dict[str, float] = {}  # times of the last turn
        self.out_of_band = OutOfBandResponses(self._maker, emit, room)
        self._prepared: dict[int, asyncio.Future[str]] = {}  # transcripts of prepared responses
        # from the client's response.create, until it is answered
        self._created: tuple[RealtimeSettings, ResponseSetting, Sequence[Item] | None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # -- the client ------------------------------------------------------------------------------
    def configure(self, settings: Settings) -> None:
        """Apply new settings from now on. Raises EventError if the format cannot change now."""
        self._buffer.convert(input_wire(settings))
        self.settings = settings
        self._buffer.detect_with(self._vad)
        self._buffer.reduce_noise(self._distance)
        if detection_of(settings) != self._state.detection:
            self._advance_turns(events.Configure(detection_of(settings)))
        self._name_speakers()

    def _name_speakers(self) -> None:
        """Name the speakers of turns from now on, if the settings say so."""
        transcription = self.settings.audio.input.transcription
        setting = None if transcription is None else transcription.speaker_setting
        if setting is None:
            self._turn_speakers = None
        elif self._turn_speakers is None or self._turn_speakers.setting != setting:
            self._turn_speakers = TurnSpeakers(self._services, setting)

    @property
    def _vad(self) -> VadName:
        return vad_of(self.settings, self._services.settings.live_vad)

    @property
    def _distance(self) -> Distance | None:
        """Of the microphone whose noise is reduced; None reduces none."""
        asked = self.settings.audio.input.noise_reduction
        return asked.type if asked is not None and reduces_noise() else None

    async def append(self, audio: bytes) -> None:
        """Add input audio of any length, while others run. Raises EventError."""
        size = self._buffer.wire.num_bytes(_PIECE_MS)
        if len(audio) <= size:
            self.append_piece(audio)
            return
        self._buffer.check_room(len(audio))
        self._microphone.note_piece(audio)
        for start in range(0, len(audio), size):
            await self._services.loop_turns.wait_for_turn()
            self._write(audio[start : start + size])

    def append_piece(self, audio: bytes) -> None:
        """Add a short piece of input audio. Raises EventError."""
        self._microphone.note_piece(audio)
        self._write(audio)

    def _write(self, audio: bytes) -> None:
        for heard in self._buffer.write(audio):
            frame = self._microphone.frame(heard, self._state)
            end_ms = self._buffer.frame_ms(frame)
            self._advance_turns(
                events.Frame(end_ms, frame.speech, frame.is_voiced, frame.is_hidden)
            )
            self._listen(frame)
        if self._state.detection is not None and self._state.turn_ms is None:
            speech_ms = self._state.speech.onset_ms if self._state.speech else self._state.now_ms
            self._buffer.drop(speech_ms - _KEPT_MS)

    def apply_request(self, event: events.Event) -> None:
        """Pass a client's request to the turn state machine. Raises EventError if it is refused."""
        if refused := self._advance_turns(event):
            raise EventError(REFUSALS[refused], refused)

    def create(
        self,
        settings: RealtimeSettings,
        setting: ResponseSetting,
        items: Sequence[Item] | None,
    ) -> None:
        """Create the response that a client requested. Raises EventError."""
        before, self._created = self._created, (settings, setting, items)
        try:
            self.apply_request(events.Create())
        except EventError:
            self._created = before
            raise

    @property
    def is_responding(self) -> bool:
        """Return whether a response is in progress."""
        return self._state.answer is not None or self.out_of_band.is_responding

    def commit(self) -> None:
        """Turn the input buffer into an item. Raises EventError if it is too short."""
        self.apply_request(events.Commit(self.end_ms))
        self._buffer.drop_half_sample()

    def clear(self) -> None:
        """Clear the input buffer."""
        self._advance_turns(events.Clear(self.end_ms))
        self._buffer.clear()
        self._transcriber.drop()

    @property
    def end_ms(self) -> int:
        """Return the end of the input audio."""
        return self._buffer.end_ms

    async def until_transcribed(self) -> None:
        """Wait while too many turns are being transcribed."""
        while len(self._tasks) >= _MAX_TRANSCRIPTIONS:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    def silence(self, item_id: str, played_ms: int) -> None:
        """Stop sending an item because the client has stopped playing it."""
        if (number := self._answers.number_of_item(item_id)) is not None:
            self._advance_turns(events.PlaybackStopped(number, played_ms))

    def number_of(self, response_id: str | None) -> int | None:
        """Return the number of a response, or -1 if the id is unknown."""
        return None if response_id is None else self._answers.number_of(response_id)

    def tick(self, now_s: float) -> None:
        """Process elapsed time. Call this several times a second."""
        silence = self._microphone.missing_silence(now_s)
        # over WebRTC, the call itself hears silence
        if silence and self._state.turn_ms is not None and self._speaker is None:
            with suppress(EventError):  # the buffer is full
                self._write(silence)
        self._advance_turns(events.Tick(round(now_s * 1000)))
        self._report_playback()

    def close(self) -> None:
        """Stop all responses and transcriptions, and drop all audio.

        A session is a cycle of references, which Python may collect much later.
        """
        if self._state.speculation is not None:
            self._services.count_prepared(False)
        self.out_of_band.close()
        self._answers.close()
        for task in self._tasks:
            task.cancel()
        self._transcriber.drop()
        self._buffer.clear()
        self.conversation.items.clear()

    # -- turns -----------------------------------------------------------------------------------
    def _advance_turns(self, event: events.Event) -> str | None:
        """Advance the turns and carry out their actions. Return the code of a refusal, or None."""
        refused = None
        self._state, actions = advance(self._state, event)
        for action in actions:
            if isinstance(action, events.Refuse):
                refused = action.code
            else:
                self._do(action)
        for counted in turn_events(actions):
            self._services.count_turn(counted)
        return refused

    def _do(self, action: events.Action) -> None:
        match action:
            case events.SpeechStarted(start_ms):
                self._turn_id = new_item_id()
                self._emit(
                    "input_audio_buffer.speech_started",
                    audio_start_ms=start_ms,
                    item_id=self._turn_id,
                )
            case events.SpeechStopped(end_ms, silence_ms):
                now_s = time.monotonic()
                self._heard_s = {"speech": now_s - silence_ms / 1000, "turn_end": now_s}
                self._emit(
                    "input_audio_buffer.speech_stopped",
                    audio_end_ms=end_ms,
                    item_id=self._turn_id,
                    silence_ms=silence_ms,
                )
            case events.CommitInput(start_ms, end_ms, awaits_words):
                self._commit(start_ms, end_ms, awaits_words=awaits_words)
            case events.TimedOut(start_ms, end_ms):
                self._turn_id = new_item_id()
                self._emit(
                    "input_audio_buffer.timeout_triggered",
                    audio_start_ms=start_ms,
                    audio_end_ms=end_ms,
                    item_id=self._turn_id,
                )
                self._commit(start_ms, end_ms, is_silent=True)
            case events.CompleteTranscript():
                self._transcriber.complete()
            case events.Speculate(number):
                self._speculate(number)
            case events.Discard(number):
                self._prepared.pop(number, None)
                self._maker.transcripts.pop(self._unsaid_id, None)
                self._answers.discard(number)
                self._services.count_prepared(False)
                self._listen_again()
                self._transcriber.drop_prepared()
            case events.Respond(number):
                self._respond(number)
            case events.Pause(number):
                self._answers[number].pause()
            case events.Resume(number):
                self._answers[number].resume()
            case events.Finish(number, status, reason):
                self._answers.finish(number, status, reason)
            case events.Truncate(number, played_ms):
                if self._speaker is not None:
                    self._speaker.clear()
                self._answers.truncate(number, played_ms)

    # -- what the user says ----------------------------------------------------------------------
    def _listen(self, frame: SpeechFrame) -> None:
        """Start to transcribe a stretch of speech, including its prefix padding."""
        state = self._state
        if state.speech is None:
            if state.turn_ms is None:
                self._transcriber.drop()
        elif self._transcriber.is_listening:
            self._transcriber.feed(frame.samples, self._buffer.frame_ms(frame))
        elif state.speculation is None and not (state.turn_ms is None and state.speech.is_ended):
            # otherwise all of it is already being transcribed
            self._listen_again()

    def _listen_again(self) -> None:
        """Transcribe the turn from its beginning: its previous transcription was closed."""
        state = self._state
        setting = transcription_of(self._services, self.settings)
        if setting is None or state.speech is None or state.detection is None:
            return
        start_ms = state.turn_ms
        if start_ms is None:
            prefix_ms = state.detection.prefix_padding_ms
            start_ms = state.rules.turn_start_ms(state.speech, prefix_ms)
        samples = self._buffer.samples(start_ms, state.now_ms)
        self._transcriber.start_transcription(setting, samples, state.now_ms)

    def _take_text(self, text: str, stable: str, is_whole: bool) -> None:
        if is_whole:
            self._advance_turns(events.LiveTranscript(text))
        if self._is_transcribed() and self._state.turn_ms is not None:
            self._words.send_new_words(self._turn_id, " ".join(stable.split()[:-_UNSURE_WORDS]))

    def _take_transcript(self, text: str) -> None:
        self._advance_turns(events.LiveTranscript(text, is_final=True))

    def _is_transcribed(self) -> bool:
        return self.settings.audio.input.transcription is not None

    def _transcribe(self, start_ms: int, end_ms: int) -> asyncio.Future[str]:
        """Return the transcript of some audio, from the live transcription if there is one."""
        if (transcript := self._transcriber.finish_transcription()) is not None:
            return transcript
        setting = transcription_of(self._services, self.settings)
        if setting is None:
            return empty_transcript()
        return self._transcriber.transcribe(setting, self._buffer.samples(start_ms, end_ms))

    def _commit(
        self, start_ms: int, end_ms: int, *, is_silent: bool = False, awaits_words: bool = False
    ) -> None:
        """Turn the audio between two positions into an item."""
        content = self._buffer.content(start_ms, end_ms)
        item = Item("message", self._turn_id or new_item_id(), "user", [content])
        self._turn_id = ""
        if is_silent:
            transcript = empty_transcript()
        elif self._prepared:
            _, transcript = self._prepared.popitem()
        else:
            transcript = self._transcribe(start_ms, end_ms)
        self._transcriber.end_turn()
        previous = self.conversation.append(item)
        if self._turn_speakers is None:
            report = self._report_transcript(item, transcript, awaits_words)
        else:
            samples = self._buffer.samples(start_ms, end_ms)
            report = self._report_speakers(item, transcript, samples, start_ms)
        self._buffer.drop(end_ms)
        self._emit("input_audio_buffer.committed", previous_item_id=previous, item_id=item.item_id)
        self._emit("conversation.item.added", previous_item_id=previous, item=item.as_json())
        self._emit("conversation.item.done", previous_item_id=previous, item=item.as_json())
        self._maker.transcripts[item.item_id] = transcript
        times_s = self._heard_s
        transcript.add_done_callback(lambda _: times_s.setdefault("transcript", time.monotonic()))
        task = asyncio.create_task(report)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _report_transcript(
        self, item: Item, transcript: asyncio.Future[str], awaits_words: bool
    ) -> None:
        try:
            text = await self._words.follow(item, transcript, self._is_transcribed)
        finally:
            self._maker.transcripts.pop(item.item_id, None)
        if awaits_words:
            self._advance_turns(events.Transcript(text))

    async def _report_speakers(
        self, item: Item, transcript: asyncio.Future[str], samples: Float32, start_ms: int
    ) -> None:
        speakers, setting = self._turn_speakers, transcription_of(self._services, self.settings)
        assert speakers is not None
        if setting is not None:
            with suppress(IzwiError):  # reported with the transcript
                segments = await speakers.segments(setting, samples, transcript)
                self._words.send_segments(item, segments, start_ms / 1000)
        await self._report_transcript(item, transcript, awaits_words=False)

    # -- what is answered ------------------------------------------------------------------------
    def _speculate(self, number: int) -> None:
        state = self._state
        assert state.turn_ms is not None
        transcript = self._transcribe(state.turn_ms, state.now_ms)
        transcript.add_done_callback(lambda done: self._take_prepared_text(number, done))
        self._prepared[number] = transcript
        content = self._buffer.content(state.turn_ms, state.now_ms)
        unsaid = Item("message", role="user", content=[content])
        self._unsaid_id = unsaid.item_id
        self._maker.transcripts[unsaid.item_id] = transcript
        self._make(number, [*self.conversation.remembered, unsaid])

    def _take_prepared_text(self, number: int, transcript: asyncio.Future[str]) -> None:
        """Pass the words before a prepared answer to the turn state machine."""
        is_known = not transcript.cancelled() and transcript.exception() is None
        if is_known and self._state.speculation == number and number in self._prepared:
            self._take_text(transcript.result(), "", True)

    def _respond(self, number: int) -> None:
        if number in self._answers:
            self._services.count_prepared(True)
        else:
            self._make(number, self.conversation.remembered)
        self._overlap.begin_answer()
        self._answers.release(number, self._heard_s)
        self._heard_s, self._created = {}, None

    def _make(self, number: int, items: Sequence[Item]) -> None:
        settings = self.settings
        assert isinstance(settings, RealtimeSettings)
        setting = self._maker.setting(settings)
        if self._created is not None:
            settings, setting, asked = self._created
            items = items if asked is None else asked
        conversation_id = self.conversation.conversation_id
        setting = replace(setting, conversation_id=conversation_id, session_id=settings.id)
        self._answers.make(number, settings, setting, items)

    def _ended(self, number: int, error: IzwiError | None) -> None:
        if error is not None:
            logger.warning("a response failed: %s", error)
        self._report_playback()
        self._advance_turns(events.Generated(number) if error is None else events.Failed(number))

    def _report_playback(self) -> None:
        if (answer := self._state.answer) is not None:
            response = self._answers[answer.number]
            self._advance_turns(
                events.Playback(answer.number, response.played_ms, response.sent_ms)
            )


def turn_events(actions: Sequence[events.Action]) -> list[TurnEvent]:
    """Return what is counted of one event's actions.

    Speech that ends an answer starts a turn in the same step; a client's cancellation does not.
    """
    kinds = set(map(type, actions))
    counted = [TurnEvent.ENDED] if events.CommitInput in kinds else []
    if {events.SpeechStarted, events.Truncate} <= kinds:
        counted.append(TurnEvent.CONFIRMED)
    if events.Resume in kinds:
        counted.append(TurnEvent.REFUTED)
    return counted
