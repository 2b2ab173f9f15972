"""Choose models, voice and prompt for a session's responses, from its settings."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from izwi.errors import InvalidRequest, ModelNotFound, VoiceNotFound
from izwi.inputs.chat import NO_PARAMETERS, ChatInput, ToolChoice
from izwi.inputs.conversation import ConversationInput
from izwi.inputs.speech import SpeechInput
from izwi.model.capability import Capability
from izwi.model.frontend import ChatFrontend, ConversationFrontend, SpeechFrontend
from izwi_api.realtime.answering.context_window import answer_room, open_within
from izwi_api.realtime.answering.live_answer import LiveAnswer
from izwi_api.realtime.answering.response import ResponseSetting
from izwi_api.realtime.answering.speech_to_speech import spoken_turns
from izwi_api.realtime.hearing.input_audio import LiveTranscriber
from izwi_api.realtime.hearing.noise import reduces_noise
from izwi_api.realtime.protocol.client_events import ResponseOptions
from izwi_api.realtime.protocol.errors import EventError
from izwi_api.realtime.protocol.formats import WireFormat
from izwi_api.realtime.protocol.items import Content, Item, chat_messages, parse_item
from izwi_api.realtime.protocol.settings import (
    FunctionChoice,
    RealtimeSettings,
    Settings,
    Transcription,
    retention_of,
    updated,
    wire_format,
)
from izwi_api.realtime.protocol.speaking_rate import SpeakingRates
from izwi_api.services.chat.cascade import Voice, open_spoken_answer
from izwi_api.services.chat.images import with_pixels
from izwi_api.services.chat.speech_to_speech import open_conversation
from izwi_api.services.context import Services
from izwi_api.services.models.served import ServedModel
from izwi_api.services.speakers.live import check_speakers
from izwi_api.services.speech.writer import default_writable_model
from izwi_api.services.transcription.live import default_streaming_model
from izwi_api.services.voices.names import resolve_voice

_SEED_BITS = 63
# OpenAI's transcription models: clients send these names by default, so any model may serve them.
_OPENAI_TRANSCRIBERS = ("whisper-", "gpt-")


class ResponseMaker:
    """Starts answers for one session.

    Attributes:
        transcripts: Item id -> the transcription of it that is in progress.
    """

    def __init__(self, services: Services):
        self._services = services
        self._rates = SpeakingRates()
        self.transcripts: dict[str, asyncio.Future[str]] = {}

    def setting(
        self, settings: RealtimeSettings, options: ResponseOptions | None = None
    ) -> ResponseSetting:
        """Return the settings for a response, derived from those of the session."""
        output = settings.audio.output
        with_audio = settings.output_modalities == ["audio"]
        max_tokens = settings.max_output_tokens
        lead_ms = output.lead_ms
        if lead_ms is None:
            lead_ms = self._services.settings.live_lead_ms
        return ResponseSetting(
            wire=wire_format(output.format) if with_audio else None,
            voice=output.voice,
            speed=output.speed,
            lead_ms=lead_ms or None,
            in_conversation=options is None or options.conversation != "none",
            max_tokens=None if max_tokens == "inf" else max_tokens,
            metadata=None if options is None else options.metadata,
            rates=self._rates,
            pace=self._services.pace,
        )

    async def open_answer(
        self, settings: RealtimeSettings, setting: ResponseSetting, items: Sequence[Item]
    ) -> LiveAnswer:
        """Start an answer to items, or to the last of them that fit. Raises IzwiError."""
        model = self._services.registry.model(settings.model)
        start: Callable[..., Awaitable[LiveAnswer]] = (
            partial(self._open_conversation, model.as_conversation())
            if model.can(Capability.CONVERSE)
            else partial(self._open_cascade, model.as_chat())
        )
        size = model.frontend.max_positions
        most_tokens = size - answer_room(size, setting.max_tokens)
        retention = retention_of(settings)
        return await open_within(items, retention, most_tokens, partial(start, settings, setting))

    async def _open_conversation(
        self,
        model: ServedModel[ConversationFrontend],
        settings: RealtimeSettings,
        setting: ResponseSetting,
        items: Sequence[Item],
    ) -> LiveAnswer:
        ask = ConversationInput(
            spoken_turns(items),
            speaks=setting.wire is not None,
            seed=_seed(settings),
            max_new_tokens=setting.max_tokens,
            instructions=settings.instructions,
        )
        return await open_conversation(model, ask)

    async def _open_cascade(
        self,
        model: ServedModel[ChatFrontend],
        settings: RealtimeSettings,
        setting: ResponseSetting,
        items: Sequence[Item],
    ) -> LiveAnswer:
        """Start the answer of a cascade once all items are transcribed."""
        services = self._services
        for item in items:
            if (transcript := self.transcripts.get(item.item_id)) is not None:
                item.content[0].text = await asyncio.shield(transcript)
                self.transcripts.pop(item.item_id, None)
            for part in item.content:
                await self._transcribe(settings, part)
        voice = None
        if setting.wire is not None:
            speaks = _voice_model(services)
            chosen = await find_voice(services, speaks, setting.voice)
            voice = Voice(speaks, SpeechInput("", voice=chosen, seed=_seed(settings)))
        ask = await with_pixels(services, model, _chat_input(settings, setting, items))
        return await open_spoken_answer(model, ask, voice)

    async def _transcribe(self, settings: RealtimeSettings, part: Content) -> None:
        """Write down audio that the client inserted, the first time that it is needed."""
        if part.is_transcribed:
            return
        setting = transcription_of(self._services, settings)
        if setting is None:
            raise ModelNotFound("no model that transcribes is served", param="item.content")
        listener = LiveTranscriber(self._services, setting, lambda *_: None)
        try:
            listener.feed(part.read_samples())
            part.text = await listener.finish()
        finally:
            listener.close()
        part.is_transcribed = True


def _seed(settings: RealtimeSettings) -> int:
    return secrets.randbits(_SEED_BITS) if settings.seed is None else settings.seed


def check_images(services: Services, model_name: str, items: Sequence[Item]) -> None:
    """Check that a model sees, if items have images. Raises EventError and ModelNotFound."""
    shows = any(part.image is not None for item in items for part in item.content)
    if shows and not services.registry.model(model_name).can(Capability.SEE):
        raise EventError(
            f"model {model_name!r} cannot see images", "invalid_value", param="item.content"
        )


def takes_audio(services: Services, model_name: str) -> bool:
    """Return whether the model is speech-to-speech. Raises ModelNotFound."""
    return services.registry.model(model_name).can(Capability.CONVERSE)


async def find_voice(
    services: Services, model: ServedModel[SpeechFrontend], name: str | None
) -> Any:
    """Return a voice of a speech model; None selects its first speaker. Raises VoiceNotFound."""
    if name is not None:
        return await resolve_voice(services, model, name)
    speakers = model.frontend.speakers
    return speakers[0] if speakers else None


def _voice_model(services: Services) -> ServedModel[SpeechFrontend]:
    """Return the speech model, preferably one with streamed text input."""
    try:
        name = default_writable_model(services.registry)
    except ModelNotFound:
        name = services.registry.default(Capability.SPEAK)
    return services.registry.speech(name)


def transcription_of(services: Services, settings: Settings) -> Transcription | None:
    """Return how to transcribe the user's audio; None if no served model transcribes."""
    chosen = settings.audio.input.transcription or Transcription()
    name, registry = chosen.model, services.registry
    if name is None or name.startswith(_OPENAI_TRANSCRIBERS):
        try:
            name = default_streaming_model(registry)
        except ModelNotFound:
            return None
    return msgspec.structs.replace(chosen, model=name)


