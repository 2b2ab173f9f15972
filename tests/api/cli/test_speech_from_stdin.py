"""Text on stdin that a server speaks while it is written."""

from __future__ import annotations

import asyncio
import os
import threading
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from izwi.errors import EngineStopped, InvalidRequest
from izwi_api.cli.text_in import ArrivingText
from izwi_api.client import AsyncClient
from izwi_api.client import speech as module
from izwi_api.routes import speech_stream
from izwi_api.serve.app import create_app
from izwi_api.settings import Access, Settings
from izwi_api.usage.keys import digest_of
from tests.api.conftest import FRAME, FakeEngine, FakeRegistry, listening, wait_for
from tests.api.routes.test_speech_stream import FakeWritableSpeech

FIELDS = {"model": "tts", "voice": "Ann", "seed": 3, "language": None}


@pytest.fixture
def there(tmp_path):
    """A server whose model speaks text while it is written, and its engine."""
    engine = FakeEngine()
    access = Access(digest_of("the key"))
    settings = Settings(home=tmp_path, access=access)
    app = create_app(engine, FakeRegistry(tts=FakeWritableSpeech()), settings)
    with listening(app, ws="auto") as port:
        yield AsyncClient(f"http://127.0.0.1:{port}/v1", api_key="the key"), engine


async def dictated(client, pieces, begun="", fields=FIELDS):
    """Speak text from a pipe, piece by piece; the next follows when new audio was received."""
    reading, writing = os.pipe()
    os.write(writing, pieces[0])
    rest = iter(pieces[1:])
    samples = []
    try:
        async with client, client.stream_speech(text_of(reading, begun), **fields) as speech:
            async for audio in speech:
                samples.append(audio.samples)
                piece = next(rest, None)
                if piece is not None:
                    os.write(writing, piece)
                elif writing is not None:
                    os.close(writing)
                    writing = None
    finally:
        if writing is not None:
            os.close(writing)
    return np.concatenate(samples)


async def text_of(reading, begun=""):
    if begun:
        yield begun
    async for piece in ArrivingText(partial(os.read, reading)).pieces():
        yield piece


async def test_audio_is_sent_before_the_text_is_complete(there):
    server, engine = there
    samples = await dictated(server, (b"One, ", b"two, ", b"three."), begun="Well: ")
    assert len(samples) == len("Well: One, two, three.") * FRAME
    assert not engine.live


async def test_ignored_instructions_are_reported(there):
    server, _ = there

    async def written():
        yield "Hi."

    async def ignored(**fields):
        async with server.stream_speech(written(), **FIELDS, **fields) as speech:
            assert [audio async for audio in speech]
        return speech.result.ignored

    async with server:
        assert await ignored(instructions="Sing.") == ["instructions"]
        assert await ignored() == []


async def test_the_voice_is_the_one_that_was_asked_for(there):
    server, _ = there
    ann, bob = [
        await dictated(server, (b"Hello.",), fields=FIELDS | {"voice": v}) for v in ("Ann", "Bob")
    ]
    assert len(ann) == len(bob)
    assert not np.array_equal(ann, bob)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": "none"}, "no model 'none' is served here"),
        ({"voice": "nobody"}, "nobody"),
        ({"language": "klingon"}, "klingon"),
    ],
)
async def test_a_refusal_of_the_server_is_reported(there, fields, message):
    with pytest.raises(InvalidRequest, match=message):
        await asyncio.wait_for(dictated(there[0], (b"One.",), fields=FIELDS | fields), 60)


async def test_a_truncated_text_is_the_reported_cause(there):
    server, engine = there
    with pytest.raises(InvalidRequest, match="UTF-8"):
        await dictated(server, (b"One, two, three. ", b"four \xff five"))
    wait_for(lambda: not engine.live)


async def test_a_blank_text_is_an_error(there):
    client, _ = there
    reading, writing = os.pipe()
    os.write(writing, b"  \n ")
    os.close(writing)
    with pytest.raises(InvalidRequest, match="no text"):
        async with client, client.stream_speech(text_of(reading), **FIELDS) as speech:
            await anext(speech)


async def test_an_unreachable_server_is_an_error():
    with pytest.raises(EngineStopped, match="no server responds"):
        await dictated(AsyncClient("http://127.0.0.1:9"), (b"One.",))


@pytest.mark.parametrize("key", [None, "another"])
async def test_a_rejected_key_is_reported(there, key, monkeypatch):
    client, _ = there
    with pytest.raises(InvalidRequest, match="API key"):
        await dictated(AsyncClient(client.base_url, api_key=key), (b"One.",))


async def test_disconnect_frees_the_engine(there):
    client, engine = there
    reading, writing = os.pipe()
    os.write(writing, b"One, two, three, four. " * 8)
    async with client, client.stream_speech(text_of(reading), **FIELDS) as speech:
        await anext(speech)
        assert engine.live
    os.close(writing)
    await asyncio.to_thread(wait_for, lambda: not engine.live)


async def test_a_silent_writer_keeps_its_session_alive(there, monkeypatch):
    """The server closes idle sessions, here after half a second."""
    client, _ = there
    limits = replace(speech_stream.LIMITS, idle_s=0.5)
    monkeypatch.setattr(speech_stream, "LIMITS", limits)
    monkeypatch.setattr(module, "_KEEP_ALIVE_S", 0.1)
    reading, writing = os.pipe()
    os.write(writing, b"One. ")

    def finish():
        os.write(writing, b"Two.")
        os.close(writing)

    later = threading.Timer(1.5, finish)
    later.start()
    async with client, client.stream_speech(text_of(reading), **FIELDS) as speech:
        samples = [audio.samples async for audio in speech]
    later.join()
    assert sum(map(len, samples)) == len("One. Two.") * FRAME


async def test_a_model_that_needs_its_text_whole_gets_it_whole(server):
    """The fake accepts no text in pieces: text written meanwhile is not lost."""

    async def text():
        for piece in ("One, ", "two, ", "three."):
            yield piece
            await asyncio.sleep(0)

    client = AsyncClient(server.url)
    async with client, client.stream_speech(text(), voice="Ann") as speech:
        samples = [audio.samples async for audio in speech]
    assert sum(map(len, samples)) == len("One, two, three.") * FRAME
