"""The engine over sockets: the same bits, and a slow or dead API server loses nothing."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import numpy as np
import pytest
from msgspec import Struct
from msgspec.structs import replace

from izwi.backends.torch.backend import torch_backend
from izwi.checkpoints.registry import Registry
from izwi.config import EngineConfig
from izwi.engine.async_engine import AsyncEngine
from izwi.engine.engine import Engine
from izwi.errors import EngineStopped, InvalidRequest
from izwi.inputs.speech import ReferenceClip, SpeechInput, TextMode, TranscriptionInput
from izwi.request.request import Reason
from izwi_api.serve import wire
from izwi_api.serve.engine_process import MAX_UNACKNOWLEDGED
from izwi_api.serve.remote_engine import ACKNOWLEDGE_EVERY, RemoteEngine
from izwi_api.serve.wire import RequestCodec
from tests.engine.toy import ToyPrompt, toy_request
from tests.serve.over_sockets import OverSockets, toy_engine, until

TTS, ASR = "izwi-tiny-tts", "izwi-tiny-asr"


@pytest.fixture
async def engine():
    made = OverSockets(toy_engine())
    await made.open()
    yield made
    await made.stop()


@pytest.fixture
async def other(engine):
    """Another API server of the same engine."""
    api_server = RemoteEngine("other", engine.side.path, RequestCodec([ToyPrompt]))
    api_server.connect(engine.side.address)
    await until(lambda: api_server.alive)
    yield api_server
    await api_server.stop()


def endless(name, seed, frames):
    """A request that goes on for all its frames."""
    return replace(toy_request(name, 5, seed, frames), stop_ids=())


async def read(stream):
    return [chunk async for chunk in stream]


def entries(chunks):
    return [entry for chunk in chunks for entry in chunk.entries.tolist()]


# -- the same ------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def loaded():
    backend = torch_backend("cpu", "float32")
    registry = Registry(backend)
    for name in (TTS, ASR):
        registry.load(name)
    return registry, backend


def embedded_requests(registry):
    noise = np.random.default_rng(1).standard_normal(40_000).astype(np.float32) * 0.1
    speaks, hears = registry.speech(TTS), registry.transcription(ASR)
    text = "The train leaves at seven."
    asks = (
        SpeechInput(text, voice="amber", seed=3),
        SpeechInput(text, voice="amber", seed=3, text_mode=TextMode.STREAMING),
        SpeechInput(text, voice=ReferenceClip(noise, None), seed=4, max_new_tokens=20),
    )
    yield from (speaks.prepare_speech(f"s{n}", TTS, ask) for n, ask in enumerate(asks))
    yield speaks.prepare_voice("v", TTS, noise, None)
    for n in (16_000, 40_000):
        ask = TranscriptionInput(noise[:n], logprobs=True, max_new_tokens=12)
        yield hears.prepare_transcription(f"t{n}", ASR, ask)


async def test_over_sockets_it_says_and_hears_the_same_bits(loaded):
    registry, backend = loaded
    given = []
    for kind in (AsyncEngine, OverSockets):
        inner = Engine(registry.models, backend, EngineConfig(kv_bytes=1 << 26))
        engine = kind(inner, RequestCodec()) if kind is OverSockets else kind(inner)
        await engine.open() if kind is OverSockets else engine.start()
        streams = engine.submit_all(list(embedded_requests(registry)))
        logs = await asyncio.gather(*map(read, streams))
        await engine.stop()
        given.append(
            [
                (
                    entries(chunks),
                    b"".join(chunk.pcm.tobytes() for chunk in chunks if chunk.pcm is not None),
                    [array.tobytes() for chunk in chunks for array in chunk.encoded],
                    [p for c in chunks if c.logprobs is not None for p in c.logprobs.tolist()],
                    chunks[-1].reason,
                )
                for chunks in logs
            ]
        )
    assert given[0] == given[1]
    assert all(reason in (Reason.STOP, Reason.LENGTH) for *_, reason in given[0])
    assert sum(len(audio) for _, audio, *_ in given[0]) > 100_000


async def test_text_that_is_written_pauses_and_resumes(engine):
    request = toy_request("a", 4, seed=1, frames=30, open_input=True)
    inner = AsyncEngine(toy_engine())
    inner.start()
    logs = []
    for one in (inner, engine):
        stream = one.submit(request)
        one.pause("a")
        one.write("a", [3, 1, 4, 1, 5], False)
        one.resume("a")
        one.write("a", [9, 2, 6], True)
        logs.append(entries(await asyncio.wait_for(read(stream), 60)))
    await inner.stop()
    assert logs[0] == logs[1]
    assert logs[0]


# -- slow, and gone ------------------------------------------------------------------------------
async def test_an_api_server_that_reads_nothing_causes_backpressure_and_loses_nothing(
    engine, other, monkeypatch
):
    monkeypatch.setattr("izwi_api.serve.engine_process.MAX_UNACKNOWLEDGED", 10)
    monkeypatch.setattr("izwi_api.serve.remote_engine.ACKNOWLEDGE_EVERY", 3)
    chunks = await read(engine.submit(endless("whole", 4, 160)))
    assert len(chunks) > 20
    whole = entries(chunks)
    loop = asyncio.get_running_loop()
    loop.remove_reader(engine._engine_messages.fileno())
    stream = engine.submit(endless("a", 4, 160))
    line = engine.side.lines._lines[engine._name]
    await until(lambda: line.is_behind)
    # meanwhile another API server is served as ever
    chunks = await asyncio.wait_for(read(other.submit(endless("b", 4, 160))), 60)
    assert entries(chunks) == whole
    assert line.num_unacknowledged <= 12
    loop.add_reader(engine._engine_messages.fileno(), engine._read)
    engine._read()
    assert entries(await asyncio.wait_for(read(stream), 60)) == whole
    # or an API server that reads would be backpressured
    assert ACKNOWLEDGE_EVERY < MAX_UNACKNOWLEDGED // 2


async def test_a_request_waits_for_its_reader_and_for_its_api_server(engine):
    """Either reader may be behind; when one has caught up, the other still causes backpressure."""
    streams = [engine.submit(toy_request(name, 4, 1, 30, open_input=True)) for name in "ab"]
    lines, backpressured = engine.side.lines, {}
    line = lines._lines[engine._name]

    def fall_behind():
        line.is_behind, line.num_unacknowledged = True, MAX_UNACKNOWLEDGED

    def look():
        backpressured.update(
            {name: pair[1].status.backpressured for name, pair in engine._engine._live.items()}
        )

    async def looked():
        backpressured.clear()
        lines.thread.enqueue(look)
        await until(lambda: backpressured)
        return backpressured

    engine._send_command(wire.Backpressure("b", True))
    await until(lambda: "b" in line.backpressured)
    lines.thread.enqueue(fall_behind)
    await looked()
    # its reader has caught up, and the API server has not
    engine._send_command(wire.Backpressure("a", False))
    await until(lambda: engine._engine._live["a"][1].status.backpressured)
    engine._send_command(wire.Acknowledge(MAX_UNACKNOWLEDGED))
    await until(lambda: not line.is_behind)
    assert await looked() == {"a": False, "b": True}
    for stream in streams:
        stream.abort()


async def test_requests_of_a_dead_api_server_end_and_others_continue(engine, other):
    left = [engine.submit(endless(f"left{n}", 1, 450)) for n in range(3)]
    for stream in left:
        await anext(stream)
    stays = other.submit(endless("stays", 2, 200))
    await anext(stays)
    alone = AsyncEngine(toy_engine())
    alone.start()
    expected = entries(await read(alone.submit(endless("stays", 2, 200))))
    await alone.stop()
    steps = engine._engine.load["toy"]["steps"]
    engine.side.forget(engine._name)
    await until(lambda: len(engine.side.lines._owners) <= 1)
    await until(lambda: other.load["toy"]["running"] <= 1)
    assert engine._engine.load["toy"]["steps"] - steps < 150  # long before they would have ended
    heard = entries(await asyncio.wait_for(read(stays), 60))
    assert expected[-len(heard) :] == heard
    assert not engine.side.lines._owners
    engine.submit(endless("late", 1, 50))  # what it had sent comes after it was said to be gone
    assert (await read(other.submit(endless("more", 1, 3))))[-1].reason is not None
    assert not engine.side.lines._owners


async def test_when_the_engine_is_gone_streams_end_and_the_next_engine_serves(engine):
    stream = engine.submit(endless("a", 1, 400))
    await anext(stream)
    engine.disconnect()
    last = (await asyncio.wait_for(read(stream), 60))[-1]
    assert isinstance(last.error, EngineStopped)
    assert not engine.alive
    assert not engine.load
    with pytest.raises(EngineStopped):
        engine.submit(toy_request("b", 5, seed=1, frames=4))
    stream.abort()
    engine.write("a", [1], True)  # to nobody
    following = OverSockets(toy_engine())
    following.side.start()
    engine.connect(following.side.address)
    await until(lambda: engine.alive)
    chunks = await asyncio.wait_for(read(engine.submit(toy_request("a", 5, seed=1, frames=4))), 60)
    assert chunks[-1].reason in (Reason.STOP, Reason.LENGTH)
    engine.disconnect()
    await asyncio.to_thread(following.side.stop)


async def test_an_id_that_is_taken_is_refused_and_its_owner_keeps_it(engine, other):
    mine = engine.submit(endless("same", 1, 100))
    await anext(mine)
    theirs = await asyncio.wait_for(read(other.submit(toy_request("same", 4, 2, 5))), 60)
    assert isinstance(theirs[-1].error, InvalidRequest)
    assert (await asyncio.wait_for(read(mine), 60))[-1].reason is not Reason.ERROR


async def test_a_second_request_with_an_id_is_rejected_and_the_first_continues(engine):
    first = engine.submit(endless("same", 1, 100))
    with pytest.raises(InvalidRequest, match="'same' is running already"):
        engine.submit(toy_request("same", 4, 2, 5))
    with pytest.raises(InvalidRequest, match="'twice' is running already"):
        engine.submit_all([toy_request("twice", 4, 2, 5), toy_request("twice", 4, 2, 5)])
    chunks = await asyncio.wait_for(read(first), 60)
    assert (len(entries(chunks)), chunks[-1].reason) == (100, Reason.LENGTH)
    again = engine.submit(endless("same", 1, 100))  # the id is free now
    assert entries(await asyncio.wait_for(read(again), 60)) == entries(chunks)


async def test_an_id_is_not_free_before_its_aborted_request_has_ended(engine):
    """Late messages about the first would reach the second."""
    first = engine.submit(endless("same", 1, 400))
    await anext(first)
    first.abort()
    with pytest.raises(InvalidRequest):
        engine.submit(endless("same", 2, 5))
    await asyncio.wait_for(read(first), 60)
    chunks = await asyncio.wait_for(read(engine.submit(endless("same", 2, 5))), 60)
    assert (len(entries(chunks)), chunks[-1].reason) == (5, Reason.LENGTH)


async def test_commands_about_the_request_of_another_api_server_do_nothing(engine, other):
    mine = engine.submit(replace(toy_request("same", 4, 1, 30), open_input=True))
    engine.write("same", [3, 1, 4], False)
    chunks = [await anext(mine)]
    for command in (
        wire.Pause("same", True),
        wire.Backpressure("same", True),
        wire.Write("same", [7, 7], True),
        wire.Abort("same"),
    ):
        other._send_command(command)
    await asyncio.wait_for(read(other.submit(toy_request("after", 4, 2, 5))), 60)
    engine.write("same", [1, 5], True)
    chunks += await asyncio.wait_for(read(mine), 60)
    alone = engine.submit(replace(toy_request("alone", 4, 1, 30), open_input=True))
    engine.write("alone", [3, 1, 4, 1, 5], True)
    assert entries(chunks) == entries(await asyncio.wait_for(read(alone), 60))


async def test_a_stream_that_its_reader_drops_is_aborted(engine):
    """Otherwise these would wait for more text forever."""
    speaks = engine.submit(replace(endless("speaks", 1, 450), open_input=True))
    engine.write("speaks", [3, 1, 4], False)
    waits = engine.submit(replace(endless("waits", 1, 450), open_input=True))
    await anext(speaks)
    await until(lambda: len(engine.side.lines._owners) == 2)
    del speaks, waits
    await until(lambda: not engine.side.lines._owners)
    await until(lambda: not engine._resumables)


async def test_a_dropped_stream_does_not_abort_the_next_request_of_its_id(engine):
    first = engine.submit(endless("same", 1, 3))
    del first  # to be aborted as soon as the event loop has its next turn
    while engine._resumables:
        engine._read()
    second = engine.submit(endless("same", 1, 100))
    chunks = await asyncio.wait_for(read(second), 60)
    assert (len(entries(chunks)), chunks[-1].reason) == (100, Reason.LENGTH)


async def test_what_the_engine_says_of_a_request_that_nothing_reads_ends_it(engine):
    stream = engine.submit(replace(endless("a", 1, 450), open_input=True))
    engine.write("a", [3, 1, 4], False)
    await anext(stream)
    del engine._resumables["a"]  # an API server that lost track of it
    engine.write("a", [1, 5] * 4, False)  # enough for another chunk, however many have left
    await until(lambda: not engine.side.lines._owners)


async def test_an_invalid_command_is_only_logged(engine, caplog):
    engine._commands.send(b"\x01nonsense")
    chunks = await asyncio.wait_for(read(engine.submit(toy_request("a", 5, 1, 5))), 60)
    assert chunks[-1].reason in (Reason.STOP, Reason.LENGTH)
    assert "invalid message" in caplog.text


async def test_a_request_that_cannot_be_read_fails_and_does_not_wait(engine):
    class NoPrompt(Struct, tag=True):
        num_positions: int = 1

    broken = engine.submit(replace(toy_request("a", 5, 1, 5), prompt=NoPrompt()))
    chunks = await asyncio.wait_for(read(broken), 60)
    assert chunks[-1].reason is Reason.ERROR
    chunks = await asyncio.wait_for(read(engine.submit(toy_request("a", 5, 1, 5))), 60)
    assert chunks[-1].reason in (Reason.STOP, Reason.LENGTH)


async def test_models_are_not_added_or_removed_over_sockets(engine):
    with pytest.raises(InvalidRequest, match=r"cannot be added.*--manage-models"):
        await engine.add("more", object(), Path())
    with pytest.raises(InvalidRequest, match=r"cannot be removed.*--manage-models"):
        await engine.remove("toy")


async def test_an_api_server_has_no_torch():
    code = (
        "import sys; from izwi.checkpoints.registry import find\n"
        "find('izwi-tiny-tts')\n"  # as a supervisor does
        "print('izwi_models' in sys.modules)\n"
        "import izwi_api.serve.api_server_process\n"
        "from izwi.checkpoints.registry import Registry\n"
        "registry = Registry()\n"
        f"registry.load({TTS!r}); registry.load({ASR!r}); registry.load('izwi-tiny-aligner')\n"
        "registry.load('izwi-tiny-chat')\n"
        "from izwi.inputs.speech import SpeechInput\n"
        f"registry.speech({TTS!r}).prepare_speech('a', 'b', SpeechInput('Hello.'))\n"
        "print([name for name in ('torch', 'triton', 'transformers') if name in sys.modules])\n"
        "print([m for m in sys.modules if m.startswith('izwi_models.') and m.endswith('.model')])"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE
    )
    reported, _ = await process.communicate()
    assert reported.decode().split() == ["False", "[]", "[]"]