async def check_settings(services: Services, settings: Settings) -> None:
    """Validate settings that depend on the models. Raises InvalidRequest or a subclass."""
    await _check_speakers(services, settings)
    transcription = transcription_of(services, settings)
    if transcription is not None:
        services.registry.transcription(transcription.model or "")
    elif not isinstance(settings, RealtimeSettings):
        raise ModelNotFound("no model that transcribes is served", param="session.audio.input")
    if not isinstance(settings, RealtimeSettings):
        return
    if takes_audio(services, settings.model):
        if settings.tools:
            message = f"{settings.model!r} is a speech-to-speech model and cannot call functions"
            raise InvalidRequest(message, param="session.tools")
    elif settings.audio.output.voice is not None:
        model = _voice_model(services)
        try:
            await find_voice(services, model, settings.audio.output.voice)
        except VoiceNotFound as error:
            error.param = "session.audio.output.voice"
            raise


def ignored_settings(services: Services, settings: Settings) -> list[str]:
    """Return the settings that were given and have no effect on this server, by their paths."""
    given = settings.audio.input
    ignored = []
    if given.noise_reduction is not None and given.noise_reduction.type and not reduces_noise():
        ignored.append("session.audio.input.noise_reduction")
    asked = given.transcription
    if asked is None or (transcription := transcription_of(services, settings)) is None:
        return ignored
    model = services.registry.transcription(transcription.model or "")
    if not model.frontend.follows_context:
        place = "session.audio.input.transcription"
        words = {"prompt": asked.prompt, "keywords": "".join(asked.keywords or ())}
        ignored += [f"{place}.{name}" for name, text in words.items() if (text or "").strip()]
    return ignored


