"""The WebSocket /v1/audio/transcriptions/stream: words while the audio arrives."""

from __future__ import annotations

import json
import time
from contextlib import contextmanager, suppress

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from izwi.audio.pcm import to_s16le
from izwi_api.realtime.hearing.turn_speakers import TurnSpeakers
from izwi_api.realtime.protocol.transcript_events import SpeakerSegment
from izwi_api.routes import transcription_stream

PATH = "/v1/audio/transcriptions/stream"
SENTENCE = "When does the train leave?"


@contextmanager
def listening_to(served):
    with connect(f"ws://127.0.0.1:{served.port}{PATH}", proxy=None) as socket:
        yield socket


def tell(socket, kind, **fields):
    socket.send(json.dumps({"type": kind, **fields}))


def until(socket, kind):
    events = []
    while not events or events[-1]["type"] != kind:
        events.append(json.loads(socket.recv(120)))
    return events


def test_audio_is_transcribed_while_it_arrives(served, said):
    data = to_s16le(said(SENTENCE))
    with listening_to(served) as socket:
        tell(socket, "session.config", model="izwi-tiny-asr", sample_rate=24_000, chunk_s=0.4)
        for round_ in range(2):
            for start in range(0, len(data), 4801):  # cut within samples
                socket.send(data[start : start + 4801])
            if round_ == 0:
                partial = until(socket, "transcript.partial")[-1]
                assert partial["segment"] == 0
            tell(socket, "input.done")
            events = until(socket, "transcript.done")
            done = events[-1]
            assert "train" in done["text"].lower()
            assert "ignored" not in done
            assert done["usage"]["seconds"] == pytest.approx(len(data) / 48_000, abs=0.01)
            segments = [event for event in events if event["type"] == "transcript.segment"]
            assert " ".join(segment["text"].strip() for segment in segments) == done["text"]


def test_pending_audio_is_transcribed_before_the_session_closes(served, said):
    with listening_to(served) as socket:
        tell(socket, "session.config", sample_rate=24_000, prompt="Trains")  # it cannot follow it
        socket.send(to_s16le(said(SENTENCE)))
        tell(socket, "session.close")
        done = until(socket, "transcript.done")[-1]
        assert "train" in done["text"].lower()
        assert done["ignored"] == ["prompt"]
        with pytest.raises(ConnectionClosed):
            socket.recv(60)
        assert socket.close_code == 1000


def test_segments_name_their_speaker(served, said, monkeypatch):
    data = to_s16le(said(SENTENCE))
    with listening_to(served) as socket:
        tell(socket, "session.config", sample_rate=24_000, speakers=True)
        socket.send(data)
        tell(socket, "input.done")
        *_, done = events = until(socket, "transcript.done")
        segments = [event for event in events if event["type"] == "transcript.segment"]
        assert {segment["speaker"] for segment in segments if segment["text"]} == {"A"}
        assert " ".join(segment["text"].strip() for segment in segments) == done["text"]
        heard = []

        async def segments_of(_, setting, samples, transcript):
            heard.append((setting.model, len(samples), await transcript))
            parts = (0.0, 0.5, "B", "When does"), (0.5, 1.0, "A", "the train leave?")
            return [SpeakerSegment(*part) for part in parts]

        monkeypatch.setattr(TurnSpeakers, "segments", segments_of)
        socket.send(data)
        tell(socket, "input.done")
        events = until(socket, "transcript.done")
    parts_sent = [event for event in events if event["type"] == "transcript.segment"]
    assert [event["speaker"] for event in parts_sent] == ["B", "A"] * len(heard)
    assert parts_sent[1]["start"] == parts_sent[0]["end"] == parts_sent[0]["start"] + 0.5
    assert {model for model, _, _ in heard} == {"izwi-tiny-asr"}
    assert sum(count for _, count, _ in heard) == pytest.approx(len(data) / 3, abs=200)
    assert " ".join(text for _, _, text in heard) == events[-1]["text"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"known_speaker_names": ["ann"]}, "known_speaker_references"),
        ({"speakers": False, "known_speaker_names": ["ann"], "known_speaker_references": ["x"]},
         "speakers"),
        ({"known_speaker_names": ["ann"], "known_speaker_references": ["x"]},
         "known_speaker_references"),
        ({"speaker_threshold": 2.0}, "speaker_threshold"),
    ],
)  # fmt: skip
def test_speakers_that_cannot_be_told_apart_are_refused(served, fields, param):
    with listening_to(served) as socket:
        tell(socket, "session.config", **{"speakers": True, **fields})
        error = until(socket, "error")[-1]["error"]
    assert error["param"] == param, error


def test_cancelled_audio_is_dropped(served, said):
    with listening_to(served) as socket:
        socket.send(to_s16le(said(SENTENCE)))
        tell(socket, "input.cancel")
        assert until(socket, "transcript.done")[-1]["cancelled"] is True
        tell(socket, "session.config", sample_rate=24_000)
        socket.send(to_s16le(said(SENTENCE)))
        tell(socket, "input.done")
        done = until(socket, "transcript.done")[-1]
        assert done["cancelled"] is False
        assert "train" in done["text"].lower()


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("{", None),
        ("[]", None),
        ('{"type": "sing"}', "type"),
        ('{"type": "session.config", "colour": 1}', "colour"),
        ('{"type": "session.config", "sample_rate": 7999}', "sample_rate"),
        ('{"type": "session.config", "chunk_s": 0}', "chunk_s"),
        ('{"type": "session.config", "model": "nope"}', "model"),
        ('{"type": "session.config", "model": "izwi-tiny-tts"}', "model"),
        ('{"type": "session.config", "language": "klingon"}', "language"),
        ("x" * ((1 << 20) + 1), None),
        (bytes((1 << 20) + 2), None),
    ],
)
def test_a_bad_message_is_answered_and_changes_nothing(served, message, param):
    with listening_to(served) as socket:
        socket.send(message)
        error = json.loads(socket.recv(60))["error"]
        assert error["type"] == "invalid_request_error"
        assert param is None or error["param"] == param
        socket.send(bytes(32_000))
        tell(socket, "input.done")
        assert until(socket, "transcript.done")[-1]["text"] == ""


def test_a_configuration_during_an_utterance_is_refused(served, said):
    with listening_to(served) as socket:
        socket.send(to_s16le(said(SENTENCE)))
        tell(socket, "session.config")
        assert until(socket, "error")[-1]["error"]["param"] == "type"


def test_a_client_that_disconnects_frees_the_engine(served, said):
    for _ in range(3):
        with listening_to(served) as socket:
            socket.send(to_s16le(said(SENTENCE)) * 8)
    until_s = time.monotonic() + 60
    while any(load["running"] or load["waiting"] for load in served.engine.load.values()):
        assert time.monotonic() < until_s
        time.sleep(0.02)


def test_an_idle_session_ends(served, monkeypatch):
    limits = transcription_stream.LIMITS
    changed = type(limits)(idle_s=0.2, idle_code=limits.idle_code)
    monkeypatch.setattr(transcription_stream, "LIMITS", changed)
    with listening_to(served) as socket:
        codes = []
        with suppress(ConnectionClosed):
            while True:
                codes.append(json.loads(socket.recv(60))["error"]["code"])
        assert codes == ["idle_timeout"]
        assert socket.close_code == 1008
    assert httpx.get(f"http://127.0.0.1:{served.port}/livez").status_code == 200
