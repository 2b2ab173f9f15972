"""pipecat's OpenAIRealtimeLLMService, unmodified, over `/v1/realtime`."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("pipecat.services.openai.realtime.llm", reason="pipecat-ai is not installed")

from pipecat.adapters.llm.schemas.function_schema import FunctionSchema
from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema
from pipecat.frames.frames import (
    ErrorFrame,
    InputAudioRawFrame,
    InterruptionFrame,
    LLMFullResponseEndFrame,
    LLMRunFrame,
    LLMTextFrame,
    TranscriptionFrame,
    TTSAudioRawFrame,
    TTSStoppedFrame,
)
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import (
    LLMContextAggregatorPair,
)
from pipecat.processors.frame_processor import FrameDirection
from pipecat.services.openai.realtime import events
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService
from pipecat.services.openai.stt import OpenAIRealtimeSTTService
from pipecat.tests.utils import QueuedFrameProcessor
from pipecat.workers.runner import WorkerRunner

LONG = "Count from one to twenty."
SECOND = 48_000  # bytes of audio


def user(text):
    return {"role": "user", "content": text}


class Running:
    """A pipeline around a service, and what came out of it."""

    def __init__(self, service, before=(), after=()):
        self.frames = []
        self._come = asyncio.Queue()
        up, down = (
            QueuedFrameProcessor(queue=self._come, queue_direction=direction)
            for direction in (FrameDirection.UPSTREAM, FrameDirection.DOWNSTREAM)
        )
        self._worker = PipelineWorker(
            Pipeline([*before, up, service, down, *after]),
            cancel_on_idle_timeout=False,
            params=PipelineParams(audio_in_sample_rate=24_000, audio_out_sample_rate=24_000),
        )

    async def __aenter__(self):
        started = asyncio.Event()

        @self._worker.event_handler("on_pipeline_started")
        async def begin(worker, frame):
            started.set()

        runner = WorkerRunner()
        await runner.add_workers(self._worker)
        self._running = asyncio.create_task(runner.run())
        await asyncio.wait_for(started.wait(), 30)
        return self

    async def __aexit__(self, *raised):
        await self._worker.cancel()
        await self._running

    async def send(self, frame):
        await self._worker.queue_frame(frame)

    async def speak(self, pcm):
        for start in range(0, len(pcm), 4800):
            piece = pcm[start : start + 4800]
            await self.send(InputAudioRawFrame(piece, sample_rate=24_000, num_channels=1))

    async def until(self, kind):
        """The next frame of a kind."""
        while True:
            frame = await asyncio.wait_for(self._come.get(), 90)
            self.frames.append(frame)
            assert not isinstance(frame, ErrorFrame), frame
            if isinstance(frame, kind):
                return frame


class Talk(Running):
    """The service between its aggregators."""

    def __init__(self, url, messages=()):
        timer = FunctionSchema(
            "set_timer", "Start a timer.", {"seconds": {"type": "integer"}}, ["seconds"]
        )
        self.context = LLMContext(messages=list(messages), tools=ToolsSchema([timer]))
        listening = events.AudioInput(transcription=events.InputAudioTranscription())
        properties = events.SessionProperties(
            instructions="You are a helpful assistant.",
            audio=events.AudioConfiguration(input=listening),
        )
        self.service = OpenAIRealtimeLLMService(
            base_url=url.partition("?")[0],
            api_key="none",
            settings=OpenAIRealtimeLLMService.Settings(
                model="izwi-tiny-chat", session_properties=properties
            ),
        )
        self.service.register_function("set_timer", self._set_timer)
        self.called = []
        pair = LLMContextAggregatorPair(self.context)
        super().__init__(self.service, [pair.user()], [pair.assistant()])

    async def _set_timer(self, params):
        self.called.append(dict(params.arguments))
        await params.result_callback({"ok": True})

    async def until_heard(self, num_bytes):
        come = 0
        while come < num_bytes:
            come += len((await self.until(TTSAudioRawFrame)).audio)

    async def answer(self):
        """The text of the next answer with audio, once it has ended."""
        before = len(self.frames)
        await self.until(TTSStoppedFrame)
        await self.until(LLMFullResponseEndFrame)
        return "".join(f.text for f in self.frames[before:] if isinstance(f, LLMTextFrame))

    @property
    def audio(self):
        return b"".join(f.audio for f in self.frames if isinstance(f, TTSAudioRawFrame))


async def test_a_spoken_question_is_transcribed_and_answered(live_url, said, heard):
    async with Talk(live_url) as talk:
        await talk.speak(said("What is the capital of France?"))
        assert "capital of france" in (await talk.until(TranscriptionFrame)).text.lower()
        assert await talk.answer() == "The capital of France is Paris."
    assert "paris" in heard(talk.audio).lower()
    assert [m["role"] for m in talk.context.messages] == ["user", "assistant"]


async def test_text_is_answered(live_url, heard):
    asked = [user("What is the capital of France?")]
    async with Talk(live_url, asked) as talk:
        await talk.send(LLMRunFrame())
        assert await talk.answer() == "The capital of France is Paris."
    assert "paris" in heard(talk.audio).lower()


async def test_a_function_is_called(live_url):
    async with Talk(live_url, [user("Please set a timer for five minutes.")]) as talk:
        await talk.send(LLMRunFrame())
        assert await talk.answer() == "The timer is set for 5 minutes."
    assert talk.called == [{"seconds": 300}]


async def test_speech_over_an_answer_interrupts_it(live_url, said):
    async with Talk(live_url, [user(LONG)]) as talk:
        await talk.send(LLMRunFrame())
        await talk.until_heard(2 * SECOND)
        await talk.speak(said("No, stop. What is the capital of France?"))
        await talk.until(InterruptionFrame)
        cut = len(talk.audio)
        await talk.until(TranscriptionFrame)
        assert len(talk.audio) == cut
        assert (await talk.answer()).endswith("The capital of France is Paris.")


async def test_an_application_interrupts_an_answer(live_url, said):
    async with Talk(live_url, [user(LONG)]) as talk:
        await talk.send(LLMRunFrame())
        await talk.until_heard(2 * SECOND)
        await talk.send(InterruptionFrame())
        await talk.until(LLMFullResponseEndFrame)
        assert len(talk.audio) < 5 * SECOND
        await talk.speak(said("What is the capital of France?"))
        await talk.until(TranscriptionFrame)
        assert (await talk.answer()).endswith("The capital of France is Paris.")


async def test_retrieving_an_unknown_item_does_not_end_the_session(live_url):
    async with Talk(live_url, [user("What is the capital of France?")]) as talk:
        with pytest.raises(Exception, match="no item has the id"):
            await talk.service.retrieve_conversation_item("nothing")
        await talk.send(LLMRunFrame())
        assert await talk.answer() == "The capital of France is Paris."


async def test_a_session_transcribes_live(live_url, said):
    settings = OpenAIRealtimeSTTService.Settings(model="izwi-tiny-asr")
    service = OpenAIRealtimeSTTService(
        base_url=live_url.partition("?")[0],
        api_key="none",
        turn_detection={"type": "server_vad"},
        settings=settings,
    )
    async with Running(service) as pipe:
        await pipe.speak(said("What is the capital of France?"))
        assert "capital of france" in (await pipe.until(TranscriptionFrame)).text.lower()
        await pipe.speak(said("Please set a timer for five minutes."))
        assert "timer" in (await pipe.until(TranscriptionFrame)).text.lower()
