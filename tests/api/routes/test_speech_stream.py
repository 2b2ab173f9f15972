"""The WebSocket /v1/audio/speech/stream: text is spoken while it is written."""

from __future__ import annotations

import asyncio
import base64
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest
from websockets.sync.client import connect

from izwi.audio.decode import decode_audio
from izwi.audio.encode import FORMATS
from izwi.audio.pcm import to_s16le
from izwi.errors import InvalidRequest, QuotaExceeded
from izwi.inputs.speech import SpeechInput, TextMode
from izwi.request.request import Request
from izwi_api.routes import speech_stream
from izwi_api.runtime_options import RuntimeOptions
from izwi_api.schemas.speech_stream import unit_end
from izwi_api.serve.app import create_app
from izwi_api.serve.local_services import open_services
from izwi_api.services.models.served import ServedModels
from izwi_api.services.speech.synthesis import open_speech
from izwi_api.sessions import core
from izwi_api.settings import Settings
from tests.api.conftest import FRAME, FakeEngine, FakePrompt, FakeRegistry, FakeSpeech, listening
from tests.api.routes.test_align import FakeAligner

PATH = "/v1/audio/speech/stream"
FRAME_BYTES = FRAME * 2


@dataclass
class FakePart:
    request_id: str
    ids: list[int]
    request: Request | None = None
    closed: bool = False
    piece: int = 0
    num_characters: int = 0


class FakeText:
    def __init__(self, request_id, model, ask):
        hertz = {"Bob": 330.0}.get(ask.voice, 220.0)
        prompt = FakePrompt("speech", hertz=hertz)
        self.begin = Request(request_id, model, prompt, seed=ask.seed, open_input=True)
        self.request_id = request_id

    def write(self, text):
        begin, self.begin = self.begin, None
        return [FakePart(self.request_id, list(map(ord, text)), begin)]

    def close(self):
        if self.begin:
            raise InvalidRequest("there is nothing to say", param="input")
        return [FakePart(self.request_id, [], closed=True)]


class FakeWritableSpeech(FakeSpeech):
    def text_stream(self, request_id, model, ask):
        if ask.language not in (None, "english"):
            raise InvalidRequest(f"no language {ask.language!r}", param="language")
        return FakeText(request_id, model, ask)


class Client:
    """The client's end of a WebSocket, directly at the app, without buffers."""

    def __init__(self, app, headers=()):
        self.scope = {
            "type": "websocket",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "scheme": "ws",
            "path": PATH,
            "raw_path": PATH.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(b"host", b"here:1"), *headers],
            "subprotocols": [],
            "state": {},
        }
        self.inbox, self.outbox = asyncio.Queue(), asyncio.Queue(maxsize=1)
        self.left = False
        self.inbox.put_nowait({"type": "websocket.connect"})
        self.task = asyncio.create_task(app(self.scope, self.inbox.get, self._take))

    async def _take(self, message):
        if self.left:
            raise OSError("the client has left")
        await self.outbox.put(message)

    def send(self, kind, **fields):
        self.send_raw(json.dumps({"type": kind} | fields))

    def send_raw(self, text):
        self.inbox.put_nowait({"type": "websocket.receive", "text": text})

    def configure(self, **fields):
        self.send("session.config", **({"model": "tts", "voice": "Ann"} | fields))

    async def receive(self):
        """The next message: bytes, or what its JSON holds."""
        message = await asyncio.wait_for(self.outbox.get(), 200)
        if message["type"] != "websocket.send":
            return message
        return message["bytes"] if message.get("bytes") is not None else json.loads(message["text"])

    async def until(self, kind):
        """All messages up to one of a kind."""
        messages = [await self.receive()]
        while isinstance(messages[-1], bytes) or messages[-1]["type"] != kind:
            messages.append(await self.receive())
        return messages

    async def say(self, text):
        """Write an utterance; its messages."""
        self.send("input.text", text=text)
        self.send("input.done")
        return await self.until("session.done")

    async def num_not_taken(self):
        """The remaining messages when no more are read."""
        left = None
        while left != (left := self.inbox.qsize()):  # noqa: ASYNC110
            await asyncio.sleep(0.2)
        return left

    def leave(self):
        self.left = True
        self.inbox.put_nowait({"type": "websocket.disconnect", "code": 1005})


