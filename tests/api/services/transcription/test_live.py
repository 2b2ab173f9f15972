"""A live transcription: over the real engine, and over one that answers when the test says so."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import soxr

from izwi.backends.torch.backend import torch_backend
from izwi.checkpoints.registry import Registry
from izwi.config import EngineConfig
from izwi.engine.async_engine import AsyncEngine
from izwi.engine.engine import Engine
from izwi.engine_client.protocol import Answer, Answers
from izwi.errors import InvalidAudio, InvalidRequest, IzwiError, Overloaded
from izwi.inputs.speech import SpeechInput, TranscriptionInput
from izwi.request.request import Chunk, Reason
from izwi_api.services.models.served import ServedModels
from izwi_api.services.speech.synthesis import open_speech
from izwi_api.services.transcription.live import PartialText, SegmentText, open_live_transcription
from izwi_api.services.transcription.transcribe import open_transcription
from tests.models.tiny_asr import waveform

ASR, TTS = "izwi-tiny-asr", "izwi-tiny-tts"
RATE = 16_000
SAID = "She put the book on the table near the window. The train leaves at seven in the morning."


@pytest.fixture(scope="module")
def backend():
    return torch_backend("cpu", "float32")


@pytest.fixture(scope="module")
def registry(backend) -> Registry:
    made = Registry(backend)
    for name in (ASR, TTS):
        made.load(name)
    return made


@pytest.fixture
async def engine(backend, registry) -> AsyncIterator[AsyncEngine]:
    made = AsyncEngine(Engine(registry.models, backend, EngineConfig(kv_bytes=1 << 26)))
    made.start()
    yield made
    await made.stop()


# -- the real engine -----------------------------------------------------------------------------
async def test_audio_in_one_piece_is_transcribed_as_offline(engine, registry):
    samples = waveform(19.0)
    offline = await open_transcription(
        ServedModels(engine, registry).transcription(ASR), TranscriptionInput(samples)
    )
    await offline.finish()
    async with await open_live_transcription(
        ServedModels(engine, registry).transcription(ASR)
    ) as live:
        await live.feed(samples)
        await live.finish()
        finals = [event async for event in live if isinstance(event, SegmentText)]
    assert len(finals) >= 3
    for ours, theirs in zip(finals, offline.segments, strict=True):
        assert (ours.start_s, ours.end_s) == (theirs.start_s, theirs.end_s)
        assert (ours.text, ours.language) == (theirs.text, theirs.language)
    assert finals[-1].end_s == 19.0


async def test_speech_is_transcribed_while_it_arrives(engine, registry):
    speech = await open_speech(
        ServedModels(engine, registry).speech(TTS), SpeechInput(SAID, voice="amber")
    )
    pcm = [chunk.pcm async for chunk in speech.output() if chunk.pcm is not None]
    samples = soxr.resample(np.concatenate(pcm), speech.sample_rate, RATE).astype(np.float32)
    async with await open_live_transcription(
        ServedModels(engine, registry).transcription(ASR)
    ) as live:
        for start in range(0, len(samples), RATE):
            await live.feed(samples[start : start + RATE])
            await live.caught_up()
        await live.finish()
        events = [event async for event in live]
    assert all(isinstance(event, SegmentText) for event in events)  # newer than the partial ones
    heard = " ".join(event.text for event in events).lower()
    words = SAID.lower().replace(".", "").split()
    assert sum(word in heard for word in words) > 0.5 * len(words)


async def test_stable_text_grows_and_the_segment_begins_with_it(engine, registry):
    samples, events = waveform(16.0), []
    async with await open_live_transcription(
        ServedModels(engine, registry).transcription(ASR), chunk_s=1.0
    ) as live:
        await live.feed(samples[:40])
        for start in range(40, len(samples), RATE):
            await live.feed(samples[start : start + RATE])
            await live.caught_up()
            events += live.unread()
        await live.finish()
        events += [event async for event in live]
    assert [e.end_s for e in events[:7]] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    for before, after in pairwise(events):
        if before.segment == after.segment:
            text = after.text if isinstance(after, SegmentText) else after.stable
            assert isinstance(before, PartialText)
            assert text.startswith(before.stable)
    finals = [event for event in events if isinstance(event, SegmentText)]
    assert [f.start_s for f in finals] == [0.0] + [f.end_s for f in finals[:-1]]
    assert finals[-1].end_s == 16.0


# -- an engine that waits for the test -----------------------------------------------------------
class ReportingStream(Answer):
    """Yields what the test chooses, and ends when it is aborted, as the engine's stream does."""

    def __init__(self, request):
        self.request = request
        self.queue: asyncio.Queue[Chunk] = asyncio.Queue()
        self.is_aborted = self.is_done = False

    async def __anext__(self):
        return await self.queue.get()

    def abort(self):
        if not self.is_done:
            self.is_aborted = True
            self.end(Reason.ABORTED)

    def end(self, reason=Reason.STOP, error=None):
        self.is_done = True
        entries = np.zeros((0, 1), np.int64)
        chunk = Chunk(self.request.request_id, entries, reason=reason, error=error)
        self.queue.put_nowait(chunk)

    @property
    def seconds(self) -> float:
        """The audio that its windows hold."""
        return sum(w.values.shape[1] for w in self.request.prompt.encode_inputs) / 100