async def _check_speakers(services: Services, settings: Settings) -> None:
    transcription = settings.audio.input.transcription
    try:
        setting = None if transcription is None else transcription.speaker_setting
        if setting is None:
            return
        if isinstance(settings, RealtimeSettings):
            message = "speakers are told apart in transcription sessions only"
            raise InvalidRequest(message, param="speakers")
        await check_speakers(services, setting)
    except InvalidRequest as error:
        error.param = f"session.audio.input.transcription.{error.param}"
        raise


async def response_settings(
    services: Services, settings: RealtimeSettings, options: ResponseOptions
) -> RealtimeSettings:
    """Merge a response's options into the session's settings. Raises InvalidRequest."""
    changes: dict[str, Any] = {}
    for name in ("audio", "instructions", "max_output_tokens", "output_modalities",
                 "tool_choice", "tools", "parallel_tool_calls"):  # fmt: skip
        value = getattr(options, name)
        if value is not None:
            changes[name] = value
    try:
        changed = updated(settings, changes)
        assert isinstance(changed, RealtimeSettings)
        await check_settings(services, changed)
    except InvalidRequest as error:
        error.param = (error.param or "").replace("session", "response", 1) or None
        raise
    _check_tool_choice(changed)
    return changed


def _check_tool_choice(settings: RealtimeSettings) -> None:
    """Check that the functions to call are there. Raises InvalidRequest."""
    choice, names = settings.tool_choice, [tool.name for tool in settings.tools]
    if isinstance(choice, FunctionChoice) and choice.name not in names:
        message = f"tool_choice names a function that is not in tools: {choice.name!r}"
        raise InvalidRequest(message, param="response.tool_choice")
    if choice == "required" and not names:
        message = "tool_choice requires a call, but there are no tools"
        raise InvalidRequest(message, param="response.tool_choice")


def response_items(
    options: ResponseOptions, known: Mapping[str, Item], wire: WireFormat
) -> list[Item] | None:
    """Return the input items of a response, or None to use the conversation.

    Args:
        options: What the client asked for.
        known: The items of the conversation, by id.
        wire: Format of audio in items.

    Raises:
        InvalidRequest: An item is invalid, or refers to an unknown item.
    """
    if not isinstance(options.input, list):
        return None
    items = []
    for value in options.input:
        if value.get("type") == "item_reference":
            item = known.get(str(value.get("id")))
            if item is None:
                raise InvalidRequest("no item has this id", param="response.input.id")
            items.append(item)
        else:
            items.append(parse_item(value, wire))
    return items


def _chat_input(
    settings: RealtimeSettings, setting: ResponseSetting, items: Sequence[Item]
) -> ChatInput:
    choice = settings.tool_choice
    name, kind = None, ToolChoice.REQUIRED
    if isinstance(choice, FunctionChoice):
        name = choice.name
    else:
        kind = ToolChoice(choice)
    tools = ""
    if settings.tools:
        functions = [
            {
                "type": "function",
                "function": {
                    "name": tool.name,
                    "description": tool.description or "",
                    "parameters": tool.parameters or NO_PARAMETERS,
                },
            }
            for tool in settings.tools
        ]
        tools = msgspec.json.encode(functions).decode()
    return ChatInput(
        chat_messages(items, settings.instructions),
        seed=_seed(settings),
        max_new_tokens=setting.max_tokens,
        tools=tools,
        tool_choice=kind,
        tool_name=name,
        parallel_tool_calls=settings.parallel_tool_calls is not False,
    )