class World:
    """An app over the fake engine, and its clients."""

    def __init__(self, home, **settings):
        self.engine = FakeEngine()
        self.models = {"tts": FakeWritableSpeech(), "whole": FakeSpeech()}
        registry = FakeRegistry(**self.models, aligner=FakeAligner())
        self.app = create_app(self.engine, registry, Settings(home=home, **settings))
        self.engine.start()
        self.clients = []

    def connect(self, *headers):
        self.clients.append(Client(self.app, headers))
        return self.clients[-1]

    async def open(self, **config):
        client = self.connect()
        assert (await client.receive())["type"] == "websocket.accept"
        client.configure(**config)
        return client

    async def until(self, condition, seconds=60.0):
        for _ in range(int(seconds / 0.005)):
            if condition():
                return
            await asyncio.sleep(0.005)
        raise AssertionError("waited too long")


@pytest.fixture
async def world(tmp_path):
    made = World(tmp_path)
    yield made
    for client in made.clients:
        client.leave()
        while not client.outbox.empty():
            client.outbox.get_nowait()
        await asyncio.wait_for(client.task, 60)
    assert not made.engine.live


@pytest.fixture
def limits(monkeypatch):
    def change(**fields):
        monkeypatch.setattr(speech_stream, "LIMITS", replace(speech_stream.LIMITS, **fields))

    return change


def audio(messages):
    return b"".join(message for message in messages if isinstance(message, bytes))


def of(messages, kind):
    return [m for m in messages if not isinstance(m, bytes) and m["type"] == kind]


async def test_it_is_heard_before_it_is_written(world):
    client = await world.open()
    client.send("input.text", text="hel")
    start, first = await client.receive(), await client.receive()
    assert start == {
        "type": "audio.start",
        "utterance_index": 0,
        "sentence_index": 0,
        "sentence_text": "hel",
        "format": "pcm",
        "sample_rate": 24_000,
        "channels": 1,
    }
    client.send("input.text", text="lo")
    client.send("input.done")
    messages = await client.until("session.done")
    assert len(first + audio(messages)) == 5 * FRAME_BYTES
    assert messages[-2:] == [
        {
            "type": "audio.done",
            "utterance_index": 0,
            "sentence_index": 0,
            "total_bytes": 5 * FRAME_BYTES,
            "error": False,
        },
        {
            "type": "session.done",
            "utterance_index": 0,
            "total_sentences": 1,
            "cancelled": False,
            "usage": {"input_tokens": 1, "output_tokens": 5, "total_tokens": 6},
        },
    ]


async def test_ignored_instructions_are_reported(world, monkeypatch):
    client = await world.open(instructions="Sing.")
    assert (await client.say("hi"))[-1]["ignored"] == ["instructions"]
    assert (await client.say("hi"))[-1]["ignored"] == ["instructions"]
    client.configure()
    assert "ignored" not in (await client.say("hi"))[-1]
    monkeypatch.setattr(FakeWritableSpeech, "follows_instructions", True, raising=False)
    client.configure(instructions="Sing.")
    assert "ignored" not in (await client.say("hi"))[-1]


@pytest.mark.parametrize("encoding", ["binary", "base64"])
@pytest.mark.parametrize("audio_format", FORMATS)
async def test_every_format(world, audio_format, encoding):
    client = await world.open(response_format=audio_format, audio_encoding=encoding, speed=0.5)
    messages = await client.say("x" * 10)
    content = audio(messages)
    if encoding == "base64":
        chunks = of(messages, "audio.chunk")
        assert [chunk["chunk_id"] for chunk in chunks] == list(range(len(chunks)))
        assert not content
        content = b"".join(base64.b64decode(chunk["audio_b64"]) for chunk in chunks)
    assert messages[-2]["total_bytes"] == len(content)
    if audio_format == "pcm":
        seconds = len(content) / 48_000
    else:
        seconds = len(decode_audio(content, 24_000)) / 24_000
    assert seconds == pytest.approx(1.6, abs=0.12)


async def test_without_streaming_a_file_is_one_message(world):
    client = await world.open(stream_audio=False, response_format="wav")
    messages = await client.say("hello")
    assert [isinstance(message, bytes) for message in messages] == [False, True, False, False]
    assert len(messages[1]) == 44 + 5 * FRAME_BYTES
    client.send("input.text", text="x" * 4097)
    assert (await client.receive())["error"]["code"] == "too_large"


