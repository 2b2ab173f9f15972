"""A session that speaks text in pieces, with audio before the text is complete.

A session speaks its utterances one after the other. An utterance is the text up to `input.done`; it
becomes one audio file, or one for each sentence or clause. One that begins with `<speak` is SSML:
it is spoken when it is complete, as one file.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any

from msgspec import structs

from izwi.audio.encode import PCM_RATE, stream_encoder
from izwi.errors import InvalidRequest, TooLarge
from izwi.inputs.speech import SpeechInput
from izwi.model.alignment import AlignedWord
from izwi.model.capability import Capability
from izwi.request.input_stream import WritableFrontend
from izwi_api.schemas.alignment import word_json
from izwi_api.schemas.speech_stream import (
    InputCancel,
    InputDone,
    InputText,
    SessionClose,
    SessionConfig,
    StreamLimits,
    parse_message,
)
from izwi_api.services.context import Services
from izwi_api.services.speech.request import (
    Voice,
    check_texts,
    find_voice,
    ignored_fields,
    is_ssml,
    may_become_ssml,
    speech_input,
    ssml_speech,
)
from izwi_api.services.speech.synthesis import Speech, encoded_audio, open_speech, piece_seed
from izwi_api.services.speech.utterance import Setting, Utterance
from izwi_api.services.speech.word_times import PARAM as WORDS_PARAM
from izwi_api.services.speech.word_times import TimedSpeech, find_word_aligner
from izwi_api.services.speech.writer import SpeechWriter, open_speech_writer
from izwi_api.services.transcription.align import Aligner
from izwi_api.sessions.core import Message, Outbox
from izwi_api.sessions.errors import POLICY, SessionOver
from izwi_api.usage.metering import Charge


class SpeechSession:
    """A `Service` that speaks the text of one client.

    Args:
        session: The session that it serves.
        services: Models and voices.
        limits: What the client may send, and when.
        describe: Returns the message that reports an error.
    """

    def __init__(
        self,
        session: Outbox,
        services: Services,
        limits: StreamLimits,
        describe: Callable[[Exception], dict[str, object]],
    ):
        self._session, self._services, self._limits = session, services, limits
        self._describe = describe
        self._setting: Setting | None = None
        self._open: Utterance | None = None  # the one whose text is being written
        self._unsaid: deque[Utterance] = (
            deque()
        )  # not yet reported as done; the first one is being spoken
        self._num_utterances = 0
        self._is_closing = self._is_configuring = False
        self._changed, self._room = asyncio.Event(), asyncio.Event()
        self._begun_s = self._useful_s = time.monotonic()
        self._charge = Charge()  # for all text, as it arrives

    @property
    def is_busy(self) -> bool:
        """Whether the engine is working for the client."""
        return bool(self._unsaid) and self._unsaid[0].is_closed

    def start_session(self) -> None:
        """Do nothing: the client sends the first message."""

    def background_tasks(self) -> Sequence[Coroutine[Any, Any, None]]:
        """Return the task that speaks the utterances."""
        return (self._speak(),)

    def close(self) -> None:
        """Do nothing: `background_tasks` cleans up."""

    # -- input -----------------------------------------------------------------------------------
    async def handle_message(self, message: Message) -> None:
        """Handle a message; wait while too much text is still to be spoken."""
        if self._is_closing:
            return  # only disconnects are still of interest
        await self._handle(message if isinstance(message, str) else None)
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
        self._changed.set()

    async def _configure(self, config: SessionConfig) -> None:
        if self._open is not None:
            raise InvalidRequest("an utterance is still open; send input.done first", param="type")
        services = self._services
        model_name = config.model or services.registry.default(Capability.SPEAK)
        config = config.model_copy(update={"model": model_name})
        model = services.registry.speech(model_name)
        check_texts(config.model_copy(update={"input": "-"}), services.settings)
        timing = self._word_aligner(config) if config.word_timestamps else None
        ask = speech_input(config, await find_voice(services, model, config))
        if config.split_granularity == "none":
            if not isinstance(model.frontend, WritableFrontend):
                raise InvalidRequest(
                    f"{model_name!r} needs its sentences whole", param="split_granularity"
                )
            # The model's refusal is reported now, not after the first text.
            await asyncio.to_thread(model.frontend.text_stream, "check", model.name, ask)
        ignored = tuple(ignored_fields(model.frontend, config))
        self._setting = Setting(config, model.name, ask, timing, ignored)

    def _word_aligner(self, config: SessionConfig) -> tuple[Aligner, str | None]:
        if config.audio_encoding != "base64" or config.split_granularity == "none":
            raise InvalidRequest(
                "word_timestamps needs audio_encoding 'base64', and sentences or clauses",
                param=WORDS_PARAM,
            )
        return find_word_aligner(self._services.registry, config.language)

    def _write(self, text: str) -> None:
        limit = self._limits.utterance_chars
        if self._setting is not None and not self._setting.config.stream_audio:
            # its whole audio is backpressured
            limit = min(limit, self._services.settings.max_input_chars)
        num_chars = self._open.num_chars if self._open is not None else 0
        if num_chars + len(text) > limit:
            raise TooLarge(f"an utterance has at most {limit} characters", param="text")
        if not text:
            return
        is_new, utterance = self._open is None, self._utterance()
        self._charge.add(characters=len(text))
        utterance.write(text)
        if is_new or not text.isspace():
            self._useful_s = time.monotonic()

    def _utterance(self) -> Utterance:
        """The utterance that is being written; creates one if there is none."""
        if self._setting is None:
            raise InvalidRequest("the session is not configured; send session.config first")
        if self._open is None:
            self._open = Utterance(self._num_utterances, self._setting, self._room)
            self._num_utterances += 1
            self._unsaid.append(self._open)
        return self._open

    def _cancel(self) -> None:
        if not self._unsaid:
            raise InvalidRequest("there is no utterance to cancel", param="type")
        self.cancel_all()

    def cancel_all(self) -> None:
        """Stop speaking, and drop the pending text."""
        for utterance in self._unsaid:
            utterance.cancel()
        self._open = None

    def drop_open_text(self) -> None:
        """Stop the utterance whose text is still written; what was completed is still spoken."""
        if self._open is not None:
            self._open.cancel()
            self._open = None
            self._changed.set()

    def _is_full(self) -> bool:
        limits = self._limits
        num_chars = sum(utterance.num_pending for utterance in self._unsaid)
        return num_chars > limits.pending_chars or len(self._unsaid) > limits.pending_utterances

    # -- output ----------------------------------------------------------------------------------
    async def _speak(self) -> None:
        """Speak the utterances in order; end after the client has asked to close."""
        while True:
            while not self._unsaid:
                if self._is_closing:
                    return
                self._changed.clear()
                await self._changed.wait()
            utterance = self._unsaid[0]
            if not utterance.is_cancelled:
                await utterance.until_said(asyncio.create_task(self._say(utterance)))
            num_read, num_made = utterance.usage
            ignored = utterance.setting.ignored
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
                    **({"ignored": ignored} if ignored else {}),
                }
            )

    async def _say(self, utterance: Utterance) -> None:
        """Speak one utterance; its failure is reported, and does not end the session."""
        try:
            if is_ssml(await utterance.beginning(may_become_ssml)):
                await self._say_ssml(utterance)
            elif utterance.setting.config.split_granularity == "none":
                await self._say_whole(utterance)
            else:
                await self._say_units(utterance)
        except Exception as error:
            await self._send_error(error, utterance_index=utterance.index)
        while await utterance.next_piece() is not None:
            pass  # text that was written after it failed

    async def _say_whole(self, utterance: Utterance) -> None:
        text = await utterance.next_piece()
        while text is not None and not text.strip():
            text = await utterance.next_piece()
        if text is None:
            return
        setting = utterance.setting
        model = self._services.registry.speech(setting.model_name)
        async with await open_speech_writer(model, setting.ask, charged=False) as writer:
            feeding = asyncio.create_task(writer.feed(text, utterance.next_piece))
            try:
                await self._send_file(writer, utterance, None)
            finally:
                feeding.cancel()
                writer.abort()
                await asyncio.gather(feeding, return_exceptions=True)

    async def _say_ssml(self, utterance: Utterance) -> None:
        """Speak a document as one file, once it is complete."""
        setting, services = utterance.setting, self._services
        text = await utterance.whole(services.settings.max_input_chars)
        if setting.timing is not None:
            raise InvalidRequest("words of SSML have no times", param=WORDS_PARAM)
        model = services.registry.speech(setting.model_name)

        async def own_voice() -> Voice:
            return setting.ask.voice

        ask = structs.replace(setting.ask, text=text)
        parts = await ssml_speech(services, model, ask, own_voice)
        spoken = " ".join(part.text for part in parts if isinstance(part, SpeechInput))
        async with await open_speech(model, parts, charged=False) as speech:
            await self._send_file(speech, utterance, spoken)

    async def _say_units(self, utterance: Utterance) -> None:
        setting, services = utterance.setting, self._services
        model = services.registry.speech(setting.model_name)
        async with aclosing(utterance.units(services.settings.max_input_chars)) as units:
            async for unit in units:
                seed = piece_seed(setting.ask.seed, utterance.num_files)
                ask = structs.replace(setting.ask, text=unit, seed=seed)
                async with await open_speech(model, ask, charged=False) as speech:
                    if setting.timing is None:
                        await self._send_file(speech, utterance, unit)
                        continue
                    speed = setting.config.speed
                    async with TimedSpeech(speech, *setting.timing, speed) as timed:
                        await self._send_file(timed, utterance, unit)

    async def _send_file(
        self, output: Speech | TimedSpeech | SpeechWriter, utterance: Utterance, text: str | None
    ) -> None:
        """Send an utterance as one file, after its text or the part written when it starts."""
        config = utterance.setting.config
        place = {"utterance_index": utterance.index, "sentence_index": utterance.num_files}
        encoder = stream_encoder(config.response_format, output.sample_rate)
        rate = PCM_RATE if config.response_format == "pcm" else output.sample_rate
        file = AudioMessages(self._send_audio, config, place)

        async def send_start() -> None:
            utterance.num_files += 1
            await file.send_start(utterance.shown if text is None else text, rate)

        try:
            async with aclosing(encoded_audio(output, encoder, config.speed)) as pieces:
                async for piece in pieces:
                    if not file.is_begun:
                        await send_start()
                    if isinstance(output, TimedSpeech):
                        file.add_words(output.known())
                    await file.write(piece)
            if not file.is_begun:  # it has no audio
                await send_start()
            if isinstance(output, TimedSpeech):
                file.add_words(await output.rest())
            await file.end(False)
        except Exception as error:
            await self._send_error(error, **place)
            if file.is_begun:
                await file.end(True)
        finally:
            utterance.usage[0] += output.num_prompt_positions
            utterance.usage[1] += output.num_frames

    def report(self, error: Exception) -> None:
        """Report a bad message, or why the session ends."""
        self._session.put(json.dumps(self._describe(error)))

    async def _send_error(self, error: Exception, **place: int) -> None:
        await self._send({**self._describe(error), **place})

    async def _send(self, message: dict[str, object] | bytes) -> None:
        await self._session.send(message if isinstance(message, bytes) else json.dumps(message))

    async def _send_audio(self, message: dict[str, object] | bytes) -> None:
        await self._send(message)
        self._useful_s = time.monotonic()

    def tick(self, now_s: float) -> None:
        """End a session that is not configured, or that gets no text."""
        limits = self._limits
        if self.is_busy and not self._session.num_unread:
            self._useful_s = now_s
        is_late = now_s - self._begun_s >= limits.config_s and not self._is_configuring
        if self._setting is None and is_late:
            raise SessionOver("no session.config arrived", "config_timeout", POLICY)
        if self._open is not None and now_s - self._useful_s >= limits.text_s:
            raise SessionOver(
                f"no text except white space arrived for {limits.text_s:g} s; send "
                "input.done at the end of each utterance",
                "text_timeout",
                POLICY,
            )


# Sends JSON, or bytes unchanged.
Send = Callable[[dict[str, object] | bytes], Awaitable[None]]


class AudioMessages:
    """One audio file on its way to the client.

    Attributes:
        is_begun: The start message was sent.
    """

    def __init__(self, send: Send, config: SessionConfig, place: dict[str, int]):
        self.is_begun = False
        self._send, self._config, self._place = send, config, place
        self._num_bytes = self._num_messages = 0
        self._buffered = bytearray()
        self._words: list[AlignedWord] = []  # not sent yet

    async def send_start(self, text: str, rate: int) -> None:
        """Send the start message."""
        self.is_begun = True
        await self._send(
            {
                "type": "audio.start",
                **self._place,
                "sentence_text": text,
                "format": self._config.response_format,
                "sample_rate": rate,
                "channels": 1,
            }
        )

    async def write(self, piece: bytes) -> None:
        """Send the next bytes, or keep them for one message at the end."""
        self._num_bytes += len(piece)
        if self._config.stream_audio:
            await self._send_audio(piece)
        else:
            self._buffered += piece

    def add_words(self, words: Sequence[AlignedWord]) -> None:
        """Send the times of words with the next bytes, or at the end."""
        self._words += words

    async def end(self, failed: bool) -> None:
        """Send the end message, also after a failure."""
        if (self._buffered or self._words) and not failed:
            await self._send_audio(bytes(self._buffered))
        await self._send(
            {"type": "audio.done", **self._place, "total_bytes": self._num_bytes, "error": failed}
        )

    async def _send_audio(self, piece: bytes) -> None:
        if self._config.audio_encoding == "binary":
            await self._send(piece)
            return
        words, self._words = self._words, []
        chunk = {"chunk_id": self._num_messages, "audio_b64": base64.b64encode(piece).decode()}
        times = {"timestamps": list(map(word_json, words)) or None}
        self._num_messages += 1
        await self._send({"type": "audio.chunk", **self._place, **chunk, **times})
