"""openai-agents' RealtimeRunner, unmodified, over `/v1/realtime`."""

from __future__ import annotations

import asyncio
import json

import pytest

agents = pytest.importorskip("agents", reason="openai-agents is not installed")

from agents import function_tool  # noqa: E402
from agents.realtime import RealtimeAgent, RealtimeRunner  # noqa: E402

LONG = "Count from one to twenty."
SECOND = 48_000  # bytes of audio


class Talk:
    """A session and all its events."""

    def __init__(self, session):
        self.session = session
        self.events = []
        self._all = aiter(session)

    async def until(self, kind):
        """The next event of a kind."""
        while True:
            event = await asyncio.wait_for(anext(self._all), 90)
            self.events.append(event)
            if event.type == kind:
                return event

    async def until_heard(self, num_bytes):
        """Wait until this much audio of one answer has arrived."""
        come = 0
        while come < num_bytes:
            come += len((await self.until("audio")).audio.data)

    async def speak(self, pcm):
        for start in range(0, len(pcm), 4800):
            await self.session.send_audio(pcm[start : start + 4800])

    def of(self, kind):
        return [event for event in self.events if event.type == kind]

    @property
    def audio(self):
        return b"".join(event.audio.data for event in self.of("audio"))

    @property
    def history(self):
        """Role and text of each message."""
        return [
            (item.role, "".join(getattr(c, "transcript", None) or c.text for c in item.content))
            for item in self.session._history
            if item.type == "message"
        ]


@pytest.fixture
def called():
    return []


@pytest.fixture
async def open_talk(live_url, called):
    @function_tool
    def set_timer(seconds: int) -> str:
        """Start a timer."""
        called.append(seconds)
        return json.dumps({"ok": True})

    prompt = "You are a helpful assistant."
    agent = RealtimeAgent(name="home", instructions=prompt, tools=[set_timer])
    sessions = []

    async def enter(**settings):
        config = {"url": live_url, "api_key": "none", "initial_model_settings": settings}
        session = await RealtimeRunner(agent).run(model_config=config)
        sessions.append(await session.enter())
        return Talk(session)

    yield enter
    for session in sessions:
        await session.close()


async def test_a_spoken_question_is_transcribed_and_answered(open_talk, said, heard):
    talk = await open_talk()
    await talk.speak(said("What is the capital of France?"))
    await talk.until("agent_end")
    (_, asked), (role, answer) = talk.history
    assert "capital of france" in asked.lower()
    assert (role, answer) == ("assistant", "The capital of France is Paris.")
    assert "paris" in heard(talk.audio).lower()
    assert talk.of("audio_end")
    assert talk.session._context_wrapper.usage.output_tokens > 0
    assert talk.of("error") == []


async def test_an_answer_takes_earlier_turns_into_account(open_talk):
    talk = await open_talk()
    await talk.session.send_message("What is the capital of France?")
    await talk.until("agent_end")
    await talk.session.send_message("And of Spain?")
    await talk.until("agent_end")
    assert [text for _, text in talk.history] == [
        "What is the capital of France?",
        "The capital of France is Paris.",
        "And of Spain?",
        "The capital of Spain is Madrid.",
    ]
    assert talk.of("error") == []


async def test_a_function_is_called(open_talk, said, called):
    talk = await open_talk()
    await talk.speak(said("Please set a timer for five minutes."))
    ended = await talk.until("tool_end")
    assert (ended.tool.name, called) == ("set_timer", [300])
    while not talk.audio:
        await talk.until("agent_end")
    assert talk.history[-1] == ("assistant", "The timer is set for 5 minutes.")
    assert talk.of("error") == []


async def test_speech_over_an_answer_interrupts_it(open_talk, said):
    talk = await open_talk()
    await talk.session.send_message(LONG)
    await talk.until_heard(2 * SECOND)
    await talk.speak(said("No, stop. What is the capital of France?"))
    await talk.until("audio_interrupted")
    cut = len(talk.audio)
    await talk.until("agent_end")
    assert len(talk.audio) == cut
    await talk.until("agent_end")
    assert talk.history[-1] == ("assistant", "The capital of France is Paris.")
    counted = next(text for role, text in talk.history if role == "assistant")
    assert counted.startswith("1, 2, 3")
    assert "20" not in counted
    assert talk.of("error") == []


@pytest.mark.parametrize("interrupt_response", [True, False])
async def test_an_application_interrupts_an_answer(open_talk, interrupt_response):
    detection = {"type": "semantic_vad", "interrupt_response": interrupt_response}
    talk = await open_talk(turn_detection=detection)
    await talk.session.send_message(LONG)
    await talk.until_heard(2 * SECOND)
    await talk.session.interrupt()
    await talk.until("agent_end")
    assert len(talk.audio) < 5 * SECOND
    await talk.session.send_message("What is the capital of France?")
    await talk.until("agent_end")
    assert talk.history[-1] == ("assistant", "The capital of France is Paris.")
    assert talk.of("error") == []
