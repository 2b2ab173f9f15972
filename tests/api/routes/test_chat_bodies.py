"""One body for text and audio: its parts, its schema, and which models answer it."""

from __future__ import annotations

import base64
from types import SimpleNamespace

import httpx
import pytest

from izwi.errors import InvalidRequest, ModelNotFound
from izwi.inputs.conversation import AnswerContent
from izwi.model.capability import Capability
from izwi_api.schemas.chat import ChatBody
from izwi_api.schemas.chat_messages import AudioPart, ImagePart, RefusalPart, TextPart
from izwi_api.serve.app import create_app
from izwi_api.services.chat.pipeline import Pipeline, choose_pipeline
from izwi_api.services.models.served import ServedModels
from izwi_api.services.store.answers import StoredAnswers
from izwi_api.settings import Settings
from tests.api.conftest import FakeChat, FakeEngine, FakeRegistry, FakeTranscription, listening

PATH = "/v1/chat/completions"


TEXT = {"type": "text", "text": "hm"}
AUDIO = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
REFUSAL = {"type": "refusal", "refusal": "No."}
ALOUD = {"modalities": ["text", "audio"], "audio": {"voice": "Ann", "format": "wav"}}


def body_of(*messages, **more) -> dict:
    return {"model": "chat", "messages": list(messages), **more}


def user(*parts) -> dict:
    return {"role": "user", "content": list(parts)}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    registry = FakeRegistry(chat=FakeChat(), asr=FakeTranscription())
    app = create_app(FakeEngine(), registry, Settings(home=home))
    with (
        listening(app) as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http,
    ):
        yield SimpleNamespace(http=http, app=app, asked=registry.models["chat"].asked)


def post(world, *messages, **more) -> dict:
    return world.http.post(PATH, json=body_of(*messages, **more)).json()


# -- parts -----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("part", "kind"),
    [(TEXT, TextPart), (AUDIO, AudioPart), (IMAGE, ImagePart), (REFUSAL, RefusalPart)],
)
def test_each_part_comes_back_as_it_was_sent(part, kind):
    message = ChatBody.model_validate(body_of(user(part))).messages[0]
    assert [type(each) for each in message.parts] == [kind]
    assert message.model_dump(exclude_unset=True) == user(part)


def test_text_audio_and_refusals_are_answered(world, tone_wav):
    said, data = {"role": "assistant", "content": [REFUSAL]}, base64.b64encode(tone_wav(2.0))
    heard = {"type": "input_audio", "input_audio": {"data": data.decode(), "format": "wav"}}
    answer = post(world, user(TEXT), said, user(TEXT, heard))
    assert answer["choices"][0]["message"]["content"] == "hm\nword word"
    assert [message.content for message in world.asked[-1].messages] == [
        "hm",
        "No.",
        "hm\nword word",
    ]


@pytest.mark.parametrize("image", [IMAGE, {"type": "image_url"}, IMAGE | {"image_url": "a"}])
@pytest.mark.parametrize("more", [{}, ALOUD])
def test_an_image_is_refused_by_its_place(world, image, more):
    said = {"role": "assistant", "content": "hm"}
    error = post(world, user(TEXT), said, user(AUDIO, image), **more)["error"]
    assert error["param"] == "messages[2].content[1]"
    assert "'image_url'" in error["message"]
    assert error["code"] == "invalid_value"


@pytest.mark.parametrize(
    ("content", "code", "message"),
    [
        (3, "invalid_value", "a string or a list of parts"),
        (["a"], "invalid_value", "a part must be an object whose type is"),
        ([TEXT, {"type": "file"}], "invalid_value", "'text' or 'input_audio'"),
        ([{"type": []}], "invalid_value", "'text' or 'input_audio'"),
        ([{"text": "a"}], "invalid_value", "'text' or 'input_audio'"),
        ([TEXT, {"type": "text"}], "missing_required_parameter", "'messages[0].content[1].text'"),
        ([TEXT | {"x": 1}], "unknown_parameter", "'messages[0].content[0].x'"),
        ([{"type": "refusal"}], "missing_required_parameter", "'messages[0].content[0].refusal'"),
        (
            [{"type": "input_audio", "input_audio": {"data": "a"}}],
            "missing_required_parameter",
            "'messages[0].content[0].format'",
        ),
    ],
)
def test_a_part_that_is_none_says_where(world, content, code, message):
    error = post(world, {"role": "user", "content": content})["error"]
    assert (error["param"], error["code"]) == ("messages", code)
    assert message in error["message"]


# -- the schema ------------------------------------------------------------------------------
def test_one_schema_describes_all_bodies(world):
    described = world.app.openapi()["paths"][PATH]["post"]["requestBody"]["content"]
    assert list(described) == ["application/json"]
    schema = described["application/json"]["schema"]
    assert schema["title"] == "ChatBody"
    keys = {"messages", "modalities", "audio", "speech_model", "audio_temperature", "tools", "stop"}
    assert keys <= set(schema["properties"])
    message = schema["properties"]["messages"]["items"]["properties"]
    string, parts, null = message["content"]["anyOf"]
    assert (string, null) == ({"type": "string"}, {"type": "null"})
    kinds = [part["properties"]["type"]["const"] for part in parts["items"]["oneOf"]]
    assert kinds == ["text", "input_audio", "image_url", "refusal"]
    assert message["audio"]["anyOf"][0]["required"] == ["id"]


