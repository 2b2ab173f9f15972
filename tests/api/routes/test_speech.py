"""POST /v1/audio/speech: formats, streaming, voices, extensions, leaving, failing."""

from __future__ import annotations

import base64
import io
import json
import socket

import av
import httpx
import numpy as np
import pytest

from izwi.audio.decode import decode_audio
from izwi.audio.encode import CONTENT_TYPES
from izwi.inputs.speech import ReferenceClip, VoicePrompt

ASK = {"model": "tts", "input": "hello there", "voice": "Ann"}
FRAME_BYTES = 1920 * 2


def say(client, **fields):
    return client.post("/v1/audio/speech", json=ASK | fields)


def last_ask(server):
    return server.registry.models["tts"].asked[-1]


@pytest.mark.parametrize("audio_format", CONTENT_TYPES)
def test_every_format(client, audio_format):
    answer = say(client, response_format=audio_format)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == CONTENT_TYPES[audio_format]
    assert answer.headers["transfer-encoding"] == "chunked"
    assert answer.headers["x-request-id"].startswith("req_")
    seconds = len(ASK["input"]) * 0.08
    if audio_format == "pcm":
        assert len(answer.content) == len(ASK["input"]) * FRAME_BYTES
        return
    assert len(decode_audio(answer.content, 24_000)) / 24_000 == pytest.approx(seconds, abs=0.1)
    with av.open(io.BytesIO(answer.content)) as container:
        assert container.streams.audio[0].codec_context.channels == 1


@pytest.mark.parametrize("stream", [True, False, None])
@pytest.mark.parametrize("audio_format", ["pcm", "wav", "mp3"])
def test_a_client_of_another_server_may_ask_for_a_stream(client, stream, audio_format):
    """vLLM-Omni's and Kokoro-FastAPI's send `stream`; audio is always sent while it is made."""
    answer = say(client, stream=stream, response_format=audio_format)
    assert answer.status_code == 200
    assert answer.headers["transfer-encoding"] == "chunked"
    assert answer.content == say(client, response_format=audio_format).content
    events = say(client, stream=stream, response_format=audio_format, stream_format="sse")
    assert events.headers["content-type"].startswith("text/event-stream")


@pytest.mark.parametrize("stream", ["yes", 1])
def test_a_stream_that_is_no_truth_value_is_refused(client, stream):
    answer = say(client, stream=stream)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "stream")


def test_mp3_is_the_default_and_null_asks_for_the_default(client):
    answer = say(client, response_format=None, instructions=None, speed=None)
    assert answer.headers["content-type"] == "audio/mpeg"


def test_the_first_bytes_leave_while_frames_are_made(client, server):
    for audio_format in ("pcm", "wav", "mp3", "opus", "flac", "aac"):
        server.engine.holds_at = server.engine.num_frames + 11
        ask = ASK | {"input": "x" * 40, "response_format": audio_format}
        with client.stream("POST", "/v1/audio/speech", json=ask) as answer:
            pieces = answer.iter_raw()
            next(pieces)
            server.engine.holds_at = None  # the other 29 are made now
            rest = b"".join(pieces)
        assert rest


def test_streamed_and_whole_pcm_are_the_same(client):
    whole = say(client, response_format="pcm", input="one. two. three.").content
    with client.stream(
        "POST",
        "/v1/audio/speech",
        json=ASK | {"response_format": "pcm", "input": "one. two. three."},
    ) as answer:
        assert b"".join(answer.iter_raw()) == whole
    events = sse(say(client, response_format="pcm", input="one. two. three.", stream_format="sse"))
    assert b"".join(base64.b64decode(e["audio"]) for e in events[:-1]) == whole
    wav = say(client, response_format="wav", input="one. two. three.").content
    assert wav[44:] == whole


def sse(answer):
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    return [json.loads(line[6:]) for line in answer.text.split("\n\n") if line]


