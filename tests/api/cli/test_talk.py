"""Speech in, speech out: `izwi talk` and the client's `talk`, over HTTP and in this process."""

from __future__ import annotations

import base64
import io
import json

import numpy as np
import pytest
import soundfile
from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, StreamingResponse
from typer.testing import CliRunner

from izwi.audio.encode import wav_header
from izwi.audio.pcm import to_s16le
from izwi.errors import EngineStopped, InvalidAudio, InvalidRequest, ModelNotFound
from izwi_api.cli.main import app as command_line
from izwi_api.client import Audio, Client
from izwi_api.client.talk import spoken_turn
from tests.api.conftest import listening, wait_for
from tests.api.in_process import serving
from tests.models.tiny_asr import waveform
from tests.models.tiny_lfm2_audio import CALM, write_tiny_lfm2_audio

QUESTION = Audio(np.asarray(waveform(0.7), np.float32), 16_000)
SHORT = {"max_completion_tokens": 24, "seed": 1}
FRAME = 1920


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_lfm2_audio(tmp_path_factory.mktemp("tiny") / "s2s", loudness=CALM)


@pytest.fixture(scope="module")
def served(folder):
    with serving(folder.parent / "home", folder) as (url, services):
        yield url, services.engine


@pytest.fixture(params=["http", pytest.param("in process", marks=pytest.mark.slow)])
def client(request, served, folder):
    address = served[0] if request.param == "http" else None
    with Client(address, models=[str(folder)]) as client:
        yield client


@pytest.fixture
def talk(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    QUESTION.save("q.wav")

    def run(*arguments, code=0, **options):
        result = CliRunner().invoke(command_line, ["talk", *arguments], **options)
        assert result.exit_code == code, (result.output, result.exception)
        return result

    return run


# -- Python ----------------------------------------------------------------------------------
def test_an_answer_and_the_next(client):
    first = client.talk(QUESTION, **SHORT)
    assert (first.finish_reason, first.num_tokens) == ("length", 24)
    assert first.text
    assert first.audio.sample_rate == 24_000
    assert first.audio.samples.size % FRAME == 0 < first.audio.samples.size
    assert first.message == {"role": "assistant", "audio": {"id": first.id}}
    turns = [spoken_turn(QUESTION.wav()), first.message]
    after = client.talk(QUESTION, before=turns, **SHORT)
    assert after.num_prompt_tokens > first.num_prompt_tokens + 24
    told_otherwise = client.talk(QUESTION, system="Sing.", **SHORT)
    assert told_otherwise.num_prompt_tokens != first.num_prompt_tokens


def test_streamed_talk_equals_whole_talk(client):
    with client.stream_talk(QUESTION, **SHORT) as stream:
        deltas = list(stream)
    whole = client.talk(QUESTION, **SHORT)
    assert "".join(delta.text for delta in deltas) == whole.text == stream.result.text
    pieces = [delta.audio.samples for delta in deltas if delta.audio is not None]
    assert len(pieces) > 1
    np.testing.assert_array_equal(np.concatenate(pieces), whole.audio.samples)
    kinds = ["text" if delta.text else "audio" for delta in deltas]
    assert kinds.index("audio") < len(kinds) - 1 - kinds[::-1].index("text")


def test_leaving_stops_the_answer(served):
    with (
        Client(served[0]) as client,
        client.stream_talk(QUESTION, max_completion_tokens=1900, seed=1) as stream,
    ):
        next(iter(stream))
        wait_for(lambda: served[1].load["s2s"]["running"] == 1)
    wait_for(lambda: served[1].load["s2s"]["running"] == 0)


@pytest.mark.parametrize("name", ["q.flac", "q.mp3", "q.aac", "q.opus", "q.wav"])
def test_files_of_any_format_are_understood(client, tmp_path, name):
    QUESTION.save(tmp_path / name)
    assert client.talk(tmp_path / name, max_completion_tokens=8, seed=1).text


def test_talk_with_invalid_input_raises(client):
    for audio, error in ((b"", InvalidRequest), (b"this is not audio", InvalidAudio)):
        with pytest.raises(error):
            client.talk(audio, **SHORT)
    with pytest.raises(ModelNotFound):
        client.talk(QUESTION, model="nobody")
    with pytest.raises(InvalidRequest, match="expired"):
        client.talk(QUESTION, before=[{"role": "assistant", "audio": {"id": "audio_0"}}])
    assert client.talk(QUESTION, max_completion_tokens=8, seed=1).text


# -- the command line ------------------------------------------------------------------------
def test_a_file_is_answered_into_a_file(talk, served, tmp_path):
    server = ("--server", served[0], "--seed", "1", "--max-new-tokens", "24")
    result = talk("q.wav", "--out", "a.wav", *server)
    samples, rate = soundfile.read(tmp_path / "a.wav")
    assert rate == 24_000
    assert len(samples) % FRAME == 0 < len(samples)
    assert "a.wav:" in result.stderr
    fields = json.loads(talk("q.wav", "--out", "b.mp3", "--json", *server).stdout)
    assert fields["text"] + "\n" == result.stdout
    assert fields["completion_tokens"] == 24
    assert fields["seconds"] == pytest.approx(len(samples) / rate, abs=0.01)
    assert (tmp_path / "b.mp3").read_bytes()[:1] == b"\xff"


def test_pipes(talk, served):
    pcm = to_s16le(QUESTION.samples)
    options = ("--server", served[0], "--seed", "1", "--max-new-tokens", "24", "--out", "-")
    result = talk("-", *options, input=wav_header(16_000, len(pcm)) + pcm)
    samples, rate = soundfile.read(io.BytesIO(result.stdout_bytes))
    assert rate == 24_000
    assert len(samples)
    assert "s of audio" in result.stderr
    assert "stdout" in talk("q.wav", "--json", *options, code=2).stderr


def test_talk_command_answers_in_this_process(talk, folder):
    result = talk("q.wav", "--model", str(folder), "--out", "a.wav", "--max-new-tokens", "12")
    assert result.stdout.strip()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("none.wav",), "cannot read"),
        (("text.wav",), "not audio"),
        (("q.wav", "--out", "a.xyz"), "suffix"),
        (("q.wav", "--seed", str(2**63)), "seed"),
        (("q.wav", "--model", "nobody/", "--out", "a.wav"), "nobody"),
    ],
)
def test_bad_input_is_one_line_and_code_2(talk, tmp_path, arguments, said):
    (tmp_path / "text.wav").write_text("this is text " * 99)
    result = talk(*arguments, code=2)
    assert said in result.stderr
    assert not result.stdout
    assert not (tmp_path / "a.wav").exists()


