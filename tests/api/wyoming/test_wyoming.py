"""The Wyoming server over the small engine; tests/clients has the protocol's own client."""

from __future__ import annotations

import asyncio
import json

import pytest

from izwi_api.cli.main import app
from izwi_api.client import AsyncClient
from izwi_api.serve.app import create_app
from izwi_api.settings import Access, Settings
from izwi_api.usage.keys import add_key
from izwi_api.usage.limits import KeyLimits
from izwi_api.wyoming.events import Event, read_event, write_event
from izwi_api.wyoming.server import wyoming_server
from tests.api.conftest import FRAME, FakeEngine, FakeRegistry, FakeTranscription, listening
from tests.api.routes.test_speech_stream import FakeWritableSpeech

FORM = {"rate": 16_000, "width": 2, "channels": 1}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    file = home / "keys.toml"
    poor = KeyLimits(characters_per_day=3)
    keys = {"free": add_key(file, "free", KeyLimits()), "poor": add_key(file, "poor", poor)}
    registry = FakeRegistry(tts=FakeWritableSpeech(), asr=FakeTranscription())
    settings = Settings(home=home, access=Access(api_keys_file=file))
    with listening(create_app(FakeEngine(), registry, settings), ws="auto") as port:
        yield f"http://127.0.0.1:{port}", keys


class Home:
    """A client of the protocol."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    async def send(self, kind, payload=b"", **data):
        await write_event(self.writer, Event(kind, data, payload))

    async def until(self, kind):
        events = []
        async with asyncio.timeout(60):
            while not events or events[-1].type != kind:
                events.append(await read_event(self.reader))
                assert events[-1] is not None
        return events


@pytest.fixture
async def connect(world):
    """Connect to a Wyoming server in front of the small one, with a key."""
    url, keys = world
    opened = []

    async def make(key="free"):
        client = AsyncClient(url, api_key=keys[key])
        server = wyoming_server(client, "127.0.0.1", 0)
        await client.__aenter__()
        port = await server.__aenter__()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        opened.append((client, server, writer))
        return Home(reader, writer)

    yield make
    for client, server, writer in opened:
        writer.close()
        await writer.wait_closed()
        await server.__aexit__(None, None, None)
        await client.__aexit__(None, None, None)


def audio_of(events):
    return b"".join(event.payload for event in events if event.type == "audio-chunk")


async def test_it_describes_models_and_voices(connect):
    home = await connect()
    await home.send("describe")
    (info,) = await home.until("info")
    (asr,), (tts,) = info.data["asr"], info.data["tts"]
    assert [(model["name"], model["languages"]) for model in asr["models"]] == [("asr", ["en"])]
    assert [voice["name"] for voice in tts["voices"]] == ["Ann", "Bob"]
    assert tts["supports_synthesize_streaming"]
    await home.send("ping", text="a")
    assert (await home.until("pong"))[0].data == {"text": "a"}


async def test_audio_is_transcribed(connect, tone_wav):
    home = await connect()
    await home.send("transcribe", language="en", name="elsewhere")
    await home.send("audio-start", **FORM)
    audio = tone_wav(2.0)[44:]
    for start in range(0, len(audio), 2048):
        await home.send("audio-chunk", audio[start : start + 2048], **FORM)
    await home.send("audio-stop")
    events = await home.until("transcript-stop")
    assert events[0].type == "transcript-start"
    pieces = [event.data["text"] for event in events if event.type == "transcript-chunk"]
    (transcript,) = [event for event in events if event.type == "transcript"]
    assert "".join(pieces).strip() == transcript.data["text"] == "word word"


async def test_a_text_is_spoken(connect):
    home = await connect()
    await home.send("synthesize", text="Hello", voice={"name": "Bob"})
    events = await home.until("audio-stop")
    assert events[0].data == {"rate": 24_000, "width": 2, "channels": 1}
    assert len(audio_of(events)) == 5 * FRAME * 2


async def test_text_is_spoken_while_it_is_written(connect):
    home = await connect()
    await home.send("synthesize-start", voice={"name": "Ann"})
    await home.send("synthesize-chunk", text="Hello ")
    first = await home.until("audio-chunk")
    await home.send("synthesize-chunk", text="there")
    await home.send("synthesize", text="Hello there")  # for servers that cannot stream
    await home.send("synthesize-stop")
    rest = await home.until("synthesize-stopped")
    assert len(audio_of(first + rest)) == 11 * FRAME * 2
    assert [event.type for event in rest].count("audio-stop") == 1


@pytest.mark.parametrize(
    ("key", "kind", "data", "code"),
    [
        ("free", "synthesize", {"text": "Hi", "voice": {"name": "Nobody"}}, "voice_not_found"),
        ("free", "synthesize", {"text": ["Hi"]}, "invalid_message"),
        ("free", "audio-start", {"rate": 16_000, "width": 4, "channels": 1}, "invalid_message"),
        ("free", "audio-chunk", {"rate": 1, "width": 2, "channels": 1}, "invalid_message"),
        ("poor", "synthesize", {"text": "Hello"}, "insufficient_quota"),
    ],
)
async def test_an_error_is_reported_and_the_connection_goes_on(connect, key, kind, data, code):
    home = await connect(key)
    await home.send(kind, **data)
    assert (await home.until("error"))[0].data["code"] == code
    await home.send("ping")
    await home.until("pong")


async def test_streamed_text_over_the_quota_is_reported(connect):
    home = await connect("poor")
    await home.send("synthesize-start")
    await home.send("synthesize-chunk", text="Hello there")
    await home.send("synthesize-stop")
    events = await home.until("synthesize-stopped")
    assert [event.data["code"] for event in events if event.type == "error"] == [
        "insufficient_quota"
    ]


@pytest.mark.parametrize(
    "line",
    [b"nonsense\n", b"[]\n", b'{"type": "a", "payload_length": 9999999999}\n', b"a" * 99_999],
)
async def test_what_is_no_event_ends_the_connection(connect, line):
    home = await connect()
    home.writer.write(line)
    assert (await home.until("error"))[0].data["code"] == "invalid_message"
    assert await home.reader.read() == b""


async def test_events_are_read_as_they_are_written():
    reader = asyncio.StreamReader()
    data = json.dumps({"b": "é"}).encode()
    head = {"type": "a", "data": {"c": 1}, "data_length": len(data), "payload_length": 3}
    reader.feed_data(json.dumps(head).encode() + b"\n" + data + b"xyz")
    reader.feed_eof()
    assert await read_event(reader) == Event("a", {"b": "é", "c": 1}, b"xyz")
    assert await read_event(reader) is None


def test_the_command_says_what_zeroconf_needs():
    from importlib.util import find_spec

    from typer.testing import CliRunner

    if find_spec("zeroconf") is not None:
        pytest.skip("zeroconf is installed")
    options = ["--zeroconf", "--server", "http://127.0.0.1:1"]
    result = CliRunner().invoke(app, ["wyoming", *options])
    assert result.exit_code != 0