async def test_sentences_and_clauses_are_files_of_their_own(world):
    text = "One, two. It is 3.5 now! And"
    for granularity, units in (
        ("sentence", ["One, two.", "It is 3.5 now!", "And"]),
        ("clause", ["One,", "two.", "It is 3.5 now!", "And"]),
    ):
        client = await world.open(split_granularity=granularity, model="whole", seed=4)
        for character in text:
            client.send("input.text", text=character)
        client.send("input.done")
        messages = await client.until("session.done")
        starts = of(messages, "audio.start")
        assert [start["sentence_text"] for start in starts] == units
        assert [start["sentence_index"] for start in starts] == list(range(len(units)))
        sizes = [done["total_bytes"] for done in of(messages, "audio.done")]
        assert sizes == [len(unit) * FRAME_BYTES for unit in units]
        assert messages[-1]["total_sentences"] == len(units)


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("", 0),
        ("One", 0),
        ("One.", 0),  # "One.5" may follow
        ("One. ", 4),
        ('"One!" she', 6),
        ("... One. Two", 8),
        ("3.5 and", 0),
        ("一。二", 2),
        ("One\nTwo", 4),
        ("x" * 31, 30),
        ("aaaa " * 7, 30),
        ("a" * 28 + " b. c", 29),
    ],
)
def test_where_a_sentence_ends(text, end):
    assert unit_end(text, "sentence", 30) == end


async def test_a_session_says_many_utterances_and_keeps_its_configuration(world):
    client = await world.open(seed=5)
    for index, text in enumerate(["one", "and two", "three"]):
        messages = await client.say(text)
        assert {m["utterance_index"] for m in messages if not isinstance(m, bytes)} == {index}
        assert len(audio(messages)) == len(text) * FRAME_BYTES
    client.configure(voice="Bob")
    other = audio(await client.say("three"))
    assert len(other) == 5 * FRAME_BYTES
    assert other != audio(messages)


async def test_text_without_words_gives_no_audio(world):
    client = await world.open()
    client.send("input.done")
    client.send("input.text", text=" \n ")
    client.send("input.done")
    for index in range(2):
        (done,) = await client.until("session.done")
        assert (done["utterance_index"], done["total_sentences"]) == (index, 0)


async def test_a_sentence_of_no_words_is_left_out(world):
    client = await world.open(split_granularity="sentence")
    messages = await client.say(" ... " + " " * 9000 + "One. \n !!! ")
    assert [start["sentence_text"] for start in of(messages, "audio.start")] == ["One."]
    assert not of(messages, "error")


async def test_a_configuration_in_the_middle_is_refused(world):
    client = await world.open()
    client.send("input.text", text="hel")
    client.configure(voice="Bob")
    messages = await client.until("error")
    client.send("input.text", text="lo")
    client.send("input.done")
    messages += await client.until("session.done")
    assert len(audio(messages)) == 5 * FRAME_BYTES


async def test_cancel_stops_immediately_and_the_session_continues(world):
    world.engine.step_s = 0.02
    client = await world.open()
    client.send("input.text", text="x" * 500)
    client.send("input.done")
    client.send("input.text", text="never said")
    await client.receive()
    await client.receive()
    client.send("input.cancel")
    messages = await client.until("session.done")
    made = world.engine.num_frames
    assert made < 50
    assert not world.engine.live
    messages += await client.until("session.done")
    assert [done["cancelled"] for done in of(messages, "session.done")] == [True, True]
    assert not audio(messages[-1:])
    await asyncio.sleep(0.1)
    assert world.engine.num_frames == made
    messages = await client.say("again")
    assert (len(audio(messages)), messages[-1]["cancelled"]) == (5 * FRAME_BYTES, False)
    assert messages[-1]["utterance_index"] == 2
    client.send("input.cancel")
    assert (await client.receive())["type"] == "error"


async def test_close_says_what_was_written_first(world):
    client = await world.open()
    client.send("input.text", text="one")
    client.send("input.done")
    client.send("input.text", text="two")
    client.send("session.close")
    client.send("input.text", text="not taken")
    messages = await client.until("websocket.close")
    assert len(audio(messages)) == 6 * FRAME_BYTES
    assert (messages[-1]["code"], messages[-2]["utterance_index"]) == (1000, 1)
    await asyncio.wait_for(client.task, 60)


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("granularity", ["none", "sentence"])
async def test_disconnect_ends_the_work(world, closed, granularity):
    world.engine.step_s = 0.02
    client = await world.open(split_granularity=granularity)
    client.send("input.text", text="x" * 100 + ". ")
    if closed:
        client.send("input.done")
    await world.until(lambda: world.engine.live)
    client.leave()
    await world.until(lambda: not world.engine.live)
    assert world.engine.aborted
    made = world.engine.num_frames
    await asyncio.wait_for(client.task, 60)
    await asyncio.sleep(0.1)
    assert world.engine.num_frames == made


