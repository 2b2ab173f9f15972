"""API servers with the real engine and checkpoints of random weights: nothing is faked."""

from __future__ import annotations

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest

from tests.api.conftest import wait_for
from tests.api.in_process import serving
from tests.models.tiny_asr import write_tiny_asr
from tests.models.tiny_tts import write_tiny_tts

SPEECH = "/v1/audio/speech"
ASK = {
    "model": "custom_voice",
    "voice": "ryan",
    "input": "Hello there, my friend.",
    "response_format": "pcm",
    "max_new_tokens": 16,
}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    root = tmp_path_factory.mktemp("real")
    folders = [root / "custom_voice", root / "base", root / "asr"]
    for folder in folders:
        folder.mkdir()
    write_tiny_tts(folders[0], "custom_voice")
    write_tiny_tts(folders[1], "base")
    write_tiny_asr(folders[2])
    with (
        serving(root / "home", *folders) as (url, services),
        httpx.Client(base_url=url, timeout=60) as client,
    ):
        yield client, services


def test_speech_is_the_same_alone_and_among_others(served):
    client, _ = served

    def say(seed):
        answer = client.post(SPEECH, json=ASK | {"seed": seed})
        assert answer.status_code == 200, answer.text
        return np.frombuffer(answer.content, "<i2").astype(int)

    alone = [say(seed) for seed in range(3)]
    assert len({pcm.tobytes() for pcm in alone}) == 3
    assert all(len(pcm) and len(pcm) % 1920 == 0 for pcm in alone)
    with ThreadPoolExecutor(3) as pool:
        for pcm, among_others in zip(alone, pool.map(say, range(3)), strict=True):
            # The codes are the same; a batched codec may round a sample the other way.
            np.testing.assert_allclose(among_others, pcm, atol=1)


def test_every_kind_of_voice(served, tone_wav):
    client, _ = served
    form = {"name": "me", "consent": "yes", "ref_text": "la la"}
    files = {"audio_sample": ("a.wav", tone_wav(1.5, 24_000))}
    assert client.post("/v1/audio/voices", data=form, files=files).status_code == 200
    ask = ASK | {"model": "base"}
    assert client.post(SPEECH, json=ask | {"voice": "me"}).status_code == 200
    assert client.post(SPEECH, json=ask | {"voice": "alloy"}).status_code == 404
    assert client.post(SPEECH, json=ASK | {"voice": "alloy"}).status_code == 200
    assert client.post(SPEECH, json=ASK | {"voice": "me"}).status_code == 400


def test_transcription_streams_what_it_answers(served, tone_wav):
    client, _ = served
    files = {"file": ("a.wav", tone_wav(2.0))}
    ask = {"model": "asr", "max_new_tokens": "24"}
    whole = client.post("/v1/audio/transcriptions", data=ask, files=files)
    assert whole.status_code == 200, whole.text
    assert whole.json()["usage"]["input_tokens"] > 0
    streamed = client.post("/v1/audio/transcriptions", data=ask | {"stream": "true"}, files=files)
    assert "transcript.text.done" in streamed.text


def test_leaving_frees_the_engine(served):
    client, services = served

    def busy():
        load = services.engine.load["custom_voice"]
        return any(load[key] for key in load if key in ("running", "waiting"))

    ask = ASK | {"input": "hello " * 60, "max_new_tokens": 2000}
    with client.stream("POST", SPEECH, json=ask) as answer:
        pieces = answer.iter_raw()
        next(pieces)
        assert busy()
        steps = figure(client, "steps_total", "custom_voice")
    wait_for(lambda: not busy())
    assert figure(client, "steps_total", "custom_voice") < steps + 1800  # of 2000


def figure(client, name, model):
    """One of the engine's figures, as /metrics has it."""
    lines = client.get("/metrics").text.splitlines()
    wanted = f'izwi_engine_{name}{{model="{model}"}} '
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith(wanted))


@pytest.fixture
def slow_steps(served, monkeypatch):
    """Steps so long that a client's leaving is noticed in the step in which it leaves."""
    _, services = served
    for name in ("custom_voice", "asr"):
        model = services.registry.models[name]

        def run(x, context, run=model.run):
            time.sleep(0.1)
            return run(x, context)

        monkeypatch.setattr(model, "run", run)


def check_freed(client, model, steps):
    """Its place is free, at most two steps after those that had begun."""
    wait_for(lambda: figure(client, "running", model) == 0)
    assert figure(client, "steps_total", model) <= steps + 2


def test_disconnect_from_a_stream_frees_its_slot_within_two_steps(served, slow_steps):
    client, _ = served
    with client.stream("POST", SPEECH, json=ASK | {"max_new_tokens": 200}) as answer:
        pieces = answer.iter_raw()  # kept: httpx hangs up when it is collected
        next(pieces)
        assert figure(client, "running", "custom_voice") == 1
        steps = figure(client, "steps_total", "custom_voice")
    check_freed(client, "custom_voice", steps)


def test_disconnect_before_the_answer_frees_its_slot_within_two_steps(served, slow_steps, tone_wav):
    client, _ = served
    form = {"model": "asr", "temperature": "0"}
    request = client.build_request(
        "POST", "/v1/audio/transcriptions", data=form, files={"file": ("a.wav", tone_wav(2.0))}
    )
    head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    with socket.create_connection((request.url.host, request.url.port)) as raw:
        raw.sendall(f"POST {request.url.path} HTTP/1.1\r\n{head}\r\n".encode() + request.read())
        wait_for(lambda: figure(client, "running", "asr") == 1)
        steps = figure(client, "steps_total", "asr")
    check_freed(client, "asr", steps)
