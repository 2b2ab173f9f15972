"""Silence before, between and after sentences changes no word: in files, streams and sessions."""

from __future__ import annotations

import io
import json
import re

import httpx
import numpy as np
import pytest
import soundfile
from websockets.sync.client import connect

from izwi.audio.pcm import to_s16le
from tests.realtime.conftest import Talk

ASR, RATE = "izwi-tiny-asr", 24_000
SENTENCES = (
    "My brother works in a small shop near the station.",
    "The train leaves at seven in the morning.",
    "She put the book on the table near the window.",
)
# seconds before, between and after the sentences; level of the noise in dBFS, if any
LAYOUTS = [
    ((5.0, 2.3, 0.9, 0.0), None),
    ((12.0, 0.8, 6.5, 9.0), -55.0),
    *(
        pytest.param((lead, first, second, after), noise_db, marks=pytest.mark.slow)
        for lead, first, second, after, noise_db in (
            (0.0, 30.0, 4.6, 0.0, None),
            (4.6, 0.8, 0.8, 0.8, -60.0),
            (5.5, 5.5, 5.5, 5.5, -50.0),
            (6.0, 1.5, 11.0, 3.0, None),
            (30.0, 30.0, 30.0, 30.0, -65.0),
            (17.3, 2.6, 7.9, 1.1, -55.0),
            (1.0, 9.4, 1.9, 30.0, None),
        )
    ),
]
# beside files, by day: the one with noise
NOISY = [pytest.param(*LAYOUTS[0], marks=pytest.mark.slow), *LAYOUTS[1:]]


def words(text):
    return re.findall(r"[a-z']+", text.lower())


def laid_out(said, gaps, noise_db):
    parts = [np.zeros(int(gaps[0] * RATE), np.float32)]
    for sentence, gap in zip(SENTENCES, gaps[1:], strict=True):
        parts += [said(sentence), np.zeros(int(gap * RATE), np.float32)]
    samples = np.concatenate(parts)
    if noise_db is not None:
        rng = np.random.default_rng(len(samples))
        samples += np.float32(10 ** (noise_db / 20)) * rng.standard_normal(len(samples), "f4")
    return samples


def in_file(served, samples):
    content = io.BytesIO()
    soundfile.write(content, samples, RATE, format="WAV")
    answer = httpx.post(
        f"{served.url}/audio/transcriptions",
        data={"model": ASR},
        files={"file": ("a.wav", content.getvalue())},
        timeout=120,
    )
    return answer.json()["text"]


@pytest.fixture(scope="module")
def expected(served, said):
    """The words of the sentences, each heard alone."""
    return [word for text in SENTENCES for word in words(in_file(served, said(text)))]


@pytest.mark.parametrize(("gaps", "noise_db"), LAYOUTS)
def test_in_a_file(served, said, expected, gaps, noise_db):
    assert words(in_file(served, laid_out(said, gaps, noise_db))) == expected


@pytest.mark.parametrize(("gaps", "noise_db"), NOISY)
def test_in_a_stream(served, said, expected, gaps, noise_db):
    data = to_s16le(laid_out(said, gaps, noise_db))
    url = f"ws://127.0.0.1:{served.port}/v1/audio/transcriptions/stream"
    with connect(url, proxy=None) as socket:
        socket.send(json.dumps({"type": "session.config", "model": ASR, "sample_rate": RATE}))
        for start in range(0, len(data), RATE):
            socket.send(data[start : start + RATE])
        socket.send(json.dumps({"type": "input.done"}))
        stable = {}
        while (event := json.loads(socket.recv(120)))["type"] != "transcript.done":
            if event["type"] == "transcript.partial":
                stable[event["segment"]] = event["stable"]
            elif event["type"] == "transcript.segment":
                assert event["text"].startswith(stable.get(event["segment"], ""))
    assert words(event["text"]) == expected


async def transcribed(client, samples, turn_detection):
    """Return the transcripts of a transcription session, joined."""
    query = {"intent": "transcription", "model": ASR}
    async with client.realtime.connect(extra_query=query) as connection:
        talk = Talk(connection)
        audio = {"input": {"turn_detection": turn_detection}}
        await connection.session.update(session={"type": "transcription", "audio": audio})
        await talk.until("session.updated")
        await talk.speak(samples)
        if turn_detection is None:
            await connection.input_audio_buffer.commit()
        num_items = 1 if turn_detection is None else len(SENTENCES)
        texts = {}
        while len(texts) < num_items or None in texts.values():
            event = await talk.next()
            if event.type == "input_audio_buffer.committed":
                texts[event.item_id] = None
            elif event.type == "conversation.item.input_audio_transcription.completed":
                texts[event.item_id] = event.transcript
    return " ".join(texts.values())


@pytest.mark.parametrize(("gaps", "noise_db"), NOISY)
async def test_in_a_buffer_that_is_committed(client, said, expected, gaps, noise_db):
    text = await transcribed(client, laid_out(said, gaps, noise_db), None)
    assert words(text) == expected


@pytest.mark.parametrize(("gaps", "noise_db"), NOISY)
async def test_in_a_session_with_turns(client, said, expected, gaps, noise_db):
    samples = laid_out(said, (*gaps[:3], max(gaps[3], 0.8)), noise_db)
    text = await transcribed(client, samples, {"type": "server_vad"})
    assert words(text) == expected
