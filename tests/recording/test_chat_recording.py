"""A conversation is recorded and replayed with the same answer."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from izwi.backends.torch.backend import torch_backend
from izwi.checkpoints.registry import Registry
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.inputs.chat import ChatInput, ChatMessage, Role
from izwi.recording.line import ChatLine, read_recording
from izwi.recording.recorder import RequestRecorder
from izwi.recording.replay import replay
from tests.golden.make_recordings import run_alone
from tests.models.tiny_chat import write_tiny_chat

ASKS = (
    ChatInput((ChatMessage(Role.USER, "héllo"),), temperature=0.0, max_new_tokens=12),
    ChatInput(
        (
            ChatMessage(Role.SYSTEM, "be brief"),
            ChatMessage(Role.USER, "a"),
            ChatMessage(Role.ASSISTANT, "b", "the thought"),
            ChatMessage(Role.USER, "c"),
        ),
        thinking=True,
        top_p=0.9,
        seed=-5,
        max_new_tokens=20,
    ),
)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    root = tmp_path_factory.mktemp("trace")
    backend = torch_backend("cpu", "float32")
    registry = Registry(backend)
    registry.load(str(write_tiny_chat(root / "chat")))

    def engine() -> Engine:
        return Engine(registry.models, backend, EngineConfig(kv_bytes=1 << 22))

    path = root / "trace.jsonl"
    recorder, first = RequestRecorder(path, registry, "here"), engine()
    for n, ask in enumerate(ASKS):
        run_alone(first, registry.chat("chat").prepare_chat(str(n), "chat", ask), recorder)
    recorder.close()
    return path, registry, engine


def test_the_line_holds_what_was_asked_and_said(world: tuple[Path, Registry, object]) -> None:
    path, registry, _ = world
    lines = read_recording(path)
    assert tuple(line.ask for line in lines) == ASKS
    for line in lines:
        assert isinstance(line, ChatLine)
        model = registry.chat("chat")
        reader = model.open_answer(model.prepare_chat("r", "chat", line.ask))
        said = reader.read([token for (token,) in line.entries]).content + reader.close().content
        assert line.text == said != ""


def test_recorded_conversation_replays_with_the_same_answer(world) -> None:
    path, registry, engine = world
    lines = read_recording(path)
    for alone in (True, False):
        assert replay(engine(), registry, lines, alone=alone) == []
    changed = msgspec.structs.replace(lines[0], text="something else")
    (difference,) = replay(engine(), registry, [changed, lines[1]])
    assert (difference.line, difference.what) == (1, "text")
    other = msgspec.structs.replace(lines[1], entries=((1,), *lines[1].entries[1:]))
    (difference,) = replay(engine(), registry, [other])
    assert difference.what == "entries"
