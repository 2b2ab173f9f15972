"""Choose the models that answer a chat completion, and refuse what these cannot do."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from izwi.errors import InvalidRequest, InvalidValue, MissingParameter, UnsupportedParameter
from izwi.model.capability import Capability
from izwi.model.frontend import Frontend
from izwi_api.schemas.chat import ChatBody, TemplateOptions, TextFormat, check, check_images
from izwi_api.services.models.served import ServedModel, ServedModels


class Pipeline(Enum):
    """The models that answer one request.

    The values say in errors when it is chosen.

    Attributes:
        TEXT: A chat model.
        TRANSCRIBED: A transcription model, and a chat model that answers in text.
        CASCADE: A chat model and a speech model, and a transcription model if there is audio.
        SPEECH_TO_SPEECH: One model that hears and speaks.
    """

    TEXT = "for an answer in text to text"
    TRANSCRIBED = "for an answer to audio"
    CASCADE = "for an answer with audio"
    SPEECH_TO_SPEECH = "for an answer of a speech-to-speech model to audio, or with audio"


# Keys that the models do not support, with the values that have no effect; null never has one.
_NO_EFFECT: Mapping[Pipeline, Mapping[str, tuple[object, ...]]] = {
    Pipeline.TEXT: {
        "audio_temperature": (),
        "audio_top_k": (),
        "speech_model": (),
        "transcription_model": (),
    },
    Pipeline.TRANSCRIBED: {"audio_temperature": (), "audio_top_k": (), "store": (False,)},
    Pipeline.CASCADE: {
        "audio_temperature": (),
        "audio_top_k": (),
        "store": (False,),
        "n": (1,),
        "logprobs": (False,),
    },
    Pipeline.SPEECH_TO_SPEECH: {
        "speech_model": (),
        "transcription_model": (),
        "store": (False,),
        "n": (1,),
        "logprobs": (False,),
        "tools": ([],),
        "tool_choice": ("none", "auto"),
        "top_p": (1,),
        "min_p": (0,),
        "frequency_penalty": (0,),
        "presence_penalty": (0,),
        "repetition_penalty": (1,),
        "logit_bias": ({},),
        "enable_thinking": (False,),
        "chat_template_kwargs": (TemplateOptions(), TemplateOptions(enable_thinking=False)),
        "reasoning_effort": ("none",),
    },
}


def choose_pipeline(
    registry: ServedModels, body: ChatBody
) -> tuple[Pipeline, ServedModel[Frontend]]:
    """Return which models answer a request, by what it has and what its model can do.

    Returns:
        The pipeline, and the model that the request names, which is part of it.

    Raises:
        ModelNotFound: No such model.
        InvalidRequest: The models do not support a field, or two fields contradict each other.
    """
    check(body)
    plain = not (body.has_audio or body.has_images or body.speaks)
    model = None if plain else registry.model(body.model)  # else its fields are checked first
    if model is not None and body.has_images:
        check_images(body, sees=model.can(Capability.SEE))
    hears = body.has_audio or body.speaks
    pipeline = _pipeline(model, body) if model is not None and hears else Pipeline.TEXT
    if pipeline is Pipeline.SPEECH_TO_SPEECH:
        _check_spoken(body)
    for name, values in _NO_EFFECT[pipeline].items():
        value = getattr(body, name)
        if value is None or value in values:
            continue
        refused = InvalidValue if values else UnsupportedParameter
        raise refused(f"{name!r} is not supported {pipeline.value}", param=name)
    if pipeline is Pipeline.CASCADE and body.audio is not None and body.audio.voice is None:
        raise MissingParameter("missing required parameter: 'audio.voice'", param="audio")
    return pipeline, model or registry.model(body.model)


def _pipeline(model: ServedModel[Frontend], body: ChatBody) -> Pipeline:
    able = model.frontend.capabilities
    if Capability.CONVERSE in able or Capability.CHAT not in able:
        return Pipeline.SPEECH_TO_SPEECH
    return Pipeline.CASCADE if body.speaks else Pipeline.TRANSCRIBED


def _check_spoken(body: ChatBody) -> None:
    if body.stop:
        raise InvalidRequest(
            "`stop` is not supported by a speech-to-speech model: it speaks text after writing "
            "it, so cutting the text would also cut audio that belongs to the answer",
            param="stop",
        )
    if not isinstance(body.response_format, TextFormat | None):
        raise InvalidRequest(
            "`response_format` is not supported by a speech-to-speech model: it would speak "
            "the JSON",
            param="response_format",
        )
    if any(message.role == "tool" or message.tool_calls for message in body.messages):
        raise InvalidValue(
            "a speech-to-speech model has no tools: messages must be of the roles 'system', "
            "'developer', 'user' or 'assistant', without tool_calls",
            param="messages",
        )
