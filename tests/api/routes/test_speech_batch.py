"""POST /v1/audio/speech/batch: defaults, order, failures of single items, leaving."""

from __future__ import annotations

import base64
import json

import httpx
import pytest

from izwi.audio.decode import decode_audio
from izwi.errors import InvalidRequest
from izwi.request.request import Request
from izwi_api.routes import speech_batch
from izwi_api.schemas.speech_batch import MAX_ITEMS, parse_batch, parse_item
from tests.api.conftest import FRAME, FakeStream
from tests.api.in_process import serving

BATCH = "/v1/audio/speech/batch"


def say(client, *items, **defaults):
    ask = {"model": "tts", "voice": "Ann", "items": list(items)} | defaults
    answer = client.post(BATCH, json=ask)
    assert answer.status_code == 200, answer.text
    return answer.json()


def audio(result):
    assert result["status"] == "success", result
    return base64.b64decode(result["audio_data"])


def test_results_keep_the_order_and_the_defaults(client, server):
    texts = ["a long text that is the first to start", "hi", "hello there. and more."]
    items = [{"input": text} for text in texts]
    items[1] |= {"voice": "Bob", "response_format": "mp3", "seed": 5}
    answer = say(client, *items, response_format="pcm", seed=3)
    assert answer["id"].startswith("speech-batch-")
    assert (answer["total"], answer["succeeded"], answer["failed"]) == (3, 3, 0)
    assert [result["index"] for result in answer["results"]] == [0, 1, 2]
    types = [result["media_type"] for result in answer["results"]]
    assert types == ["audio/pcm", "audio/mpeg", "audio/pcm"]
    single = {"model": "tts", "voice": "Ann", "response_format": "pcm", "seed": 3}
    for place in (0, 2):
        alone = client.post("/v1/audio/speech", json=single | {"input": texts[place]})
        assert audio(answer["results"][place]) == alone.content
    assert answer["results"][1]["usage"] == {
        "input_tokens": 2,
        "output_tokens": 2,
        "total_tokens": 4,
    }
    asked = {ask.text: ask for ask in server.registry.models["tts"].asked[-7:]}
    assert (asked["hi"].voice, asked["hi"].seed) == ("Bob", 5)


def test_wav_is_the_default_and_says_its_length(client):
    (result,) = say(client, {"input": "hello"})["results"]
    content = audio(result)
    assert result["media_type"] == "audio/wav"
    assert int.from_bytes(content[40:44], "little") == len(content) - 44 == 5 * FRAME * 2


@pytest.mark.parametrize("audio_format", ["mp3", "opus", "aac", "flac", "wav"])
def test_every_format_and_speed(client, audio_format):
    item = {"input": "x" * 25, "speed": 2.0, "response_format": audio_format}
    (result,) = say(client, item)["results"]
    assert len(decode_audio(audio(result), 24_000)) / 24_000 == pytest.approx(1.0, abs=0.12)


def test_it_is_background_work_and_starts_together(client, server, monkeypatch):
    seen: list[Request] = []
    most = 0

    class Watched(FakeStream):
        def __init__(self, engine, request):
            nonlocal most
            seen.append(request)
            super().__init__(engine, request)
            most = max(most, len(engine.live))

    monkeypatch.setattr("tests.api.conftest.FakeStream", Watched)
    server.engine.step_s = 0.02
    say(client, *({"input": "x" * 20} for _ in range(8)))
    assert len(seen) == most == 8
    assert not any(request.streams for request in seen)
    client.post("/v1/audio/speech", json={"model": "tts", "voice": "Ann", "input": "hi"})
    assert seen[-1].streams


BAD_ITEMS = {
    "no object": (5, "items", None),
    "no text": ({}, "input", "missing_required_parameter"),
    "blank": ({"input": " "}, "input", None),
    "long": ({"input": "x" * 4097}, "input", None),
    "unknown key": ({"input": "hi", "colour": 1}, "colour", "unknown_parameter"),
    "a stream": ({"input": "hi", "stream": True}, "stream", "invalid_value"),
    "unknown voice": ({"input": "hi", "voice": "nobody"}, "voice", "voice_not_found"),
    "unknown model": ({"input": "hi", "model": "x"}, "model", "model_not_found"),
    "sse": ({"input": "hi", "stream_format": "sse"}, "stream_format", None),
    "items": ({"input": "hi", "items": []}, "items", "unknown_parameter"),
    "fails at once": ({"input": "\x01"}, None, "internal_error"),
    "fails in the middle": ({"input": "hello \x01 there"}, None, "internal_error"),
    "a bug": ({"input": "PREPARE"}, None, "internal_error"),
    "refused": ({"input": "first. \x02."}, None, "overloaded"),
}


@pytest.mark.parametrize("name", BAD_ITEMS)
def test_one_bad_item_does_not_fail_the_others(client, server, name):
    item, param, code = BAD_ITEMS[name]
    answer = say(client, {"input": "before"}, item, {"input": "after"}, response_format="pcm")
    before, bad, after = answer["results"]
    assert (len(audio(before)), len(audio(after))) == (6 * FRAME * 2, 5 * FRAME * 2)
    assert (bad["index"], bad["status"]) == (1, "error")
    assert set(bad["error"]) == {"message", "type", "param", "code"}
    assert "audio_data" not in bad
    assert "secret" not in bad["error"]["message"]
    assert bad["error"]["param"] == param
    assert code is None or bad["error"]["code"] == code
    assert (answer["total"], answer["succeeded"], answer["failed"]) == (3, 2, 1)
    assert not server.engine.live