# -- which models answer ---------------------------------------------------------------------
S2S = SimpleNamespace(capabilities=(Capability.CONVERSE, Capability.CHAT))
FAKES = FakeRegistry(chat=FakeChat(), s2s=S2S, asr=FakeTranscription())
MODELS = ServedModels(FakeEngine(), FAKES)
GIVEN = {"role": "assistant", "audio": {"id": "audio_1"}}


@pytest.mark.parametrize(
    ("model", "message", "more", "chosen"),
    [
        ("chat", user(TEXT), {}, Pipeline.TEXT),
        ("s2s", user(TEXT), {}, Pipeline.TEXT),
        ("chat", user(AUDIO), {}, Pipeline.TRANSCRIBED),
        ("chat", GIVEN, {}, Pipeline.TRANSCRIBED),
        ("chat", user(TEXT), ALOUD, Pipeline.CASCADE),
        ("chat", user(AUDIO), ALOUD, Pipeline.CASCADE),
        ("s2s", user(AUDIO), {}, Pipeline.SPEECH_TO_SPEECH),
        ("s2s", GIVEN, {}, Pipeline.SPEECH_TO_SPEECH),
        ("s2s", user(TEXT), ALOUD, Pipeline.SPEECH_TO_SPEECH),
        ("asr", user(AUDIO), {}, Pipeline.SPEECH_TO_SPEECH),  # which the registry refuses
    ],
)
def test_the_models_are_chosen_by_what_is_asked(model, message, more, chosen):
    body = ChatBody.model_validate(body_of(message, **more) | {"model": model})
    pipeline, named = choose_pipeline(MODELS, body)
    assert (pipeline, named.name) == (chosen, model)


@pytest.mark.parametrize("message", [user(TEXT), user(AUDIO)])
def test_an_unknown_model_is_not_found(message):
    body = ChatBody.model_validate(body_of(message) | {"model": "nobody"})
    with pytest.raises(ModelNotFound):
        choose_pipeline(MODELS, body)


INVALID, UNSUPPORTED = "invalid_value", "unsupported_parameter"


@pytest.mark.parametrize(
    ("model", "field", "refused", "accepted", "code"),
    [
        ("chat", "store", True, False, INVALID),
        ("chat", "n", 2, 1, INVALID),
        ("chat", "logprobs", True, False, INVALID),
        ("chat", "audio_top_k", 4, None, UNSUPPORTED),
        ("s2s", "store", True, False, INVALID),
        ("s2s", "top_p", 0.9, 1, INVALID),
        ("s2s", "logit_bias", {"3": 1}, {}, INVALID),
        ("s2s", "presence_penalty", 0.5, 0, INVALID),
        ("s2s", "repetition_penalty", 1.1, 1.0, INVALID),
        ("s2s", "enable_thinking", True, False, INVALID),
        ("s2s", "chat_template_kwargs", {"enable_thinking": True}, {}, INVALID),
        ("s2s", "reasoning_effort", "high", "none", INVALID),
        ("s2s", "transcription_model", "asr", None, UNSUPPORTED),
    ],
)
def test_what_the_models_do_not_support_is_refused_unless_it_has_no_effect(
    model, field, refused, accepted, code
):
    body = body_of(user(TEXT), **ALOUD) | {"model": model}
    assert choose_pipeline(MODELS, ChatBody.model_validate(body | {field: accepted}))
    with pytest.raises(InvalidRequest, match=field) as reported:
        choose_pipeline(MODELS, ChatBody.model_validate(body | {field: refused}))
    assert (reported.value.param, reported.value.code) == (field, code)


@pytest.mark.parametrize("field", ["audio_temperature", "speech_model", "transcription_model"])
def test_an_answer_in_text_has_no_audio_to_set(world, field):
    value = 1.0 if field == "audio_temperature" else "asr"
    error = post(world, user(TEXT), **{field: value})["error"]
    assert (error["param"], error["code"]) == (field, UNSUPPORTED)


def test_a_chat_models_spoken_answer_needs_a_voice(world):
    error = post(world, user(TEXT), **(ALOUD | {"audio": {"format": "wav"}}))["error"]
    assert (error["param"], error["code"]) == ("audio", "missing_required_parameter")


# -- earlier answers -------------------------------------------------------------------------
async def test_an_answer_that_one_model_spoke_has_no_text_for_another(world):
    kept: StoredAnswers = world.app.state.izwi.services.answers
    said, _ = await kept.store_answer("", "chat", "At seven.")
    spoken, _ = await kept.store_answer("", "chat", AnswerContent(((1, 2), (3,))))
    answer = post(world, {"role": "assistant", "audio": {"id": said}}, user(TEXT))
    assert answer["choices"][0]["message"]["content"] == "hm"
    assert [message.content for message in world.asked[-1].messages] == ["At seven.", "hm"]
    error = post(world, {"role": "assistant", "audio": {"id": spoken}}, user(TEXT))["error"]
    assert (error["param"], error["code"]) == ("messages", "invalid_request")
    assert "transcript" in error["message"]
