"""Long conversations with LFM2-Audio at its published size, on a GPU; weights are random."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.live.s2s_sizes import CODECS, EndlessBackend, write_folder
from izwi.backends.torch.backend import torch_backend
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.errors import ContextTooLong, TooLarge
from izwi.inputs.chat import Role
from izwi.inputs.conversation import AudioContent, ConversationInput, SpokenTurn
from izwi.request.request import Reason
from izwi_models.lfm2_audio import FAMILY
from tests.models.loading import load_checkpoint

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

ENTRIES = 72  # of an answer: 24 of text, 48 frames
RATE = 16_000
Served = tuple[Engine, Any]


@pytest.fixture(scope="module", params=CODECS)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Served:
    """An engine with room for one conversation as long as the model takes it."""
    folder = write_folder(tmp_path_factory.mktemp("published") / "s2s", request.param)
    backend = EndlessBackend(torch_backend("cuda", "bfloat16").ops)
    frontend, model = load_checkpoint(FAMILY, folder, backend)
    return Engine({"s2s": model}, backend, EngineConfig(kv_bytes=1 << 33, max_running=8)), frontend


@pytest.fixture
def clips() -> Iterator[AudioContent]:
    """Recordings of 3 to 5 s, no two of which are equal."""

    def drawn() -> Iterator[AudioContent]:
        chance = np.random.default_rng(7)
        while True:
            size = int(chance.uniform(3.0, 5.0) * RATE)
            yield AudioContent(0.1 * chance.standard_normal(size, dtype=np.float32))

    return drawn()


def answer(served: Served, turns: list[SpokenTurn]) -> float:
    """Ask, and return the duration in seconds of the complete answer."""
    engine, frontend = served
    ask = ConversationInput(tuple(turns), seed=1, max_new_tokens=ENTRIES)
    engine.submit(frontend.prepare_conversation(f"{len(turns)}", "s2s", ask))
    samples, entries, reason = 0, 0, None
    while engine.has_work:
        for chunk in engine.step():
            assert chunk.reason is not Reason.ERROR, chunk.error
            entries += len(chunk.entries)
            samples += 0 if chunk.pcm is None else len(chunk.pcm)
            reason = chunk.reason or reason
            assert chunk.pcm is None or np.isfinite(chunk.pcm).all()
    assert (entries, reason) == (ENTRIES, Reason.LENGTH)
    return samples / frontend.sample_rate


def asked(part: str | AudioContent) -> SpokenTurn:
    return SpokenTurn(Role.USER, (part,))


def test_two_hundred_turns_of_which_half_are_spoken(
    served: Served, clips: Iterator[AudioContent]
) -> None:
    """The next turn finds the pages of all before it."""
    said = SpokenTurn(Role.ASSISTANT, ("That is in the garden behind the house.",))
    turns: list[SpokenTurn] = []
    for number in range(100):
        turns += [asked(next(clips) if number % 2 else f"Question {number}?"), said]
    assert answer(served, [*turns, asked(next(clips))]) > 3.5
    engine = served[0]
    before = engine.load["s2s"]
    assert answer(served, [*turns, asked("And now?")]) > 3.5
    after = engine.load["s2s"]
    known = after["prefix_positions_hit"] - before["prefix_positions_hit"]
    positions = after["prefix_positions_asked"] - before["prefix_positions_asked"]
    assert positions > 3_000
    assert positions - known < 2 * engine.config.page_size + 16


def test_a_prompt_of_ten_thousand_tokens(served: Served) -> None:
    assert answer(served, [asked("x" * 10_000)]) > 3.5


def test_audio_of_five_hundredths_of_a_second(served: Served) -> None:
    assert answer(served, [asked(AudioContent(np.full(RATE // 20, 0.1, np.float32)))]) > 3.5


def test_too_long_conversation_is_refused_and_the_next_is_answered(
    served: Served, clips: Iterator[AudioContent]
) -> None:
    _, frontend = served
    five_minutes = AudioContent(np.resize(next(clips).samples, 300 * RATE))
    for part, refusal in ((five_minutes, TooLarge), ("x" * 130_000, ContextTooLong)):
        with pytest.raises(refusal):
            frontend.prepare_conversation("long", "s2s", ConversationInput((asked(part),)))
    assert answer(served, [asked(next(clips))]) > 3.5