@pytest.mark.parametrize(
    ("ask", "status", "param"),
    [
        ({}, 400, "items"),
        ({"items": []}, 400, "items"),
        ({"items": "hello"}, 400, "items"),
        ({"items": [{"input": "hi"}] * (MAX_ITEMS + 1)}, 400, "items"),
        ({"items": [{"input": "hi"}], "speed": 9}, 400, "speed"),
        ({"items": [{"input": "hi"}], "defaults": 5}, 400, "defaults"),
        ({"items": [{"input": "hi"}], "defaults": {"speed": 9}}, 400, "speed"),
        ({"items": [{"input": "hi"}], "input": "hi"}, 400, "input"),
        ({"items": [{"input": "hi"}], "colour": 1}, 400, "colour"),
        ({"items": [{"input": "hi"}], "model": "x"}, 404, "model"),
    ],
)
def test_a_bad_batch_is_refused(client, ask, status, param):
    answer = client.post(BATCH, json=ask)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


def test_the_most_items(client):
    answer = say(client, *({"input": "hi"} for _ in range(MAX_ITEMS)))
    assert answer["succeeded"] == MAX_ITEMS


def test_the_first_speech_model_is_the_default(client):
    answer = client.post(BATCH, json={"items": [{"input": "hi", "voice": "Ann"}]}).json()
    assert answer["succeeded"] == 1


def test_defaults_may_stand_in_an_object_of_their_own():
    batch = parse_batch(
        {"defaults": {"voice": "Ann", "speed": 2.0, "seed": None}, "items": [{}], "speed": 3.0}
    )
    item = parse_item(batch, "tts", {"input": "hi", "voice": None})
    assert (item.voice, item.speed, item.seed, item.model) == ("Ann", 3.0, 0, "tts")
    with pytest.raises(InvalidRequest):
        parse_item(batch, "tts", "hi")


def test_the_audio_of_a_batch_is_limited(client, monkeypatch):
    monkeypatch.setattr(speech_batch, "MAX_BATCH_BYTES", 10 * FRAME * 2)
    answer = say(client, {"input": "x" * 5}, {"input": "x" * 40}, response_format="pcm")
    assert len(audio(answer["results"][0])) == 5 * FRAME * 2
    assert answer["results"][1]["error"]["code"] == "too_large"


def test_results_leave_while_others_are_made(client, server):
    server.engine.step_s = 0.02
    ask = {"model": "tts", "voice": "Ann", "items": [{"input": "hi"}, {"input": "x" * 40}]}
    with client.stream("POST", BATCH, json=ask) as answer:
        content, pieces = b"", answer.iter_raw()  # kept: httpx hangs up when it is collected
        while b'"index": 0' not in content:
            content += next(pieces)
        assert server.engine.live  # the second one is still being made


@pytest.mark.parametrize("num_read", [0, 1])
def test_disconnect_ends_the_whole_batch(client, server, num_read):
    server.engine.step_s = 0.05
    num_aborted = len(server.engine.aborted)
    ask = {"model": "tts", "voice": "Ann", "items": [{"input": "x" * 200}] * 6}
    with client.stream("POST", BATCH, json=ask) as answer:
        pieces = answer.iter_raw()
        for _ in range(num_read):
            next(pieces)
        server.wait_for(lambda: len(server.engine.live) == 6)
    server.wait_for(lambda: not server.engine.live)
    assert len(server.engine.aborted) == num_aborted + 6


@pytest.mark.slow
def test_the_embedded_voice_says_what_it_says_alone(tmp_path):
    ask = {"voice": "amber", "response_format": "pcm"}
    texts = ["Hello there.", "My friend."]
    with (
        serving(tmp_path / "home", "izwi-tiny-tts") as (url, _),
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        items = [{"input": text, "seed": seed} for seed, text in enumerate(texts)]
        items.insert(1, {"input": "Nobody says this.", "voice": "nobody"})
        results = client.post(BATCH, json=ask | {"items": items}).json()["results"]
        assert results.pop(1)["error"]["code"] == "voice_not_found"
        for seed, (text, result) in enumerate(zip(texts, results, strict=True)):
            single = ask | {"model": "izwi-tiny-tts", "input": text, "seed": seed}
            alone = client.post("/v1/audio/speech", json=single).content
            assert audio(result) == alone  # to the bit, and it ran among others
            assert len(alone) > 20_000


def test_results_are_json_as_they_leave(client):
    # The answer is put together by hand; an odd text must not break it.
    text = 'a "quoted" \\ text\n\u2028'
    answer = say(client, {"input": text, "voice": '"\\'}, {"input": text})
    assert [result["status"] for result in answer["results"]] == ["error", "success"]
    assert json.loads(json.dumps(answer)) == answer
