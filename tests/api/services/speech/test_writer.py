"""Text is written while its audio is read, before the real engine and tiny checkpoints."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import numpy as np
import pytest
from msgspec.structs import replace

from izwi.audio.encode import stream_encoder
from izwi.backends.torch.backend import torch_backend
from izwi.checkpoints.registry import Registry
from izwi.config import EngineConfig
from izwi.engine.async_engine import AsyncEngine
from izwi.engine.engine import Engine
from izwi.errors import EngineStopped, InvalidRequest, VoiceNotFound
from izwi.inputs.speech import SpeechInput, TextMode
from izwi.request.request import Chunk
from izwi_api.services.models.served import ServedModels
from izwi_api.services.speech.synthesis import encoded_audio, open_speech
from izwi_api.services.speech.writer import SpeechWriter, open_speech_writer
from tests.api.conftest import FakeRegistry, FakeSpeech
from tests.models.tiny_tts import tiny_config, write_json, write_tiny_tts

TEXT = "One, two. Then 3 more words came, and they were said. The end is here."
ASK = SpeechInput("", "ryan", seed=7, max_new_tokens=16)
BACKEND = torch_backend("cpu", "float32")


class World:
    """An engine with a checkpoint that needs whole text, and one that reads English sentences."""

    def __init__(self, registry: Registry):
        self.registry = registry
        config = EngineConfig(kv_bytes=1 << 23)
        self.engine = AsyncEngine(Engine(registry.models, BACKEND, config))

    async def open(self, model: str = "english", ask: SpeechInput = ASK) -> SpeechWriter:
        return await open_speech_writer(ServedModels(self.engine, self.registry).speech(model), ask)

    @property
    def busy(self) -> bool:
        load = self.engine.load.values()
        return any(counts["running"] or counts["waiting"] for counts in load)

    async def until_idle(self) -> None:
        await self._until(lambda: not self.busy)

    async def until_busy(self) -> None:
        await self._until(lambda: self.busy)

    async def _until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110 (what is waited for sets no event)
                await asyncio.sleep(0.01)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    root = tmp_path_factory.mktemp("writer")
    whole = write_tiny_tts(root / "whole", "custom_voice")
    english = write_tiny_tts(root / "english", "custom_voice")
    change = {"plain_english": True, "max_text_characters": 30}
    write_json(english / "config.json", tiny_config("custom_voice") | change)
    made = Registry(BACKEND)
    for folder in (whole, english):
        made.load(str(folder))
    return made


@pytest.fixture
async def world(registry: Registry) -> AsyncIterator[World]:
    made = World(registry)
    made.engine.start()
    yield made
    await made.engine.stop()


async def read(writer: SpeechWriter) -> list[Chunk]:
    return [chunk async for chunk in writer.output()]


def joined(chunks: list[Chunk]) -> tuple[list[list[int]], np.ndarray]:
    codes = [entry for chunk in chunks for entry in chunk.entries.tolist()]
    return codes, np.concatenate([chunk.pcm for chunk in chunks if chunk.pcm is not None])


@pytest.mark.parametrize("model", ["whole", "english"])
@pytest.mark.parametrize(
    "mode", [pytest.param(TextMode.STREAMING, marks=pytest.mark.slow), TextMode.FULL]
)
async def test_it_says_what_the_whole_text_says(world: World, model: str, mode: TextMode) -> None:
    ask = SpeechInput(TEXT, "ryan", seed=7, max_new_tokens=16, text_mode=mode)
    at_once = await open_speech(ServedModels(world.engine, world.registry).speech(model), ask)
    codes, pcm = joined([chunk async for chunk in at_once.output()])
    writer = await world.open(model, ask)
    reading = asyncio.create_task(read(writer))
    for first in range(0, len(TEXT), 3):
        await writer.write(TEXT[first : first + 3])
    await writer.close()
    written_codes, written_pcm = joined(await reading)
    assert written_codes == codes
    np.testing.assert_allclose(written_pcm, pcm, atol=1e-4)
    assert writer.num_frames == at_once.num_frames == len(codes)
    assert writer.num_prompt_positions == at_once.num_prompt_positions
    assert writer.sample_rate == at_once.sample_rate


@pytest.mark.parametrize("model", ["whole", "english"])
async def test_audio_is_sent_before_the_text_is_complete(world: World, model: str) -> None:
    writer = await world.open(model)
    await writer.write("One two three")
    chunks = writer.output()
    heard: list[Chunk] = []
    while not any(chunk.pcm is not None for chunk in heard):
        heard.append(await asyncio.wait_for(anext(chunks), 60))
    await asyncio.sleep(0.2)  # it waits for its text, and loses nothing by that
    await writer.write(" four five, six.")
    await writer.close()
    heard += [chunk async for chunk in chunks]
    again = await world.open(model)
    await again.write("One two three four five, six.")
    await again.close()
    (codes, _), (expected, _) = joined(heard), joined(await read(again))
    assert codes == expected


async def test_it_can_be_encoded_like_any_speech(world: World) -> None:
    writer = await world.open()
    await writer.write(TEXT)
    await writer.close()
    encoder = stream_encoder("wav", writer.sample_rate)
    content = b"".join([piece async for piece in encoded_audio(writer, encoder)])
    assert content[:4] == b"RIFF"
    assert len(content) > writer.num_frames * 1920 * 2


async def test_an_abort_frees_the_engine_and_wakes_all_waiters(world: World) -> None:
    writer = await world.open("whole")
    reading = asyncio.create_task(read(writer))
    await writer.write("Hello there, ")
    await world.until_busy()
    writer.abort()
    with pytest.raises(EngineStopped):
        await asyncio.wait_for(reading, 60)
    with pytest.raises(EngineStopped):
        await writer.write("friend")
    with pytest.raises(EngineStopped):
        await writer.close()
    await world.until_idle()


async def test_an_abort_ends_a_reader_that_waits_for_the_first_piece(world: World) -> None:
    writer = await world.open()
    reading = asyncio.create_task(read(writer))
    await asyncio.sleep(0)
    writer.abort()
    with pytest.raises(EngineStopped, match="aborted"):
        await asyncio.wait_for(reading, 60)


async def test_a_reader_that_leaves_ends_the_writing(world: World) -> None:
    writer = await world.open("whole")
    await writer.write("Hello there, my friend.")
    chunks = writer.output()
    await anext(chunks)
    await chunks.aclose()
    with pytest.raises(EngineStopped):
        await writer.write("More")
    await world.until_idle()


async def test_a_writer_far_ahead_waits_for_the_reader(world: World) -> None:
    writer = await world.open(ask=replace(ASK, max_new_tokens=4))
    text = "A few words. " * 60  # 780 bytes, of which 512 may be ahead
    writing = asyncio.create_task(writer.write(text))
    await asyncio.sleep(0.5)
    assert not writing.done()
    reading = asyncio.create_task(read(writer))
    await asyncio.wait_for(writing, 60)
    await writer.close()
    await reading
    assert 120 <= writer.num_frames <= 180  # two or three a sentence


async def test_a_write_that_is_cancelled_aborts_the_speech(world: World) -> None:
    writer = await world.open()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(writer.write("A few words. " * 200), 0.3)
    with pytest.raises(EngineStopped, match="abandoned"):
        await read(writer)
    await world.until_idle()


async def test_empty_text_fails_writer_and_reader(world: World) -> None:
    writer = await world.open()
    reading = asyncio.create_task(read(writer))
    await writer.write("\n ... 世界 ")
    with pytest.raises(InvalidRequest):
        await writer.close()
    with pytest.raises(InvalidRequest):
        await reading


async def test_a_complete_text_takes_no_more(world: World) -> None:
    writer = await world.open()
    await writer.write("Hello.")
    await writer.close()
    await writer.close()
    with pytest.raises(InvalidRequest, match="complete"):
        await writer.write("More.")
    assert await read(writer)  # and is said all the same


async def test_speech_writer_refuses_unusable_requests_at_once(world: World) -> None:
    with pytest.raises(VoiceNotFound):
        await world.open("english", SpeechInput("", "nobody"))
    registry = FakeRegistry(fake=FakeSpeech())
    with pytest.raises(InvalidRequest, match="needs the complete text"):
        await open_speech_writer(ServedModels(world.engine, registry).speech("fake"), ASK)


async def test_a_stopped_engine_raises(world: World) -> None:
    writer = await world.open("whole")
    reading = asyncio.create_task(read(writer))
    await writer.write("Hello there, ")
    await world.engine.stop()
    with pytest.raises(EngineStopped):
        await asyncio.wait_for(reading, 60)
    with pytest.raises(EngineStopped):
        await writer.write("friend. ")
    world.engine = AsyncEngine(world.engine._engine)  # the fixture stops it once more
    world.engine.start()
