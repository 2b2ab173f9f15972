"""WebSocket /v1/audio/speech/stream: text in pieces, audio before the text is complete.

A session says its utterances one after the other. An utterance is the text between two
`input.done`; it is one file of sound, or one for each sentence or clause. Three tasks run a
session: one reads messages, one speaks, one looks at the clock; the first to end ends it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from contextlib import aclosing, suppress

from fastapi import APIRouter, WebSocket, WebSocketDisconnect
from msgspec import structs
from pydantic import ValidationError

from izwi.audio.encode import PCM_RATE, stream_encoder
from izwi.capability import Capability
from izwi.errors import InvalidRequest, IzwiError, TooLarge
from izwi.input_stream import WritableModel
from izwi_api.http.app_state import AppState
from izwi_api.http.errors import body_of, error_body, invalid_body, is_internal
from izwi_api.http.usage import current_usage
from izwi_api.routes.speech import check_texts, find_voice, speech_input
from izwi_api.schemas.speech_stream import (
    InputCancel,
    InputDone,
    InputText,
    SessionClose,
    SessionConfig,
    StreamLimits,
    parse_message,
)
from izwi_api.services.align import Aligner
from izwi_api.services.context import Services
from izwi_api.services.sound_messages import SoundMessages
from izwi_api.services.speech import Speech, encoded_sound, open_speech, piece_seed
from izwi_api.services.speech_writer import SpeechWriter, open_speech_writer
from izwi_api.services.timed_speech import PARAM as WORDS_PARAM
from izwi_api.services.timed_speech import TimedSpeech, find_word_aligner
from izwi_api.services.utterance import Setting, Utterance

logger = logging.getLogger(__name__)
router = APIRouter()

LIMITS = StreamLimits()
_NORMAL, _POLICY, _INTERNAL = 1000, 1008, 1011  # codes of RFC 6455
# A client that reads nothing is not told why it is left.
_FAREWELL_S = 2.0


@router.websocket("/v1/audio/speech/stream")
async def stream_speech(socket: WebSocket) -> None:
    """Say text while it is written."""
    state: AppState = socket.app.state.izwi
    # A browser that offers protocols leaves unless one of them is taken.
    offered: list[str] = socket.scope.get("subprotocols", [])
    await socket.accept(offered[0] if offered else None)
    limits = LIMITS.under(state.services.settings)
    await _Session(socket, state.services, limits).run()


class _SessionOver(Exception):
    """The session ends with an error and a close code."""

    def __init__(self, message: str, code: str):
        super().__init__(message)
        self.code = code


class _Session:
    """One client's connection."""

    def __init__(self, socket: WebSocket, services: Services, limits: StreamLimits):
        self._socket, self._services, self._limits = socket, services, limits
        self._setting: Setting | None = None
        self._open: Utterance | None = None  # whose text is being written
        self._unsaid: deque[Utterance] = deque()  # not told to be done; the first is being said
        self._num_utterances = 0
        self._is_closing = self._is_configuring = False
        self._news, self._room = asyncio.Event(), asyncio.Event()
        self._num_sending = 0
        self._moved_s = self._useful_s = time.monotonic()
        self._usage = current_usage.get()
        if self._usage is not None:
            self._usage.counts_itself = True

    async def run(self) -> None:
        """Serve until the client leaves, or asks to close, or has to be left."""
        works = (self._read(), self._speak(), self._watch())
        tasks = {asyncio.create_task(work) for work in works}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        errors = [error for task in done if (error := task.exception()) is not None]
        if any(isinstance(error, WebSocketDisconnect) for error in errors):
            return
        # To a client that left in the meantime, or that reads nothing, there is no farewell.
        with suppress(WebSocketDisconnect, RuntimeError, TimeoutError):
            async with asyncio.timeout(_FAREWELL_S):
                await self._part(errors[0] if errors else None)

    async def _part(self, error: BaseException | None) -> None:
        if error is None:
            await self._socket.close(_NORMAL)
        elif isinstance(error, _SessionOver):
            reported = error_body(str(error), "invalid_request_error", code=error.code)
            await self._tell(reported)
            await self._socket.close(_POLICY, error.code)
        else:
            logger.error("a speech session failed", exc_info=error)
            await self._tell(error_body("internal error", "server_error", code="internal_error"))
            await self._socket.close(_INTERNAL)

    # -- what comes in ---------------------------------------------------------------------------
    async def _read(self) -> None:
        """Take messages until the client leaves; a bad one is answered and changes nothing."""
        num_bad = 0
        while True:
            event = await self._socket.receive()
            if event["type"] == "websocket.disconnect":
                raise WebSocketDisconnect(event.get("code", 1005))
            self._moved_s = time.monotonic()
            if self._is_closing:
                continue  # it still has to be seen that the client leaves
            try:
                await self._handle(event.get("text"))
            except Exception as error:
                num_bad += 1
                await self._tell(_error_of(error))
                if num_bad >= self._limits.bad_messages:
                    raise _SessionOver("too many bad messages", "too_many_errors") from error
            else:
                num_bad = 0
            while self._is_full():
                self._room.clear()
                await self._room.wait()

    async def _handle(self, text: str | None) -> None:
        match parse_message(text, self._limits):
            case SessionConfig() as config:
                self._is_configuring = True  # a clip may have to be fetched
                try:
                    await self._configure(config)
                finally:
                    self._is_configuring = False
            case InputText(text=piece):
                self._write(piece)
            case InputDone():
                self._utterance().close()
                self._open = None
            case InputCancel():
                self._cancel()
            case SessionClose():
                if self._open is not None:
                    self._open.close()
                self._is_closing = True
        self._news.set()

    async def _configure(self, config: SessionConfig) -> None:
        if self._open is not None:
            raise InvalidRequest("an utterance is not done; send input.done first", param="type")
        services = self._services
        model_name = config.model or services.registry.default(Capability.SPEAK)
        config = config.model_copy(update={"model": model_name})
        model = services.registry.speech(model_name)
        check_texts(config.model_copy(update={"input": "-"}), services.settings)
        timing = self._word_aligner(config) if config.word_timestamps else None
        ask = speech_input(config, await find_voice(services, config))
        if config.split_granularity == "none":
            if not isinstance(model, WritableModel):
                raise InvalidRequest(
                    f"{model_name!r} needs its sentences whole", param="split_granularity"
                )
            # What it refuses is said now, not after the first text.
            await asyncio.to_thread(model.text_stream, "check", model_name, ask)
        self._setting = Setting(config, model_name, ask, timing)

    def _word_aligner(self, config: SessionConfig) -> tuple[Aligner, str | None]:
        if config.audio_encoding != "base64" or config.split_granularity == "none":
            raise InvalidRequest(
                "word_timestamps come with audio_encoding 'base64', and with sentences or clauses",
                param=WORDS_PARAM,
            )
        return find_word_aligner(self._services.engine, self._services.registry, config.language)

    def _write(self, text: str) -> None:
        limit = self._limits.utterance_chars
        if self._setting is not None and not self._setting.config.stream_audio:
            # its whole sound is backpressured
            limit = min(limit, self._services.settings.max_input_chars)
        num_chars = self._open.num_chars if self._open is not None else 0
        if num_chars + len(text) > limit:
            raise TooLarge(f"an utterance has at most {limit} characters", param="text")
        if not text:
            return
        is_new, utterance = self._open is None, self._utterance()
        if self._usage is not None:
            self._usage.charge(characters=len(text))
        utterance.write(text)
        if is_new or not text.isspace():
            self._useful_s = time.monotonic()

    def _utterance(self) -> Utterance:
        """The utterance that is being written, a new one if there is none."""
        if self._setting is None:
            raise InvalidRequest("the session is not configured; send session.config first")
        if self._open is None:
            self._open = Utterance(self._num_utterances, self._setting, self._room)
            self._num_utterances += 1
            self._unsaid.append(self._open)
        return self._open

    def _cancel(self) -> None:
        if not self._unsaid:
            raise InvalidRequest("nothing is being said", param="type")
        for utterance in self._unsaid:
            utterance.cancel()
        self._open = None

    def _is_full(self) -> bool:
        limits = self._limits
        num_chars = sum(utterance.num_pending for utterance in self._unsaid)
        return num_chars > limits.pending_chars or len(self._unsaid) > limits.pending_utterances

    # -- what goes out ---------------------------------------------------------------------------
    async def _speak(self) -> None:
        """Say the utterances one after the other; ends when the client has asked to close."""
        while True:
            while not self._unsaid:
                if self._is_closing:
                    return
                self._news.clear()
                await self._news.wait()
            utterance = self._unsaid[0]
            if not utterance.is_cancelled:
                await utterance.until_said(asyncio.create_task(self._say(utterance)))
            num_read, num_made = utterance.usage
            self._unsaid.popleft()
            self._room.set()
            await self._send(
                {
                    "type": "session.done",
                    "utterance_index": utterance.index,
                    "total_sentences": utterance.num_files,
                    "cancelled": utterance.is_cancelled,
                    "usage": {
                        "input_tokens": num_read,
                        "output_tokens": num_made,
                        "total_tokens": num_read + num_made,
                    },
                }
            )

    async def _say(self, utterance: Utterance) -> None:
        """Say one utterance; its failure is told, and does not end the session."""
        try:
            if utterance.setting.config.split_granularity == "none":
                await self._say_whole(utterance)
            else:
                await self._say_units(utterance)
        except WebSocketDisconnect:
            raise
        except Exception as error:
            await self._tell(_error_of(error), utterance_index=utterance.index)
        while await utterance.take() is not None:
            pass  # what was written to it after it failed

    async def _say_whole(self, utterance: Utterance) -> None:
        text = await utterance.take()
        while text is not None and not text.strip():
            text = await utterance.take()
        if text is None:
            return
        setting, services = utterance.setting, self._services
        writer = await open_speech_writer(
            services.engine, services.registry, setting.model_name, setting.ask
        )
        feeding = asyncio.create_task(writer.feed(text, utterance.take))
        try:
            await self._send_file(writer, utterance, None)
        finally:
            feeding.cancel()
            writer.abort()
            await asyncio.gather(feeding, return_exceptions=True)

    async def _say_units(self, utterance: Utterance) -> None:
        setting, services = utterance.setting, self._services
        async with aclosing(utterance.units(services.settings.max_input_chars)) as units:
            async for unit in units:
                seed = piece_seed(setting.ask.seed, utterance.num_files)
                ask = structs.replace(setting.ask, text=unit, seed=seed)
                registry, name = services.registry, setting.model_name
                speech = await open_speech(services.engine, registry, name, ask)
                sound: Speech | TimedSpeech = speech
                if setting.timing is not None:
                    sound = TimedSpeech(speech, *setting.timing, setting.config.speed)
                try:
                    await self._send_file(sound, utterance, unit)
                finally:
                    sound.abort()

    async def _send_file(
        self, sound: Speech | TimedSpeech | SpeechWriter, utterance: Utterance, text: str | None
    ) -> None:
        """Send a sound as one file, after its text, or what is written of it when it begins."""
        config = utterance.setting.config
        place = {"utterance_index": utterance.index, "sentence_index": utterance.num_files}
        encoder = stream_encoder(config.response_format, sound.sample_rate)
        rate = PCM_RATE if config.response_format == "pcm" else sound.sample_rate
        file = SoundMessages(self._send_sound, config, place)

        async def begin() -> None:
            utterance.num_files += 1
            await file.begin(utterance.shown if text is None else text, rate)

        try:
            async with aclosing(encoded_sound(sound, encoder, config.speed)) as pieces:
                async for piece in pieces:
                    if not file.is_begun:
                        await begin()
                    if isinstance(sound, TimedSpeech):
                        file.add_words(sound.known())
                    await file.write(piece)
            if not file.is_begun:  # it was said in no time
                await begin()
            if isinstance(sound, TimedSpeech):
                file.add_words(await sound.rest())
            await file.end(False)
        except WebSocketDisconnect:
            raise
        except Exception as error:
            await self._tell(_error_of(error), **place)
            if file.is_begun:
                await file.end(True)
        finally:
            utterance.usage[0] += sound.num_prompt_positions
            utterance.usage[1] += sound.num_frames

    async def _tell(self, reported: dict[str, object], **place: int) -> None:
        """Send an error: OpenAI's object, and its message beside it for vLLM-Omni's clients."""
        error = reported["error"]
        assert isinstance(error, dict)
        await self._send({"type": "error", "message": error["message"], **reported, **place})

    async def _send(self, message: dict[str, object] | bytes) -> None:
        self._num_sending += 1
        try:
            if isinstance(message, bytes):
                await self._socket.send_bytes(message)
            else:
                await self._socket.send_json(message)
        finally:
            self._num_sending -= 1
        self._moved_s = time.monotonic()

    async def _send_sound(self, message: dict[str, object] | bytes) -> None:
        await self._send(message)
        self._useful_s = time.monotonic()

    async def _watch(self) -> None:
        """End a session that is not configured, in which nothing moves, or that lacks text."""
        begun_s, limits = self._moved_s, self._limits
        while True:
            now_s = time.monotonic()
            if self._unsaid and self._unsaid[0].is_closed and not self._num_sending:
                self._moved_s = self._useful_s = now_s  # it is the engine that has something to do
            is_late = now_s - begun_s >= limits.config_s and not self._is_configuring
            if self._setting is None and is_late:
                raise _SessionOver("no session.config came", "config_timeout")
            if now_s - self._moved_s >= limits.idle_s:
                raise _SessionOver("nothing was written or read for too long", "idle_timeout")
            if self._open is not None and now_s - self._useful_s >= limits.text_s:
                raise _SessionOver(
                    f"no text but white space was written for {limits.text_s:g} s; send "
                    "input.done where an utterance is complete",
                    "text_timeout",
                )
            await asyncio.sleep(min(1.0, min(limits.idle_s, limits.config_s, limits.text_s) / 4))


def _error_of(error: Exception) -> dict[str, object]:
    if isinstance(error, ValidationError):
        return invalid_body(list(error.errors()))
    if is_internal(error):
        logger.error("a speech session goes on after a failure", exc_info=error)
    if not isinstance(error, IzwiError):
        return error_body("internal error", "server_error", code="internal_error")
    reported = body_of(error)
    wait_s = getattr(error, "retry_after_s", None)
    if wait_s is not None:
        reported["retry_after_s"] = wait_s
    return reported
