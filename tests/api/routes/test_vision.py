"""Chat about images with the real engine, through the openai SDK, unmodified."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import openai
import pytest
from websockets.sync.client import connect

from izwi.audio.pcm import to_s16le
from izwi_api.serve.app import create_app
from izwi_api.services import images as services_images
from izwi_api.services.chat import images as chat_images
from izwi_api.voices.reference_hosts import parse_host
from tests.api.conftest import listening
from tests.api.in_process import services_of
from tests.api.remote_clips import RemoteClips
from tests.images import png_of
from tests.models.tiny_asr import waveform, write_tiny_asr
from tests.models.tiny_chat import write_tiny_chat
from tests.models.tiny_tts import write_tiny_tts
from tests.models.tiny_vl import drawn_image, write_tiny_vl

pytest.importorskip("PIL")

IMAGES = [png_of(drawn_image(width, height, 7)) for width, height in ((96, 64), (40, 80))]


def data_url(content: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def shown(content: bytes | str, detail: str | None = None) -> dict:
    url = content if isinstance(content, str) else data_url(content)
    return {"type": "image_url", "image_url": {"url": url} | ({"detail": detail} if detail else {})}


def text(words: str) -> dict:
    return {"type": "text", "text": words}


def user(*parts) -> dict:
    return {"role": "user", "content": list(parts)}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    root = tmp_path_factory.mktemp("vision")
    folders = [
        write_tiny_vl(root / "vl"),
        write_tiny_chat(root / "blind"),
        write_tiny_asr(root / "asr"),
        write_tiny_tts(root / "tts", "custom_voice"),
    ]
    services = services_of(root / "home", *folders)
    with RemoteClips(IMAGES[0]) as remote:
        hosts = (parse_host(remote.entry, "x"),)
        settings = replace(services.settings, reference_hosts=hosts, decode_workers=1)
        app = create_app(services.engine, services.registry, settings)
        with listening(app, ws="auto") as port:
            yield SimpleNamespace(port=port, remote=remote, engine=services.engine)


@pytest.fixture
def sdk(served):
    url = f"http://127.0.0.1:{served.port}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def answer(sdk, *messages, **more):
    more = {"model": "vl", "max_tokens": 6, "temperature": 0} | more
    return sdk.chat.completions.create(messages=list(messages), **more)


def test_chat_about_images_over_several_turns(sdk, served):
    first = user(text("What is this?"), shown(IMAGES[0]))
    whole = answer(sdk, first)
    assert (
        whole.usage.prompt_tokens
        == answer(sdk, user(text("What is this?"))).usage.prompt_tokens + 26
    )
    before = served.engine.load["vl"]["prefix_positions_hit"]
    said = {"role": "assistant", "content": whole.choices[0].message.content}
    streamed = answer(sdk, first, said, user(text("And"), shown(IMAGES[1])), stream=True)
    assert list(streamed)[-1].choices[0].finish_reason in ("stop", "length")
    hit = served.engine.load["vl"]["prefix_positions_hit"] - before
    assert hit >= whole.usage.prompt_tokens - 20
    assert answer(sdk, user(shown(IMAGES[1]))).choices[0].message.content is not None


def test_the_models_list_says_which_sees(sdk):
    listed = {model.id: model.model_extra["capabilities"] for model in sdk.models.list()}
    assert listed["vl"] == ["chat", "vision"]
    assert listed["blind"] == ["chat"]


def test_an_image_comes_from_an_allowed_host(sdk, served):
    from_host = answer(sdk, user(shown(f"{served.remote.entry}/clip.wav"), text("?")))
    sent = answer(sdk, user(shown(IMAGES[0]), text("?")))
    assert from_host.usage.prompt_tokens == sent.usage.prompt_tokens
    assert from_host.choices[0].message.content == sent.choices[0].message.content
    assert b"accept: image/*" in served.remote.asked[-1].lower()


def test_detail_low_takes_fewer_tokens(sdk, monkeypatch):
    monkeypatch.setattr("izwi.inputs.images._LOW_PIXELS", 48 * 48)
    tokens = {
        detail: answer(sdk, user(shown(IMAGES[0], detail))).usage.prompt_tokens
        for detail in (None, "auto", "low", "high", "original")
    }
    assert len({tokens[detail] for detail in (None, "auto", "high", "original")}) == 1
    assert tokens["low"] < tokens["auto"] - 8


@pytest.mark.parametrize(
    ("part", "code", "param", "words"),
    [
        (shown("https://example.org/a.png"), "invalid_request", "messages", "host"),
        (shown("ftp://example.org/a.png"), "invalid_request", "messages", "https URL"),
        (shown("data:text/plain;base64,aaaa"), "invalid_image", "messages", "data: URL"),
        (shown("nonsense"), "invalid_image", "messages", "data: URL"),
        (shown("data:image/png;base64,?"), "invalid_image", "messages", "base64"),
        (shown(b"this is no image"), "invalid_image", "messages", "PNG, JPEG"),
        (shown(IMAGES[0][:300]), "invalid_image", "messages", "whole"),
        (shown(IMAGES[0], "huge"), "invalid_value", "messages[0].content[0]", "original"),
        ({"type": "image_url"}, "invalid_value", "messages[0].content[0]", "url"),
        ({"type": "image_url", "image_url": {"url": 3}}, "invalid_value", None, "url"),
    ],
)
def test_what_is_no_image_is_refused_with_its_place(sdk, part, code, param, words):
    with pytest.raises(openai.BadRequestError) as refused:
        answer(sdk, user(part, text("?")))
    assert refused.value.code == code
    assert refused.value.param == (param or "messages[0].content[0]")
    assert words in refused.value.message


def test_a_model_that_cannot_see_says_so(sdk):
    with pytest.raises(openai.BadRequestError, match="cannot see") as refused:
        answer(sdk, user(text("a"), shown(IMAGES[0])), model="blind")
    assert refused.value.param == "messages[0].content[1]"
    with pytest.raises(openai.BadRequestError, match="role 'user'"):
        answer(sdk, {"role": "system", "content": [shown(IMAGES[0])]}, user(text("a")))
    inputs = [{"role": "user", "content": [{"type": "input_image", "image_url": data_url(b"x")}]}]
    with pytest.raises(openai.BadRequestError, match="cannot see") as refused:
        sdk.responses.create(model="blind", input=inputs)
    assert refused.value.param == "input"


def test_too_many_images_are_refused(sdk, monkeypatch):
    monkeypatch.setattr(chat_images, "MAX_IMAGES", 2)
    with pytest.raises(openai.APIStatusError, match="3 images; at most 2") as refused:
        answer(sdk, user(*[shown(IMAGES[0])] * 3))
    assert refused.value.status_code == 413


def test_a_server_without_pillow_names_the_extra(sdk, monkeypatch):
    monkeypatch.setattr(services_images, "find_spec", lambda _: None)
    with pytest.raises(openai.BadRequestError, match=r"izwi\[vision\]"):
        answer(sdk, user(shown(png_of(drawn_image(33, 33, 1)))))


def test_responses_remember_images(sdk):
    image = {"type": "input_image", "image_url": data_url(IMAGES[0]), "detail": "auto"}
    content = [{"type": "input_text", "text": "What is it?"}, image]
    first = sdk.responses.create(
        model="vl", input=[{"role": "user", "content": content}], max_output_tokens=6
    )
    alone = sdk.responses.create(model="vl", input="What is it?", max_output_tokens=6)
    assert first.usage.input_tokens == alone.usage.input_tokens + 26
    second = sdk.responses.create(
        model="vl", input="Sure?", previous_response_id=first.id, max_output_tokens=6
    )
    assert second.usage.input_tokens > first.usage.input_tokens
    with pytest.raises(openai.BadRequestError) as refused:
        sdk.responses.create(
            model="vl", input=[{"role": "assistant", "content": [image]}], max_output_tokens=6
        )
    assert refused.value.param == "input"


@pytest.mark.slow
def test_an_answer_about_an_image_is_spoken(sdk):
    audio = {"voice": "ryan", "format": "wav"}
    spoken = answer(
        sdk, user(shown(IMAGES[0]), text("?")), modalities=["text", "audio"], audio=audio
    )
    quiet = answer(sdk, user(shown(IMAGES[0]), text("?")))
    assert spoken.usage.prompt_tokens == quiet.usage.prompt_tokens


# -- live voice ------------------------------------------------------------------------------
class Live:
    """One live session."""

    def __init__(self, socket):
        self.socket = socket

    def tell(self, kind, **fields):
        self.socket.send(json.dumps({"type": kind, **fields}))

    def until(self, *kinds):
        while True:
            event = json.loads(self.socket.recv(60))
            if event["type"] in (*kinds, "error"):
                return event

    def show(self, *parts, **more):
        item = {"type": "message", "role": "user", "content": list(parts), **more}
        self.tell("conversation.item.create", item=item)
        return self.until("conversation.item.done")

    def respond(self):
        self.tell("response.create", response={"output_modalities": ["text"]})
        return self.until("response.done")["response"]


def live(served, model="vl"):
    return connect(f"ws://127.0.0.1:{served.port}/v1/realtime?model={model}", max_size=1 << 25)


@pytest.mark.slow
def test_a_spoken_question_about_an_image(served):
    image = {"type": "input_image", "image_url": data_url(IMAGES[0])}
    tokens = []
    for parts in ((), (image,)):
        with live(served) as socket:
            session = Live(socket)
            setting = {"type": "realtime", "audio": {"input": {"turn_detection": None}}}
            session.tell("session.update", session=setting | {"max_output_tokens": 8})
            session.until("session.updated")
            if parts:
                item = session.show(*parts)["item"]
                assert item["content"] == [{"type": "input_image", "detail": "auto"}]
                session.tell("conversation.item.retrieve", item_id=item["id"])
                kept = session.until("conversation.item.retrieved")["item"]["content"]
                assert kept[0]["image_url"] == data_url(IMAGES[0])
            speech = np.repeat(waveform(1.5), 2)[: 24_000 * 2]  # 24 kHz from 16 kHz, roughly
            audio = base64.b64encode(to_s16le(speech)).decode()
            session.tell("input_audio_buffer.append", audio=audio)
            session.tell("input_audio_buffer.commit")
            response = session.respond()
            assert response["status"] in ("completed", "incomplete"), response
            tokens.append(response["usage"]["input_tokens"])
    # one turn: the image, and what was said about it
    assert tokens[1] == tokens[0] + 26


def test_live_items_that_are_no_images_are_refused(served):
    with live(served) as socket:
        session = Live(socket)
        for part, words in (
            ({"type": "input_image"}, "image_url"),
            ({"type": "input_image", "image_url": 3}, "str"),
            ({"type": "input_image", "image_url": data_url(b"x"), "detail": "x"}, "x"),
        ):
            assert words in session.show(part)["error"]["message"]
        answer = session.show({"type": "input_image", "image_url": data_url(b"x")}, role="system")
        assert "only the user" in answer["error"]["message"]
        # what is no image is found when it is needed; the conversation goes on without it
        item = session.show({"type": "input_image", "image_url": data_url(b"x")})["item"]
        session.show({"type": "input_text", "text": "?"})
        failed = session.respond()
        assert failed["status"] == "failed"
        assert "PNG" in json.dumps(failed["status_details"])
        session.tell("conversation.item.delete", item_id=item["id"])
        assert session.respond()["status"] in ("completed", "incomplete")
    with live(served, "blind") as socket:
        refused = Live(socket).show({"type": "input_image", "image_url": data_url(b"x")})
        assert "cannot see" in refused["error"]["message"]