# -- other servers ---------------------------------------------------------------------------
PIECE = base64.b64encode(to_s16le(np.full(500, 0.25, np.float32))).decode()


def answering(*deltas, model_task="chat", end=True):
    """A server that answers with these events, as a cascade might: text and audio in any order."""
    app, asked = FastAPI(), []

    @app.get("/v1/models")
    async def models():
        entries = [{"id": "speaker", "task": "speech"}, {"id": "chatter", "task": model_task}]
        return {"data": entries}

    @app.post("/v1/chat/completions")
    async def answer(request: Request):
        asked.append(await request.json())
        if not deltas:
            error = {"message": "it cannot hear", "code": "invalid_request", "param": "model"}
            return JSONResponse({"error": error | {"type": "invalid_request_error"}}, 400)

        async def lines():
            for delta in deltas:
                event = {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
                yield f"data: {json.dumps(event)}\n\n"
            if end:
                last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
                yield f"data: {json.dumps(last)}\n\ndata: [DONE]\n\n"

        return StreamingResponse(lines(), media_type="text/event-stream")

    return app, asked


def test_a_chat_model_is_used_if_there_is_no_speech_to_speech_model():
    app, asked = answering(
        {"role": "assistant"},
        {"content": "Well, "},
        {"audio": {"id": "audio_1", "transcript": "yes."}},
        {"audio": {"data": PIECE}},
        {"audio": None},
        {"audio": {"data": PIECE}},
    )
    with listening(app) as port, Client(f"http://127.0.0.1:{port}") as client:
        answer = client.talk(QUESTION, voice="amber")
    assert (answer.text, answer.audio.samples.size, answer.finish_reason) == (
        "Well, yes.",
        1000,
        "stop",
    )
    # it gave no time until which it is kept
    assert answer.message == {"role": "assistant", "content": "Well, yes."}
    (body,) = asked
    assert (body["model"], body["audio"]) == ("chatter", {"voice": "amber", "format": "pcm16"})


@pytest.mark.parametrize(
    ("deltas", "end", "error"),
    [
        ((), True, InvalidRequest),
        (({"content": "a"},), False, EngineStopped),
        (({"audio": {"data": "%%%"}},), True, EngineStopped),
        (("a",), True, EngineStopped),
    ],
)
def test_a_broken_or_refused_answer_is_reported(deltas, end, error):
    app, _ = answering(*deltas, end=end)
    with (
        listening(app) as port,
        Client(f"http://127.0.0.1:{port}") as client,
        pytest.raises(error),
    ):
        client.talk(QUESTION)


def test_a_server_without_the_model_is_an_error():
    app, asked = answering(model_task="alignment")
    with (
        listening(app) as port,
        Client(f"http://127.0.0.1:{port}") as client,
        pytest.raises(ModelNotFound),
    ):
        client.talk(QUESTION)
    assert not asked