class ReportingEngine:
    def __init__(self, *, answers_at_once: bool = False):
        self.streams: list[ReportingStream] = []
        self.answers_at_once = answers_at_once
        self.fails_with: BaseException | None = None

    def submit_all(self, requests):
        return Answers(map(self._answer, requests))

    def _answer(self, request):
        stream = ReportingStream(request)
        self.streams.append(stream)
        if self.fails_with is not None:
            stream.end(Reason.ERROR, self.fails_with)
            self.fails_with = None
        elif self.answers_at_once:
            stream.end()
        return stream

    async def stream(self, number: int) -> ReportingStream:
        """The stream of a request, once it was submitted."""
        for _ in range(2000):
            if len(self.streams) > number:
                return self.streams[number]
            await asyncio.sleep(0.002)
        raise AssertionError("no such request")


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0.002)


@pytest.fixture
async def reported(registry):
    engine = ReportingEngine()
    async with await open_live_transcription(
        ServedModels(engine, registry).transcription(ASR), language="en"
    ) as live:
        yield SimpleNamespace(engine=engine, live=live)


async def test_a_step_that_is_overtaken_is_aborted_but_not_two_in_a_row(reported):
    await reported.live.feed(waveform(2.1))
    first = await reported.engine.stream(0)
    await settled()
    assert (first.seconds, first.is_aborted) == (2.0, False)
    await reported.live.feed(waveform(1.0))
    assert not first.is_aborted
    await reported.live.feed(waveform(1.0))
    assert first.is_aborted
    second = await reported.engine.stream(1)
    assert second.seconds == 4.0
    await reported.live.feed(waveform(2.0))
    await settled()
    assert not second.is_aborted
    second.end()
    assert (await anext(reported.live)).end_s == 4.0
    third = await reported.engine.stream(2)
    assert third.seconds == 6.0
    await reported.live.feed(waveform(1.95))
    assert third.is_aborted


async def test_finish_overtakes_and_writes_everything(reported):
    await reported.live.feed(waveform(2.5))
    first = await reported.engine.stream(0)
    await settled()
    done = asyncio.create_task(reported.live.finish())
    last = await reported.engine.stream(1)
    assert first.is_aborted
    assert last.seconds == 2.5
    await settled()
    assert not done.done()
    last.end()
    await done
    assert [event async for event in reported.live] == [SegmentText(0, 0.0, 2.5, "", "")]


