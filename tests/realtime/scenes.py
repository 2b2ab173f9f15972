"""Conversations in a room, and what must follow from them.

A script is a list of steps: a sound's name is said, a number is silence in seconds, ("answer", s)
waits until so much of an answer was sent, "another" until a second one has begun, "done" until it
has ended. What happened is written in letters: S speech started, E speech stopped, R response
created, D done, X cancelled.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.realtime.phone import Echo
from tests.realtime.world import recorded, rms


@dataclass(frozen=True)
class Scene:
    """One conversation.

    Attributes:
        happens: Letters, in order.
        is_undisturbed: Every answer is played as if there had been no other sound.
        pauses: An answer's audio stops for a while, then continues or is cancelled; None: both.
        echo: Of the loudspeaker in the microphone.
        behind: A recorded sound in the background, and how far it is below speech in dB.
        turns: Settings of turn detection.
        by_silero: What happens with Silero's detector, where it differs.
        prepared: Of each answer that was prepared early, whether it was given; None: not looked at.
    """

    script: tuple[Any, ...]
    happens: str
    is_undisturbed: bool = False
    pauses: bool | None = None
    echo: Echo | None = None
    behind: tuple[str, float] | None = None
    turns: dict[str, Any] = field(default_factory=dict)
    prepared: list[bool] | None = None
    by_silero: str | None = None

    @property
    def background(self):
        """The background's samples."""
        if self.behind is None:
            return None
        name, below_db = self.behind
        if name == "noise":
            audio = np.random.default_rng(5).normal(size=24_000 * 5).astype(np.float32)
        else:
            audio = recorded(name)
        return audio * (rms(recorded("question")) / rms(audio) * 10 ** (-below_db / 20))


SEMANTIC = {"type": "semantic_vad"}
ASKED = (0.4, "question")
ANSWERED = (*ASKED, "done", 0.5)


def over(*sounds, at_s=0.6, then=("done", 0.3)):
    """A question, and sounds over its answer."""
    return (*ASKED, ("answer", at_s), *sounds, *then)


def cut(*sounds, at_s=0.6):
    """A question, sounds that interrupt its answer, and the beginning of the next."""
    return over(*sounds, at_s=at_s, then=("another",))


