"""@openai/agents-realtime (JavaScript), unmodified, over a WebSocket to `/v1/realtime`.

Node finds it by `NODE_PATH` (docs/clients.md).
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("realtime_session.cjs")
LONG = "Count from one to twenty."
FRANCE = "What is the capital of France?"
SECOND = 48_000  # bytes of audio
# of the server's events, by which steps wait
DONE, STARTED = "response.done", "input_audio_buffer.speech_started"


def is_installed():
    node = shutil.which("node")
    find = "require.resolve('@openai/agents-realtime')"
    return node and not subprocess.run([node, "-e", find], capture_output=True).returncode


pytestmark = pytest.mark.skipif(
    not is_installed(), reason="Node and @openai/agents-realtime are not installed"
)


@pytest.fixture
def session(live_url, said, tmp_path):
    """Hold a session of these steps."""

    def hold(*steps):
        for n, (kind, value) in enumerate(steps):
            if kind == "speak":
                path = tmp_path / f"{n}.pcm"
                path.write_bytes(said(value))
                steps = (*steps[:n], (kind, str(path)), *steps[n + 1 :])
        command = ["node", SCRIPT, live_url, json.dumps(steps)]
        run = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert run.returncode == 0, run.stderr
        heard = json.loads(run.stdout)
        assert heard["errors"] == []
        return heard

    return hold


def test_a_spoken_question_is_transcribed_and_answered(session, heard):
    talk = session(("speak", FRANCE), ("until", (DONE, 1)))
    (_, asked), answered = talk["history"]
    assert "capital of france" in asked.lower()
    assert answered == ["assistant", "The capital of France is Paris."]
    assert "paris" in heard(base64.b64decode(talk["audio"])).lower()


def test_an_answer_takes_earlier_turns_into_account(session):
    talk = session(
        ("say", FRANCE), ("until", (DONE, 1)), ("say", "And of Spain?"), ("until", (DONE, 2))
    )
    assert [text for _, text in talk["history"]] == [
        FRANCE,
        "The capital of France is Paris.",
        "And of Spain?",
        "The capital of Spain is Madrid.",
    ]


def test_a_function_is_called(session):
    # one response calls, the next one speaks
    talk = session(("speak", "Please set a timer for five minutes."), ("until", (DONE, 2)))
    assert talk["called"] == [300]
    assert talk["history"][-1] == ["assistant", "The timer is set for 5 minutes."]


def test_speech_over_an_answer_interrupts_it(session):
    talk = session(
        ("say", LONG),
        ("hear", 2 * SECOND),
        ("speak", f"No, stop. {FRANCE}"),
        ("until", (STARTED, 1)),
        ("until", (DONE, 2)),
    )
    assert talk["interruptions"] >= 1
    assert talk["history"][-1] == ["assistant", "The capital of France is Paris."]


def test_an_application_interrupts_an_answer(session):
    talk = session(
        ("say", LONG),
        ("hear", 2 * SECOND),
        ("interrupt", None),
        ("until", (DONE, 1)),
        ("say", FRANCE),
        ("until", (DONE, 2)),
    )
    assert talk["interruptions"] == 1
    assert len(base64.b64decode(talk["audio"])) < 10 * SECOND
    assert talk["history"][-1] == ["assistant", "The capital of France is Paris."]
