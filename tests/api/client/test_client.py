"""The Python client: the same in this process and with a server, blocking and asyncio."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
import threading

import httpx
import numpy as np
import pytest
import soundfile as sf
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

from izwi.errors import EngineStopped, InvalidRequest, IzwiError, ModelNotFound, VoiceNotFound
from izwi_api.client import AsyncClient, Audio, Client
from izwi_api.client.in_process import own_settings
from izwi_api.schemas.speech_stream import StreamLimits
from izwi_api.serve.app import create_app
from izwi_api.settings import Access, Settings
from tests.api.conftest import FRAME, RATE, FakeChat, FakeEngine, FakeRegistry, listening, wait_for
from tests.api.routes.test_chat import CALL, TOOL

NAMES = ("izwi-tiny-tts", "izwi-tiny-asr")


@pytest.fixture(params=["here", "there"])
def world(request, cli, server):
    """Arguments of a client, and its fake engine: in this process, or behind a server."""
    if request.param == "there":
        yield {"base_url": server.url}, server.engine
    else:
        yield {"models": NAMES}, cli.engine


def test_speech_is_audio_with_its_rate(world):
    with Client(**world[0]) as client:
        audio = client.say("hello", voice="Ann", seed=3)
        fast = client.say("hello", voice="Ann", speed=2.0)
    assert (audio.sample_rate, audio.samples.dtype) == (RATE, np.float32)
    assert len(audio.samples) == 5 * FRAME
    assert audio.duration_s == pytest.approx(0.4)
    assert fast.duration_s == pytest.approx(0.2, abs=0.05)


def test_a_stream_is_the_same_audio_in_pieces(world):
    with Client(**world[0]) as client:
        whole = client.say("hello there")
        with client.stream_speech("hello there") as stream:
            pieces = [audio.samples for audio in stream]
    assert len(pieces) > 1
    assert np.array_equal(np.concatenate(pieces), whole.samples)


def test_codes_come_with_the_audio(world):
    with Client(**world[0]) as client, client.stream_speech("hey", include_codes=True) as stream:
        samples = sum(audio.samples.size for audio in stream)
    assert samples == 3 * FRAME
    assert stream.result.codes.tolist() == [[ord(letter)] * 4 for letter in "hey"]


def test_text_in_pieces(world):
    with Client(**world[0]) as client, client.stream_speech(iter(["one ", "two"])) as stream:
        assert sum(audio.samples.size for audio in stream) == len("one two") * FRAME


def test_leaving_a_stream_frees_the_engine(world):
    arguments, engine = world
    with Client(**arguments) as client:
        stream = client.stream_speech("a long text. " * 300)
        next(stream)
        assert engine.live
        stream.close()
        wait_for(lambda: not engine.live)
        assert client.say("hi").samples.size == 2 * FRAME


def test_transcripts(world, tone_wav, tmp_path):
    content = tone_wav(12.0)
    (tmp_path / "a.wav").write_bytes(content)
    with Client(**world[0]) as client:
        transcript = client.transcribe(content)
        assert client.transcribe(tmp_path / "a.wav").text == transcript.text
        assert client.transcribe(str(tmp_path / "a.wav"), max_new_tokens=12).text != transcript.text
        assert client.transcribe(Audio.read(content, 16_000)).text == transcript.text
        with client.stream_transcription(content) as stream:
            updates = list(stream)
    assert (transcript.text, transcript.language) == (" ".join(["word"] * 12), "English")
    assert [segment.end_s for segment in transcript.segments] == [10.0, 12.0]
    assert transcript.duration_s == pytest.approx(12.0)
    assert "".join(update.text for update in updates) == transcript.text
    assert updates[-1].share == 1.0
    assert stream.result == transcript


def test_voices_are_cloned_used_and_deleted(world, tone_wav):
    with Client(**world[0]) as client:
        entry = client.clone("mine", tone_wav(2.0), "la", consent="she agreed")
        assert (entry["name"], entry["ref_text"]) == ("mine", "la")
        assert client.say("hi", voice="mine").samples.size == 2 * FRAME
        assert "mine" in [voice["name"] for voice in client.voices()]
        client.delete_voice("mine")
        with pytest.raises(VoiceNotFound, match="mine"):
            client.say("hi", voice="mine")


def test_stored_voices_need_no_model(cli, tone_wav):
    with Client(models=()) as client:
        assert client.models() == []
        entry = client.clone("mine", tone_wav(2.0), "la", consent="she agreed")
        assert [voice["name"] for voice in client.voices()] == ["mine"]
        with pytest.raises(InvalidRequest, match="not audio"):
            client.clone("other", b"no audio " * 99, consent="she agreed")
        with pytest.raises(ModelNotFound):
            client.say("hi", model="izwi-tiny-tts")
    assert cli.opened == []
    cli("say", "hi", "--voice", "mine", "--out", "a.wav")
    assert cli.speech.asked[-1].voice.text == entry["ref_text"] == "la"


@pytest.mark.parametrize(
    ("act", "kind", "message"),
    [
        (lambda client: client.say(" "), InvalidRequest, "no text"),
        (lambda client: client.say("hi", voice="nobody"), VoiceNotFound, "nobody"),
        (lambda client: client.say("hi", model="none"), ModelNotFound, "none"),
        (lambda client: client.say("hi", sped=2), InvalidRequest, "sped"),
        (lambda client: client.transcribe(b"no audio " * 99), InvalidRequest, "not audio"),
        (lambda client: client.chat("hi"), ModelNotFound, "no model for chat"),
        (lambda client: client.say("he\x01llo"), IzwiError, "closed the connection|broke"),
    ],
)
def test_a_failure_raises_its_error_class_and_the_client_stays_usable(world, act, kind, message):
    with Client(**world[0]) as client:
        with pytest.raises(kind, match=message):
            act(client)
        assert client.say("hi").samples.size == 2 * FRAME


def test_internal_errors_are_detailed_in_process_only(cli, server, caplog):
    with Client(models=NAMES) as client, pytest.raises(IzwiError, match="the tensor broke"):
        list(client.stream_speech("he\x01llo", include_codes=True))
    assert not caplog.records
    with Client(server.url) as client, pytest.raises(IzwiError, match="internal error"):
        list(client.stream_speech("he\x01llo", include_codes=True))


def test_an_error_of_the_caller_ends_the_stream(world):
    def text():
        yield "one "
        raise KeyError("the caller's own")

    with Client(**world[0]) as client, pytest.raises(KeyError, match="own"):
        list(client.stream_speech(text()))
    wait_for(lambda: not world[1].live)


def test_chat(tmp_path):
    app = create_app(FakeEngine(), FakeRegistry(chat=FakeChat()), Settings(home=tmp_path))
    with listening(app) as port, Client(f"http://127.0.0.1:{port}") as client:
        answer = client.chat("hello", enable_thinking=True)
        assert (answer.content, answer.reasoning, answer.finish_reason) == (
            "hello",
            "5 long",
            "stop",
        )
        assert (answer.num_prompt_tokens, answer.num_tokens) == (5, 13)
        messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "héllo"}]
        with client.stream_chat(messages) as stream:
            assert "".join(delta.content for delta in stream) == "héllo"
        assert client.chat("hello", max_completion_tokens=2).content == "he"
        called = client.chat(f"Well.\n{CALL}\n{CALL}", tools=[TOOL])
        assert (called.content, called.finish_reason) == ("Well.", "tool_calls")
        calls = [(call.name, call.arguments) for call in called.tool_calls]
        assert calls == [("f", '{"a": [1, "é"]}')] * 2
        assert len({call.id for call in called.tool_calls}) == 2


async def test_many_at_a_time_in_one_loop(world):
    async with AsyncClient(**world[0]) as client:
        texts = ["a" * count for count in range(1, 20)]
        spoken = await asyncio.gather(*map(client.say, texts))
    assert [audio.samples.size // FRAME for audio in spoken] == list(range(1, 20))
    with pytest.raises(InvalidRequest, match="not open"):
        await AsyncClient(**world[0]).say("hi")


async def test_a_blocking_client_works_where_a_loop_runs(world):
    with Client(**world[0]) as client:
        assert client.say("hi").samples.size == 2 * FRAME


def test_threads_may_share_a_client(world):
    sizes = []
    with Client(**world[0]) as client:
        threads = [
            threading.Thread(target=lambda: sizes.append(client.say("hi").samples.size))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sizes == [2 * FRAME] * 8
    client.close()
    with pytest.raises(RuntimeError, match="closed"):
        client.say("hi")


def test_a_model_that_cannot_be_loaded_raises(cli):
    with pytest.raises(ModelNotFound, match="missing"):
        Client(models=["missing"])
    with pytest.raises(InvalidRequest, match="address"):
        Client("ftp://a")
    with pytest.raises(EngineStopped, match="no server responds"):
        Client("http://127.0.0.1:9").say("hi")


@pytest.mark.slow
def test_http_limits_do_not_apply_in_process(cli, monkeypatch, tone_wav):
    monkeypatch.setenv("IZWI_MAX_UPLOAD_MB", "0.001")
    monkeypatch.setenv("IZWI_API_KEY", "a-key-that-a-server-would-ask-for")
    with Client(models=NAMES) as client:
        assert client.say("a" * 5000, voice="Ann").samples.size == 5000 * FRAME
        assert client.transcribe(tone_wav(2.0)).text == "word word"
    own = own_settings(Settings())
    assert own.access == Access()
    assert own.max_json_bytes > 1 << 40  # a clip in base64
    limits, theirs = StreamLimits().under(own), StreamLimits().under(Settings())
    assert limits.utterance_chars > 1 << 40  # a book on stdin
    assert limits.text_s == math.inf  # and a writer who thinks
    assert (theirs.utterance_chars, theirs.text_s) == (1 << 20, 30.0)


def test_a_full_server_is_retried_and_a_broken_answer_raises():
    asked = []

    async def busy(_):
        asked.append("busy")
        if len(asked) < 3:
            return PlainTextResponse("later", 503, {"retry-after": "0"})
        return JSONResponse({"data": [{"id": "m", "task": "speech"}]})

    async def strange(_):
        return PlainTextResponse("<html>")

    app = Starlette(routes=[Route("/v1/models", busy), Route("/v1/audio/voices", strange)])
    with listening(app) as port, Client(f"http://127.0.0.1:{port}/v1/") as client:
        assert client.models() == [{"id": "m", "task": "speech"}]
        assert len(asked) == 3
        with pytest.raises(EngineStopped, match="incomplete"):
            client.voices()


def test_audio_is_saved_and_read(tmp_path):
    at = np.arange(RATE) / RATE
    audio = Audio((0.3 * np.sin(2 * np.pi * 220 * at)).astype(np.float32), RATE)
    for suffix in ("wav", "flac", "ogg"):
        audio.save(tmp_path / f"a.{suffix}")
        assert sf.info(tmp_path / f"a.{suffix}").frames == pytest.approx(RATE, abs=700)
    back = Audio.read(tmp_path / "a.flac", RATE)
    assert np.allclose(back.samples, audio.samples, atol=1e-4)
    assert "audio/wav" in audio._repr_html_()
    with pytest.raises(InvalidRequest, match="suffix"):
        audio.save(tmp_path / "a.doc")


def test_a_script_that_forgets_to_close_ends(server):
    code = (
        "import sys; from izwi_api.client import Client; "
        f"c = Client({server.url!r}); s = c.stream_speech('hi'); next(s); "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


def test_certificates_of_the_system_are_trusted_and_a_local_proxy_is_not_asked(monkeypatch, server):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with pytest.raises(httpx.ConnectError):
        httpx.get("http://example.invalid")  # this proxy is asked for other hosts
    with Client(server.url) as client:
        assert client.models()