def test_sse_ends_with_the_bill(client):
    events = sse(say(client, stream_format="sse"))
    assert {event["type"] for event in events[:-1]} == {"speech.audio.delta"}
    count = len(ASK["input"])
    usage = {"input_tokens": count, "output_tokens": count, "total_tokens": 2 * count}
    assert events[-1] == {"type": "speech.audio.done", "usage": usage}


@pytest.mark.parametrize("speed", [1.0, 2.0])
def test_codes_are_returned_on_request(client, speed):
    events = sse(say(client, stream_format="sse", include_codes=True, speed=speed))
    codes = [code for e in events if e["type"] == "speech.audio.codes" for code in e["codes"]]
    assert codes == [[ord(letter)] * 4 for letter in ASK["input"]]
    assert events[-1]["type"] == "speech.audio.done"
    refused = say(client, include_codes=True)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "include_codes")


def test_pieces_have_seeds_of_their_own(client, server):
    say(client, input="one. two.", seed=9)
    assert [ask.seed for ask in server.registry.models["tts"].asked[-2:]] == [9, 10]


def test_extensions_reach_the_model(client, server):
    fields = {
        "language": "english",
        "seed": -5,
        "temperature": 0,
        "top_k": 5,
        "top_p": 0.5,
        "instructions": "kindly",
        "text_mode": "full",
        "max_new_tokens": 3,
    }
    assert say(client, **fields).status_code == 200
    ask = last_ask(server)
    assert (ask.language, ask.seed, ask.temperature, ask.top_k, ask.top_p) == (
        *("english", -5, 0, 5),
        0.5,
    )
    assert (ask.instruct, ask.text_mode, ask.max_new_tokens) == ("kindly", "full", 3)


@pytest.mark.parametrize(
    ("voice", "speaker"),
    [("ann", "Ann"), ({"id": "Bob"}, "Bob"), ("alloy", "Bob"), ("ash", "Bob"), ("ballad", "Ann")],
)
def test_speakers_and_aliases(client, server, voice, speaker):
    assert say(client, voice=voice).status_code == 200
    assert last_ask(server).voice == speaker


@pytest.mark.parametrize("speed", [0.25, 0.5, 2, 4.0])
def test_speed_changes_the_length(client, speed):
    answer = say(client, response_format="pcm", speed=speed, input="x" * 25)
    assert len(answer.content) / 48_000 == pytest.approx(2.0 / speed, abs=0.1)


def test_reference_clip(client, server, tone_wav):
    clip = base64.b64encode(tone_wav(2.0)).decode()
    for ref in (clip, f"data:audio/wav;base64,{clip}"):
        answer = client.post(
            "/v1/audio/speech",
            json={"model": "tts", "input": "hi", "ref_audio": ref, "ref_text": "la"},
        )
        assert answer.status_code == 200
        voice = last_ask(server).voice
        assert isinstance(voice, ReferenceClip)
        assert (len(voice.samples), voice.text) == (48_000, "la")
    assert say(client, ref_audio=clip, x_vector_only=True).status_code == 200
    assert last_ask(server).voice.text is None


@pytest.mark.parametrize("path", ["/v1/audio/speech", "/v1/audio/speech/batch"])
def test_an_encoder_that_fails_to_open_ends_the_speech(client, server, monkeypatch, path):
    def broken(audio_format, rate):
        raise OSError("no encoder")

    for route in ("speech", "speech_batch"):
        monkeypatch.setattr(f"izwi_api.routes.{route}.stream_encoder", broken)
    server.engine.step_s = 0.02
    num_aborted = len(server.engine.aborted)
    one = {"input": "x" * 200, "voice": "Ann"}
    body = one if path.endswith("speech") else {"items": [one]}
    answer = client.post(path, json=body | {"model": "tts"})
    reported = answer.json()["error"] if answer.status_code == 500 else answer.json()["results"][0]
    assert (reported.get("error") or reported)["code"] == "internal_error"
    assert len(server.engine.aborted) == num_aborted + 1
    assert not server.engine.live


