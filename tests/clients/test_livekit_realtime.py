"""livekit's RealtimeModel and AgentSession, unmodified, over `/v1/realtime`."""

from __future__ import annotations

import asyncio
import json
import time

import pytest

agents = pytest.importorskip("livekit.agents", reason="livekit-agents is not installed")
openai = pytest.importorskip("livekit.plugins.openai", reason="its openai plugin is not installed")
rtc = pytest.importorskip("livekit.rtc")

from livekit.agents.voice import io  # noqa: E402

LONG = "Count from one to twenty."
RATE = 24_000


class Microphone(io.AudioInput):
    """Plays the samples that it is given, and silence otherwise; 20 ms at a time."""

    def __init__(self):
        super().__init__(label="microphone")
        self.pcm = bytearray()
        self.due_s = time.monotonic()

    async def __anext__(self):
        self.due_s += 0.02
        await asyncio.sleep(max(0.0, self.due_s - time.monotonic()))
        size = RATE // 50 * 2
        piece, self.pcm = bytes(self.pcm[:size]), self.pcm[size:]
        piece = piece.ljust(size, b"\0")
        return rtc.AudioFrame(
            piece, sample_rate=RATE, num_channels=1, samples_per_channel=size // 2
        )


class Loudspeaker(io.AudioOutput):
    """Plays received audio at once, in real time."""

    def __init__(self):
        super().__init__(
            label="loudspeaker",
            capabilities=io.AudioOutputCapabilities(pause=False),
            sample_rate=RATE,
        )
        self.pcm = bytearray()
        self.began_s, self.length_s = None, 0.0
        self.waiting = None

    async def capture_frame(self, frame):
        await super().capture_frame(frame)
        if self.began_s is None:
            self.began_s, self.length_s = time.monotonic(), 0.0
            self.on_playback_started(created_at=time.time())
        self.length_s += frame.duration
        self.pcm += bytes(frame.data)

    def flush(self):
        super().flush()
        if self.began_s is not None:
            left_s = self.began_s + self.length_s - time.monotonic()
            self.waiting = asyncio.get_running_loop().call_later(max(0.0, left_s), self._end, False)

    def clear_buffer(self):
        if self.waiting is not None:
            self.waiting.cancel()
        self._end(True)

    def _end(self, interrupted):
        if self.began_s is None:
            return
        played_s = min(time.monotonic() - self.began_s, self.length_s)
        self.began_s = self.waiting = None
        self.on_playback_finished(playback_position=played_s, interrupted=interrupted)


class Home(agents.Agent):
    """An agent with one function."""

    def __init__(self):
        super().__init__(instructions="You are a helpful assistant.")
        self.called = []

    @agents.function_tool
    async def set_timer(self, seconds: int) -> str:
        """Start a timer."""
        self.called.append(seconds)
        return json.dumps({"ok": True})


class Talk:
    """A session with a microphone and a loudspeaker, and what came of it."""

    def __init__(self, session):
        self.session, self.agent = session, Home()
        self.microphone, self.loudspeaker = Microphone(), Loudspeaker()
        session.input.audio, session.output.audio = self.microphone, self.loudspeaker
        self.said = asyncio.Queue()
        self.errors = []
        session.on("conversation_item_added", lambda event: self.said.put_nowait(event.item))
        session.on("error", lambda event: self.errors.append(event.error))

    def speak(self, pcm):
        self.microphone.pcm += pcm

    async def next(self, role):
        """The next utterance, once it is in the history."""
        while True:
            item = await asyncio.wait_for(self.said.get(), 90)
            if item.type == "message" and item.role == role:
                return item

    async def until_played(self, seconds):
        while len(self.loudspeaker.pcm) < seconds * RATE * 2:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@pytest.fixture
async def talk(live_url):
    base_url = live_url.replace("ws", "http", 1).partition("/realtime")[0]
    model = openai.realtime.RealtimeModel(model="izwi-tiny-chat", base_url=base_url, api_key="none")
    async with model, agents.AgentSession(llm=model, aec_warmup_duration=None) as session:
        talk = Talk(session)
        await session.start(talk.agent)
        yield talk


async def test_a_spoken_question_is_transcribed_and_answered(talk, said, heard):
    talk.speak(said("What is the capital of France?"))
    assert "capital of france" in (await talk.next("user")).text_content.lower()
    assert (await talk.next("assistant")).text_content == "The capital of France is Paris."
    assert "paris" in heard(bytes(talk.loudspeaker.pcm)).lower()
    assert talk.errors == []


async def test_an_answer_takes_earlier_turns_into_account(talk):
    await talk.session.run(user_input="What is the capital of France?")
    await talk.session.run(user_input="And of Spain?")
    assert (await talk.next("assistant")).text_content == "The capital of France is Paris."
    assert (await talk.next("assistant")).text_content == "The capital of Spain is Madrid."
    assert talk.errors == []


async def test_a_function_is_called(talk, said):
    talk.speak(said("Please set a timer for five minutes."))
    assert (await talk.next("assistant")).text_content == "The timer is set for 5 minutes."
    assert talk.agent.called == [300]
    assert talk.errors == []


async def test_speech_over_an_answer_interrupts_it(talk, said):
    talk.session.generate_reply(user_input=LONG)
    await talk.until_played(2.0)
    talk.speak(said("No, stop. What is the capital of France?"))
    assert (await talk.next("assistant")).interrupted
    assert (await talk.next("assistant")).text_content == "The capital of France is Paris."
    assert talk.errors == []


async def test_an_application_interrupts_an_answer(talk):
    talk.session.generate_reply(user_input=LONG)
    await talk.until_played(2.0)
    await talk.session.interrupt()
    assert (await talk.next("assistant")).interrupted
    played = len(talk.loudspeaker.pcm)
    talk.session.generate_reply(user_input="What is the capital of France?")
    answer = await talk.next("assistant")
    assert (answer.text_content, answer.interrupted) == ("The capital of France is Paris.", False)
    assert len(talk.loudspeaker.pcm) - played < 5 * RATE * 2
    assert talk.errors == []