BAD_MESSAGES = {
    "no JSON": ("{", None),
    "no object": ("[]", None),
    "null": ("null", None),
    "deep": ("[" * 100_000, None),
    "NaN": ('{"type": "session.config", "speed": NaN}', None),
    "no type": ("{}", "type"),
    "type is a list": ('{"type": []}', "type"),
    "unknown type": ('{"type": "input.sing"}', "type"),
    "no text": ('{"type": "input.text"}', "text"),
    "text is a number": ('{"type": "input.text", "text": 5}', "text"),
    "half a character": ('{"type": "input.text", "text": "\\ud83d"}', "text"),
    "unknown key": ('{"type": "input.done", "colour": 1}', "colour"),
    "large": ('{"type": "input.text", "text": "' + "x" * 131_072 + '"}', "text"),
    "huge": ('{"type": "session.config", "ref_audio": "' + "x" * (4 << 20) + '"}', None),
    "unknown voice": ('{"type": "session.config", "voice": "nobody"}', "voice"),
    "no voice": ('{"type": "session.config"}', "voice"),
    "unknown model": ('{"type": "session.config", "model": "x", "voice": "Ann"}', "model"),
    "speed": ('{"type": "session.config", "voice": "Ann", "speed": 9}', "speed"),
    "language": ('{"type": "session.config", "voice": "Ann", "language": "x"}', "language"),
    "text in it": ('{"type": "session.config", "voice": "Ann", "input": "hi"}', "input"),
    "word times": ('{"type": "session.config", "word_timestamps": true}', "word_timestamps"),
    "needs it whole": (
        '{"type": "session.config", "model": "whole", "voice": "Ann"}',
        "split_granularity",
    ),
    "nothing to cancel": ('{"type": "input.cancel"}', "type"),
}