def test_closing_the_reader_ends_the_work(client, server):
    server.engine.step_s = 0.02
    for ask in (ASK, ASK | {"stream_format": "sse"}):
        num_aborted = len(server.engine.aborted)
        with client.stream(
            "POST", "/v1/audio/speech", json=ask | {"input": "x" * 200, "response_format": "pcm"}
        ) as answer:
            pieces = answer.iter_raw()  # kept: httpx hangs up when it is collected
            next(pieces)
            assert server.engine.live
        server.wait_for(lambda: not server.engine.live)
        assert len(server.engine.aborted) == num_aborted + 1


def test_disconnect_before_the_answer_ends_the_work(client, server):
    server.engine.step_s = 30.0  # nothing has been sent yet when the client hangs up
    num_aborted = len(server.engine.aborted)
    body = json.dumps(ASK).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as raw:
        raw.sendall(
            b"POST /v1/audio/speech HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            + f"content-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        server.wait_for(lambda: server.engine.live)
    server.wait_for(lambda: len(server.engine.aborted) == num_aborted + 1)
    assert not server.engine.live


def test_a_failure_in_the_middle_breaks_the_body(client, server):
    with pytest.raises(httpx.RemoteProtocolError):
        say(client, input="hello\x01 there", response_format="pcm")
    events = sse(say(client, input="hello\x01", response_format="pcm", stream_format="sse"))
    assert events[-1]["error"]["type"] == "server_error"
    assert "tensor" not in json.dumps(events[-1])
    assert say(client).status_code == 200


def test_a_failure_at_the_start_has_its_status(client):
    for extra in ({}, {"stream_format": "sse"}):
        answer = say(client, input="\x01", **extra)
        assert answer.status_code == 500
        assert answer.json()["error"]["message"] == "internal error"


def test_overload_says_when_to_come_back_and_leaves_nothing_running(client, server):
    answer = say(client, input="a long first piece. \x02.")
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "7"
    assert answer.json()["error"]["code"] == "overloaded"
    assert not server.engine.live


def test_a_bug_is_a_500_with_an_id_and_no_secret(client):
    answer = say(client, input="PREPARE")
    assert answer.status_code == 500
    assert answer.headers["x-request-id"]
    assert "secret" not in answer.text


def test_a_cloned_voice(client, server, tone_wav):
    form = {"name": "my.voice", "consent": "yes", "ref_text": "la la"}
    files = {"audio_sample": ("a.wav", tone_wav(1.0))}
    answer = client.post("/v1/audio/voices", data=form, files=files)
    assert answer.status_code == 200, answer.text
    assert answer.json()["object"] == "audio.voice"
    again = client.post("/v1/audio/voices", data=form, files=files)
    assert (again.status_code, again.json()["error"]["code"]) == (400, "voice_exists")
    assert "my.voice" in [v["name"] for v in client.get("/v1/audio/voices").json()["voices"]]
    assert say(client, voice="my.voice").status_code == 200
    voice = last_ask(server).voice
    assert isinstance(voice, VoicePrompt)
    assert (voice.text, voice.codes.shape) == ("la la", (3, 4))
    np.testing.assert_array_equal(voice.speaker_embedding, np.ones(8, np.float32))
    assert client.delete("/v1/audio/voices/my.voice").json()["deleted"] is True
    assert say(client, voice="my.voice").status_code == 404
    assert client.delete("/v1/audio/voices/my.voice").status_code == 404
    assert not [path for path in (server.settings.home / "voices").iterdir() if path.is_dir()]


@pytest.mark.parametrize("name", ["", "../x", ".x", "a/b", "a" * 65, "Ann", "a\0"])
def test_voice_names_that_are_refused(client, server, tone_wav, name):
    form = {"name": name, "consent": "yes", "x_vector_only": "true"}
    answer = client.post(
        "/v1/audio/voices", data=form, files={"audio_sample": ("a.wav", tone_wav(1.0))}
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "name"
