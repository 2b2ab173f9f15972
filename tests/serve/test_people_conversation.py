"""A conversation with a server of the embedded models, by a voice that they were not trained on."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest
import soxr
from websockets.sync.client import connect

from benchmarks.quality.people_speech import RATE, flite
from izwi.audio.pcm import to_s16le
from tests.api.served import served

pytestmark = pytest.mark.slow

MODELS = ("izwi-tiny-tts", "izwi-tiny-asr", "izwi-tiny-chat")
# What flite's slt asks, and a word of the answer.
ASKED = (
    ("What is the capital of France?", "paris"),
    ("What is the capital of Italy?", "rome"),
    ("How many days are in a week?", "7 days"),
    ("What is seven plus five?", "12"),
)


@pytest.fixture(scope="module")
def questions():
    """Each question at 24 kHz, followed by a second of silence."""
    clips = flite([text for text, _ in ASKED], "slt")
    if not clips:
        pytest.skip("apt-get install flite")
    return [
        np.append(soxr.resample(clip.samples, RATE, 24_000), np.zeros(24_000, np.float32))
        for clip in clips
    ]


def test_spoken_questions_are_understood_and_answered_aloud(tmp_path, questions):
    options = [word for name in MODELS for word in ("--model", name)]
    with served(tmp_path, *options) as server:
        url = server.url.replace("http", "ws", 1) + "/v1/realtime?model=izwi-tiny-chat"
        with connect(url, proxy=None) as socket:
            session = {"audio": {"input": {"transcription": {}}, "output": {"lead_ms": 0}}}
            tell(socket, "session.update", session=session)
            turns = [turn(socket, question) for question in questions]
    assert "Traceback" not in server.log.read_text()
    wrong = [
        (text, heard, answer)
        for (text, word), (heard, answer, seconds) in zip(ASKED, turns, strict=True)
        if word not in answer.lower() or seconds < 0.3
    ]
    assert not wrong


def tell(socket, kind, **fields):
    socket.send(json.dumps({"type": kind, **fields}))


def turn(socket, question):
    """Ask; return what was heard, the answer's words and its seconds of audio."""
    data = to_s16le(question.astype(np.float32))
    for start in range(0, len(data), 9600):
        audio = base64.b64encode(data[start : start + 9600]).decode()
        tell(socket, "input_audio_buffer.append", audio=audio)
    heard = answer = ""
    num_bytes = 0
    while True:
        event = json.loads(socket.recv(120))
        match event["type"]:
            case "conversation.item.input_audio_transcription.completed":
                heard = event["transcript"]
            case "response.output_audio_transcript.done":
                answer = event["transcript"]
            case "response.output_audio.delta":
                num_bytes += len(base64.b64decode(event["delta"]))
            case "response.done":
                return heard, answer, num_bytes / 48_000
            case "error":
                raise AssertionError(event)