@pytest.mark.parametrize("name", BAD_MESSAGES)
async def test_a_bad_message_is_answered_and_changes_nothing(world, name):
    text, param = BAD_MESSAGES[name]
    client = await world.open()
    client.send_raw(text)
    reported = await client.receive()
    assert reported["type"] == "error"
    error = reported["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert reported["message"] == error["message"]
    assert error["param"] == param
    assert len(audio(await client.say("hello"))) == 5 * FRAME_BYTES


async def test_text_before_the_configuration_and_binary_messages_are_refused(world):
    client = world.connect()
    await client.receive()
    client.send("input.text", text="hello")
    client.inbox.put_nowait({"type": "websocket.receive", "bytes": b"hello"})
    for _ in range(2):
        assert (await client.receive())["error"]["code"] == "invalid_request"
    client.configure()
    assert len(audio(await client.say("hello"))) == 5 * FRAME_BYTES


async def test_too_many_bad_messages_end_the_session(world):
    client, other = await world.open(), await world.open()
    for _ in range(100):
        client.send_raw("{")
    messages = await client.until("websocket.close")
    assert len(of(messages, "error")) == 101
    assert messages[-1]["code"] == 1008
    assert len(audio(await other.say("hello"))) == 5 * FRAME_BYTES


@pytest.mark.parametrize("granularity", ["none", "sentence"])
async def test_a_failure_ends_one_file_and_nothing_else(world, granularity):
    other = await world.open()
    other.send("input.text", text="hel")
    await other.receive()
    client = await world.open(split_granularity=granularity)
    client.send("input.text", text="hello\x01. ")
    (reported,) = of(await client.until("error"), "error")
    assert (reported["error"]["type"], reported["sentence_index"]) == ("server_error", 0)
    assert "tensor" not in reported["message"]
    client.send("input.text", text="More. ")
    client.send("input.done")
    messages = await client.until("session.done")
    assert of(messages, "audio.done")[0]["error"] is True
    assert len(audio(messages)) == (0 if granularity == "none" else 5 * FRAME_BYTES)
    assert len(audio(await client.say("again"))) == 5 * FRAME_BYTES
    other.send("input.text", text="lo")
    other.send("input.done")
    assert len(audio(await other.until("session.done"))) == 5 * FRAME_BYTES


async def test_overload_says_when_to_come_back(world):
    client = await world.open(split_granularity="sentence")
    messages = await client.say("refused \x02.")
    (reported,) = of(messages, "error")
    assert (reported["error"]["code"], reported["retry_after_s"]) == ("overloaded", 7)
    assert len(audio(await client.say("hello"))) == 5 * FRAME_BYTES


async def test_an_internal_error_hides_its_details_and_ends_one_utterance(world, caplog):
    client = await world.open(split_granularity="sentence")
    (reported,) = of(await client.say("PREPARE."), "error")
    assert "secret" not in json.dumps(reported)
    assert reported["error"]["code"] == "internal_error"
    assert "secret" in caplog.text
    assert len(audio(await client.say("hello"))) == 5 * FRAME_BYTES


async def test_an_utterance_has_a_limit(world, limits):
    limits(utterance_chars=10)
    client = await world.open()
    client.send("input.text", text="x" * 8)
    await client.receive()
    client.send("input.text", text="x" * 3)
    (reported,) = of(await client.until("error"), "error")
    assert (reported["error"]["code"], reported["error"]["param"]) == ("too_large", "text")
    client.send("input.text", text="yy")
    client.send("input.done")
    assert (await client.until("session.done"))[-1]["usage"]["output_tokens"] == 10


async def test_a_fast_client_is_backpressured(world, limits):
    limits(pending_chars=1000)
    client = await world.open()
    for _ in range(100):
        client.send("input.text", text="x" * 50)
    client.send("input.done")
    # it reads no audio, so its text is not accepted
    assert await client.num_not_taken() > 50
    messages = await client.until("session.done")
    assert len(audio(messages)) == 5000 * FRAME_BYTES


async def test_many_utterances_slow_the_client_too(world, limits):
    limits(pending_utterances=4)
    client = await world.open()
    for _ in range(20):
        client.send("input.text", text="hi")
        client.send("input.done")
    assert await client.num_not_taken() > 20
    for _ in range(20):
        messages = await client.until("session.done")
    assert messages[-1]["utterance_index"] == 19


async def test_a_session_that_is_not_configured_ends(world, limits):
    limits(config_s=0.2)
    client = world.connect()
    await client.receive()
    error, close = await client.receive(), await client.receive()
    assert (error["error"]["code"], close["code"]) == ("config_timeout", 1008)


@pytest.mark.parametrize("text", ["", "hello"])
async def test_an_idle_session_ends(world, limits, text):
    limits(idle_s=0.3)
    client = await world.open()
    client.send("input.text", text=text)  # and no more
    messages = await client.until("websocket.close")
    assert messages[-2]["error"]["code"] == "idle_timeout"
    assert len(audio(messages)) == len(text) * FRAME_BYTES
    assert not world.engine.live


async def test_white_space_does_not_keep_an_utterance_open(tmp_path):
    world = World(tmp_path, stream_text_s=0.4)
    client = await world.open(split_granularity="sentence")
    client.send("input.text", text="and")

    async def drip():
        while True:
            await asyncio.sleep(0.1)
            client.send("input.text", text=" \n")

    dripping = asyncio.create_task(drip())
    messages = await client.until("websocket.close")
    dripping.cancel()
    error = messages[-2]["error"]
    assert (error["code"], messages[-1]["code"]) == ("text_timeout", 1008)
    assert "0.4 s" in error["message"]
    assert "input.done" in error["message"]
    assert not world.engine.live


async def test_text_and_audio_keep_an_utterance_open(tmp_path):
    world = World(tmp_path, stream_text_s=1.0)
    client = await world.open()
    for _ in range(12):
        client.send("input.text", text="a")
        await asyncio.sleep(0.1)
        client.send("input.text", text=" ")
    client.send("input.done")
    assert len(audio(await client.until("session.done"))) == 24 * FRAME_BYTES
    world.engine.step_s = 0.05
    client.send("input.text", text="x" * 30)  # said for 1.5 s
    messages = await client.until("websocket.close")
    assert len(audio(messages)) == 30 * FRAME_BYTES
    assert messages[-2]["error"]["code"] == "text_timeout"


async def test_a_session_without_an_utterance_needs_no_text(tmp_path):
    world = World(tmp_path, stream_text_s=1.0)
    client = await world.open()
    for _ in range(12):
        await asyncio.sleep(0.1)
        client.configure()
    assert len(audio(await client.say("hi"))) == 2 * FRAME_BYTES


async def test_a_slow_engine_is_not_an_idle_client(world, limits):
    limits(idle_s=0.2)
    world.engine.step_s = 0.5
    client = await world.open()
    assert len(audio(await client.say("hi"))) == 2 * FRAME_BYTES


async def test_a_client_that_reads_nothing_is_disconnected(world, limits, monkeypatch):
    limits(idle_s=0.3)
    monkeypatch.setattr(core, "FAREWELL_S", 0.1)
    client = await world.open()
    client.send("input.text", text="x" * 2000)
    client.send("input.done")
    await asyncio.wait_for(client.task, 60)
    assert not world.engine.live


async def test_pages_of_other_sites_are_refused(world):
    for origin, kind in (
        (b"http://here:1", "websocket.accept"),
        (b"http://elsewhere:1", "websocket.close"),
        (b"null", "websocket.close"),
    ):
        assert (await world.connect((b"origin", origin)).receive())["type"] == kind


async def test_a_protocol_that_is_offered_is_taken(world):
    client = world.connect()
    client.scope["subprotocols"] = ["speech", "other"]
    assert (await client.receive())["subprotocol"] == "speech"


async def test_characters_are_counted_before_they_are_said(world, monkeypatch):
    client = await world.open()
    await client.say("hello")
    usage = client.scope["state"]["usage"]
    assert usage.characters == 5

    def refuse(**_):
        raise QuotaExceeded("nothing is left today", retry_after_s=60)

    with monkeypatch.context() as patch:
        patch.setattr(usage, "charge", refuse)
        client.send("input.text", text="more")
        reported = await client.receive()
    assert (reported["error"]["code"], reported["retry_after_s"]) == ("insufficient_quota", 60)
    client.send("input.done")
    assert (await client.receive())["total_sentences"] == 0
    await client.say("hello")
    assert usage.characters == 10


# -- nothing is faked from here on ---------------------------------------------------------------
MODEL, VOICE = "izwi-tiny-tts", "amber"
TEXT = "One, two. Then 3 came."


@asynccontextmanager
async def embedded(tmp_path, monkeypatch):
    """The real engine over the embedded checkpoint, and a client."""
    monkeypatch.setenv("IZWI_HOME", str(tmp_path / "home"))
    # a busy machine takes its time before the first message
    patient = replace(speech_stream.LIMITS, config_s=600.0, idle_s=600.0)
    monkeypatch.setattr(speech_stream, "LIMITS", patient)
    services = open_services([MODEL], RuntimeOptions(device="cpu", dtype="float32"))
    services.engine.start()
    client = Client(create_app(services.engine, services.registry, services.settings))
    await client.receive()
    yield services, client
    client.leave()
    await asyncio.wait_for(client.task, 60)
    await idle(services)
    await services.engine.stop()


def busy(services):
    load = services.engine.load[MODEL]
    return load["running"] or load["waiting"]


async def idle(services):
    for _ in range(6000):
        if not busy(services):
            return
        await asyncio.sleep(0.01)
    raise AssertionError("something still runs")


@pytest.mark.parametrize(
    "mode",
    [TextMode.STREAMING, pytest.param(TextMode.FULL, marks=pytest.mark.slow)],
    ids=["streaming", "full"],
)
async def test_it_is_to_the_bit_what_the_whole_text_says(tmp_path, monkeypatch, mode):
    async with embedded(tmp_path, monkeypatch) as (services, client):
        ask = SpeechInput(TEXT, VOICE, seed=7, text_mode=mode)
        speech = await open_speech(
            ServedModels(services.engine, services.registry).speech(MODEL), ask
        )
        whole = [to_s16le(chunk.pcm) async for chunk in speech.output() if chunk.pcm is not None]
        client.send("session.config", voice=VOICE, seed=7, text_mode=mode.value)
        for start in range(0, len(TEXT), 3):
            client.send("input.text", text=TEXT[start : start + 3])
        client.send("input.done")
        messages = await client.until("session.done")
        assert audio(messages) == b"".join(whole)
        assert len(audio(messages)) > 48_000
        assert messages[-1]["usage"]["output_tokens"] == speech.num_frames


async def test_the_real_engine_starts_early_and_is_cancelled_and_left(tmp_path, monkeypatch):
    async with embedded(tmp_path, monkeypatch) as (services, client):
        client.send("session.config", voice=VOICE, seed=7)
        client.send("input.text", text="One two three")
        assert (await client.receive())["type"] == "audio.start"
        assert isinstance(await client.receive(), bytes)  # and no more was written
        client.send("input.text", text=" four five six" * 20)
        client.send("input.cancel")
        assert (await client.until("session.done"))[-1]["cancelled"] is True
        await idle(services)
        client.send("input.text", text="Four five six" * 20)
        await client.until("audio.start")
        assert busy(services)  # until the client leaves


def test_over_a_real_socket(tmp_path):
    engine = FakeEngine()
    registry = FakeRegistry(tts=FakeWritableSpeech())
    app = create_app(engine, registry, Settings(home=tmp_path))
    with (
        listening(app, ws="auto") as port,
        connect(f"ws://127.0.0.1:{port}{PATH}") as socket,
    ):
        socket.send(json.dumps({"type": "session.config", "voice": "Ann"}))
        socket.send(json.dumps({"type": "input.text", "text": "hel"}))
        assert json.loads(socket.recv(60))["type"] == "audio.start"
        assert len(socket.recv(60)) == FRAME_BYTES
        for message in ({"type": "input.text", "text": "lo"}, {"type": "session.close"}):
            socket.send(json.dumps(message))
        rest = list(socket)
        assert len(audio(rest)) == 4 * FRAME_BYTES
        assert json.loads(rest[-1])["type"] == "session.done"
        assert (socket.close_code, engine.live) == (1000, {})


SSML = '<speak>One <break time="80ms"/><voice name="Bob">two</voice></speak>'


@pytest.mark.parametrize("granularity", ["none", "sentence"])
async def test_an_utterance_of_ssml_is_one_file(world, granularity):
    client = await world.open(split_granularity=granularity)
    for piece in (" ", "<", "spe", SSML[4:30]):  # the document is cut anywhere
        client.send("input.text", text=piece)
    client.send("input.text", text=SSML[30:])
    client.send("input.done")
    messages = await client.until("session.done")
    (start,) = of(messages, "audio.start")
    assert start["sentence_text"] == "One two"
    assert len(audio(messages)) == 6 * FRAME_BYTES + round(0.08 * 24_000) * 2
    asked = world.models["tts"].asked
    assert [(one.text, one.voice) for one in asked] == [("One", "Ann"), ("two", "Bob")]
    plain = await client.say("hello")  # the next one is a text again
    assert len(audio(plain)) == 5 * FRAME_BYTES


@pytest.mark.parametrize(
    ("text", "param", "problem"),
    [
        ("<speak>One <audio/></speak>", "input", "SSML, line 1, column 12: <audio>"),
        ("<speak>One", "input", "SSML, line 1"),
        ('<speak><voice name="Nobody">a</voice></speak>', "input", "Nobody"),
        ("<speak>" + "a" * 5000 + "</speak>", "text", "at most"),
    ],
)
async def test_refused_ssml_is_reported_and_the_session_continues(world, text, param, problem):
    client = await world.open()
    messages = await client.say(text)
    (reported,) = of(messages, "error")
    assert reported["error"]["param"] == param
    assert problem in reported["message"]
    assert audio(messages) == b""
    assert len(audio(await client.say("hello"))) == 5 * FRAME_BYTES


@pytest.mark.parametrize("text", ["<speaker> ", "<", " <spe", "a <speak>"])
async def test_what_only_begins_like_ssml_is_text(world, text):
    client = await world.open()
    assert len(audio(await client.say(text))) == len(text) * FRAME_BYTES


async def test_text_is_not_delayed_to_know_whether_it_is_ssml(world):
    client = await world.open()
    client.send("input.text", text="<speaker>")  # and no more yet
    assert (await client.receive())["type"] == "audio.start"
    client.send("input.done")
    assert len(audio(await client.until("session.done"))) == 9 * FRAME_BYTES


async def test_ssml_has_no_word_times(world):
    client = await world.open(
        split_granularity="sentence", audio_encoding="base64", word_timestamps=True
    )
    (reported,) = of(await client.say(SSML), "error")
    assert reported["error"]["param"] == "word_timestamps"
