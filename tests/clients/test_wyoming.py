"""The protocol's own client against `izwi wyoming`: `pip install .[clients,wyoming]`."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
import warnings
from contextlib import contextmanager

import numpy as np
import pytest

pytest.importorskip("wyoming", reason="wyoming is not installed")
with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # of audioop
    from wyoming.asr import Transcribe, Transcript
    from wyoming.audio import AudioChunk, AudioStart, AudioStop
    from wyoming.client import AsyncTcpClient
    from wyoming.error import Error
    from wyoming.info import Describe, Info
    from wyoming.tts import (
        Synthesize,
        SynthesizeChunk,
        SynthesizeStart,
        SynthesizeStop,
        SynthesizeStopped,
        SynthesizeVoice,
    )

SENTENCE = "The house is near the river."


@contextmanager
def serving(folder, *options):
    """`izwi wyoming` with the embedded models, in a process of its own."""
    start = "from izwi_api.cli.run import main; main()"
    command = [sys.executable, "-c", start, "wyoming", "--port", "0", "--server", "none"]
    command += ["--device", "cpu", "--dtype", "float32", *options]
    log = folder / "wyoming.log"
    environ = os.environ | {"IZWI_HOME": str(folder / "home"), "IZWI_DECODE_WORKERS": "1"}
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environ)
    try:
        until_s = time.monotonic() + 120
        while not (found := re.search(r"tcp://[\d.]+:(\d+)", log.read_text())):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until_s, log.read_text()
            time.sleep(0.1)
        yield int(found[1])
    finally:
        process.terminate()
        process.wait(60)


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("wyoming")) as port:
        yield port


async def until(client, kind):
    """Events up to one of a kind, the last one read as that kind."""
    events = []
    async with asyncio.timeout(90):
        while True:
            event = await client.read_event()
            assert event is not None
            assert not Error.is_type(event.type), event.data
            events.append(event)
            if kind.is_type(event.type):
                return events, kind.from_event(event)


def samples_of(events):
    chunks = [AudioChunk.from_event(event) for event in events if AudioChunk.is_type(event.type)]
    assert {(chunk.rate, chunk.width, chunk.channels) for chunk in chunks} == {(24_000, 2, 1)}
    return b"".join(chunk.audio for chunk in chunks)


async def hear(client, pcm):
    form = {"rate": 24_000, "width": 2, "channels": 1}
    await client.write_event(Transcribe(language="en").event())
    await client.write_event(AudioStart(**form).event())
    for start in range(0, len(pcm), 2048):
        await client.write_event(AudioChunk(audio=pcm[start : start + 2048], **form).event())
    await client.write_event(AudioStop().event())
    _, transcript = await until(client, Transcript)
    return transcript.text


async def test_what_is_said_is_heard(port):
    async with AsyncTcpClient("127.0.0.1", port) as client:
        await client.write_event(Describe().event())
        _, info = await until(client, Info)
        assert [model.name for model in info.asr[0].models] == ["izwi-tiny-asr"]
        voice = SynthesizeVoice(name=info.tts[0].voices[0].name)
        await client.write_event(Synthesize(text=SENTENCE, voice=voice).event())
        events, _ = await until(client, AudioStop)
        pcm = samples_of(events)
        assert np.abs(np.frombuffer(pcm, np.int16)).max() > 1000
        assert "river" in (await hear(client, pcm)).lower()


async def test_text_is_spoken_while_it_is_written(port):
    async with AsyncTcpClient("127.0.0.1", port) as client:
        await client.write_event(SynthesizeStart().event())
        for word in f"{SENTENCE} The water is cold today.".split():
            await client.write_event(SynthesizeChunk(text=f"{word} ").event())
        before_end, _ = await until(client, AudioChunk)
        await client.write_event(SynthesizeStop().event())
        events, _ = await until(client, SynthesizeStopped)
        assert "water" in (await hear(client, samples_of([*before_end, *events]))).lower()


async def test_home_assistant_finds_it(tmp_path):
    zeroconf = pytest.importorskip("zeroconf.asyncio")
    found = asyncio.Event()
    with serving(tmp_path, "--zeroconf") as port:

        def notice(zeroconf, service_type, name, state_change):
            if name.startswith("izwi-"):
                found.set()

        async with zeroconf.AsyncZeroconf() as watching:
            kind = "_wyoming._tcp.local."
            browser = zeroconf.AsyncServiceBrowser(watching.zeroconf, kind, handlers=[notice])
            async with asyncio.timeout(60):
                await found.wait()
            info = zeroconf.AsyncServiceInfo(
                kind, f"izwi-{os.uname().nodename.partition('.')[0]}.{kind}"
            )
            assert await info.async_request(watching.zeroconf, 5000)
            assert info.port == port
            await browser.async_cancel()