SCENES = {
    "a question": Scene(ANSWERED, "SERD", True, prepared=[True]),
    "two questions": Scene((*ANSWERED, "follow-up", "done", 0.5), "SERDSERD", True),
    "a long turn": Scene((0.4, "long", "done", 0.5), "SERD", True),
    "a longer pause, by its words": Scene(
        (0.4, "would-like", 1.2, "when-leaves", "done"),
        "SERD",
        True,
        turns=SEMANTIC,
        prepared=[False, True],
    ),
    "a longer pause, by silence": Scene(
        (0.4, "would-like", 1.2, "when-leaves", "another"), "SERSXER"
    ),
    "stop": Scene(cut("stop"), "SERSXER", pauses=True),
    "no, wait": Scene(cut("no-wait"), "SERSXER", pauses=True),
    "overlap from the first word": Scene(cut("about-bus", at_s=0.1), "SERSXER", pauses=True),
    "overlap with the last words": Scene(cut("about-bus", at_s=1.7), "SERSXER"),
    "mm-hm": Scene(over("mm-hm"), "SERD", True, True),
    "okay": Scene(over("okay"), "SERD", True, True),
    "right": Scene(over("right"), "SERD", True, True),
    "a cough": Scene(over("cough"), "SERD", True, True),
    "a cough, then stop": Scene(cut("cough", 0.8, "stop"), "SERSXER", pauses=True),
    "knocks": Scene(over("knock"), "SERD", True),
    "another person asks": Scene(cut("woman"), "SERSXER", pauses=True),
    "people talk far away": Scene(ANSWERED, "SERD", True, behind=("woman-talks", 25.0)),
    "music begins over the answer": Scene(over("pad"), "SERD", True),
    "music": Scene((0.4, "music", 1.0, "pad", 2.0), "SE", prepared=[False], by_silero=""),
    "a dialling tone": Scene((0.4, "dial", 2.0), ""),
    "music behind a question": Scene(ANSWERED, "SERD", True, behind=("pad", 10.0)),
    "noise at 10 dB": Scene(ANSWERED, "SERD", True, behind=("noise", 10.0)),
    "noise at 10 dB, and stop": Scene(cut("no-wait"), "SERSXER", behind=("noise", 10.0)),
    "babble behind a question": Scene((2.0, *ANSWERED), "SERD", True, behind=("babble", 15.0)),
    "echo at -10 dB after 50 ms": Scene(ANSWERED, "SERD", True, echo=Echo(-10, 0.05)),
    "echo at -10 dB after 400 ms": Scene(ANSWERED, "SERD", True, echo=Echo(-10, 0.4)),
    "echo at -20 dB after 50 ms": Scene(ANSWERED, "SERD", True, echo=Echo(-20, 0.05)),
    "echo at -20 dB after 150 ms": Scene(ANSWERED, "SERD", True, echo=Echo(-20, 0.15)),
    "echo at -20 dB after 400 ms": Scene(ANSWERED, "SERD", True, echo=Echo(-20, 0.4)),
    "no, wait over an echo": Scene(cut("no-wait"), "SERSXER", echo=Echo(-10, 0.12)),
    "mm-hm over an echo": Scene(over("mm-hm"), "SERD", True, echo=Echo(-20, 0.12)),
    "speech that may not interrupt": Scene(
        over("okay-yes", at_s=0.1), "SERSEDRD", turns={"interrupt_response": False}
    ),
}


# Like others of them: the same is decided, with another sound, echo or noise.
AT_NIGHT = (
    *("a long turn", "two questions", "a longer pause, by silence", "no, wait", "okay", "right"),
    "no, wait over an echo",
    *("overlap from the first word", "overlap with the last words", "another person asks"),
    *("music begins over the answer", "music behind a question", "babble behind a question"),
    *("noise at 10 dB, and stop", "echo at -10 dB after 400 ms", "mm-hm over an echo"),
    *("a cough, then stop", "knocks", "people talk far away"),
    *("echo at -10 dB after 50 ms", "echo at -20 dB after 150 ms", "echo at -20 dB after 400 ms"),
    *("a longer pause, by its words", "a cough", "noise at 10 dB", "echo at -20 dB after 50 ms"),
    "speech that may not interrupt",
)


async def perform(scene, phone):
    """Play a script."""
    for step in scene.script:
        if isinstance(step, float):
            await phone.be_silent(step)
        elif step == "done":
            await phone.until_answered()
        elif step == "another":
            await phone.until_another()
        elif isinstance(step, tuple):
            await phone.until_sent(step[1])
        else:
            await phone.hear(recorded(step))


def session(**turns):
    """Settings of a session whose words are transcribed."""
    turns = {"type": "server_vad"} | turns
    audio = {"input": {"turn_detection": turns, "transcription": {"model": "whisper-1"}}}
    return {"audio": audio}


def play(world, scene, **server):
    """Hold the conversation; return the phone. `server` are settings of the server."""
    return world.talk(
        lambda phone, _: perform(scene, phone),
        session=session(**scene.turns),
        echo=scene.echo,
        background=scene.background,
        server=server,
    )


LETTERS = {
    "input_audio_buffer.speech_started": "S",
    "input_audio_buffer.speech_stopped": "E",
    "response.created": "R",
}


def happened(phone):
    """What happened, in letters."""
    made = ""
    for event in (happened.event for happened in phone.events):
        if event["type"] == "response.done":
            made += "X" if event["response"]["status"] == "cancelled" else "D"
        elif event["type"] == "error":
            made += "!"
        else:
            made += LETTERS.get(event["type"], "")
    return made