async def test_an_overloaded_engine_costs_partial_texts_alone(reported):
    reported.engine.fails_with = Overloaded("full", retry_after_s=0)
    await reported.live.feed(waveform(2.1))
    await reported.engine.stream(0)
    await settled()
    reported.engine.fails_with = Overloaded("full", retry_after_s=0)
    done = asyncio.create_task(reported.live.finish())
    await reported.engine.stream(1)
    (await reported.engine.stream(2)).end()
    await done
    assert [event.end_s async for event in reported.live] == [2.1]


async def test_a_failure_reaches_every_reader(reported):
    reported.engine.fails_with = IzwiError("the tensor broke")
    await reported.live.feed(waveform(2.1))
    with pytest.raises(IzwiError, match="tensor"):
        await anext(reported.live)
    with pytest.raises(IzwiError, match="tensor"):
        await reported.live.feed(waveform(1.0))
    with pytest.raises(IzwiError, match="tensor"):
        await reported.live.finish()


async def test_leaving_aborts_what_is_in_flight(reported):
    await reported.live.feed(waveform(2.1))
    first = await reported.engine.stream(0)
    await settled()
    reported.live.abort()
    await settled()
    assert first.is_aborted
    assert [event async for event in reported.live] == []
    with pytest.raises(InvalidRequest):
        await reported.live.feed(waveform(1.0))


async def test_feeding_waits_for_a_model_that_is_behind(reported):
    fed = asyncio.create_task(reported.live.feed(waveform(60.0)))
    first = await reported.engine.stream(0)
    await settled()
    assert not fed.done()
    assert reported.live._num_waiting <= 31 * RATE
    first.end()
    reported.engine.answers_at_once = True
    for stream in reported.engine.streams:
        stream.end()
    await asyncio.wait_for(fed, 60)


async def test_unusable_audio_is_refused_and_changes_nothing(reported):
    with pytest.raises(InvalidAudio):
        await reported.live.feed(np.zeros((2, 100), np.float32))
    with pytest.raises(InvalidAudio):
        await reported.live.feed(np.full(100, np.nan, np.float32))
    await reported.live.feed(np.zeros(0, np.float32))
    await reported.live.finish()
    assert [event async for event in reported.live] == []
    assert reported.engine.streams == []


async def test_a_long_stream_costs_the_memory_of_a_segment(registry):
    """Many short chunks that are not read: the last partial text and all segments are kept."""
    engine, minute = ReportingEngine(answers_at_once=True), waveform(60.0)
    async with await open_live_transcription(
        ServedModels(engine, registry).transcription(ASR)
    ) as live:
        buffered = []
        for _ in range(4):
            for start in range(0, len(minute), RATE // 2):
                await live.feed(minute[start : start + RATE // 2])
                await live.caught_up()
            engine.streams.clear()
            buffered.append(live._num_waiting + live._stream._buffered)
        await live.finish()
        segments = [event async for event in live]
    assert max(buffered) < 9 * RATE
    assert all(isinstance(event, SegmentText) for event in segments)
    assert segments[-1].end_s == pytest.approx(240.0)


async def test_features_are_computed_off_the_event_loop(registry, monkeypatch):
    engine, threads = ReportingEngine(answers_at_once=True), set()
    live = await open_live_transcription(ServedModels(engine, registry).transcription(ASR))
    next_step, prepare = live._stream.next_step, live._frontend.prepare_stream_step

    def seen():
        threads.add(threading.current_thread())
        return next_step()

    def seen_too(*args):
        threads.add(threading.current_thread())
        return prepare(*args)

    monkeypatch.setattr(live._stream, "next_step", seen)
    monkeypatch.setattr(live._frontend, "prepare_stream_step", seen_too)
    await live.feed(waveform(3.0))
    await live.finish()
    assert threads
    assert threading.main_thread() not in threads


async def test_a_model_that_does_not_stream_is_refused(fake_world):
    engine, registry, models = fake_world()
    registry.models.update(models)
    with pytest.raises(InvalidRequest, match="complete audio"):
        await open_live_transcription(ServedModels(engine, registry).transcription(ASR))
