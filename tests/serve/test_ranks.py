"""Ranks of one engine: each has its part of the weights and pages, and all give one's entries."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from izwi.checkpoints.registry import family_of
from izwi.config import EngineConfig
from izwi.inputs.chat import ChatInput, ChatMessage, Role
from izwi.request.request import Request
from izwi.runner.ranks import RankFailed
from izwi_models.qwen3_chat import FAMILY as CHAT
from tests.models.kinds import KINDS, request_of
from tests.models.tiny_chat import UNTIED, write_tiny_chat
from tests.serve.split_engine import Output, SplitEngine, outputs, split, whole


def requests_to(folders: Mapping[str, Path], entries: int) -> list[Request]:
    """A greedy and a sampled request to each model, of so many entries at most."""
    made = []
    for name, folder in folders.items():
        family = family_of(folder)
        frontend = family.load_frontend(folder)
        for i in range(2):
            request = request_of(family, frontend, i)
            most = min(entries, request.max_entries)
            named = {"model": name, "request_id": f"{name} {i}", "max_entries": most}
            made.append(replace(request, **named))
    return made


def assert_equal(found: Mapping[str, Output], expected: Mapping[str, Output]) -> None:
    assert found.keys() == expected.keys()
    for name, (entries, samples, _) in expected.items():
        assert found[name][0] == entries, name
        np.testing.assert_array_equal(found[name][1], samples)


def check(folders: Mapping[str, Path], where: Path, count: int, entries: int) -> None:
    """Compare the engine that is split with the one that is not."""
    requests, alone = requests_to(folders, entries), whole(folders)
    expected = outputs(alone, requests)
    assert sum(len(drawn) for drawn, _, _ in expected.values()) > len(requests) * entries // 2
    with split(folders, where, ["cpu"] * count) as made:
        assert_equal(outputs(made.engine, requests), expected)
        pairs = list(zip(made.engine.runners, alone.runners, strict=True))
        share = 1 / min(count, 2)  # there are two key and value heads
        assert all(mine.page_bytes == share * all_of.page_bytes for mine, all_of in pairs)
        mine, all_of = (sum(map(num_bytes, runners)) for runners in zip(*pairs, strict=True))
        assert mine < (0.1 + 1 / count) * all_of
        check_death(made, requests[-1])


def check_death(made: SplitEngine, request: Request) -> None:
    """Kill a rank: the engine notices at once, and does not hang in its next step."""
    made.engine.submit(replace(request, request_id="another"))
    made.engine.step()
    os.kill(made.ranks.processes.pids[0], signal.SIGKILL)
    made.dead.get(timeout=60)
    with pytest.raises(RankFailed):
        made.engine.step()


def num_bytes(runner: Any) -> int:
    """Bytes of the products of a decoder's layers."""
    weights: Mapping[str, Any] = runner._model._weights
    stack = ("model.layers.", "talker.model.layers.", "thinker.model.layers.")
    return sum(
        array.nbytes
        for name, array in weights.items()
        if name.startswith(stack) and name.endswith("_proj.weight")
    )


def test_two_ranks_give_the_entries_and_the_audio_of_one(tmp_path: Path) -> None:
    folders = {name: KINDS[name][1](tmp_path / name) for name in ("tts", "asr", "chat")}
    check(folders, tmp_path, count=2, entries=4)


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_ranks_give_the_entries_and_the_audio_of_one(tmp_path: Path, count: int) -> None:
    folders = {name: write(tmp_path / name) for name, (_, write) in KINDS.items()}
    check(folders, tmp_path, count, 24)


@pytest.mark.slow
def test_eight_ranks_share_two_heads_of_keys_and_values(tmp_path: Path) -> None:
    sizes = UNTIED | {"num_attention_heads": 8}
    check({"chat": write_tiny_chat(tmp_path / "chat", sizes)}, tmp_path, 8, 24)


@pytest.mark.slow
def test_pages_of_two_ranks_leave_and_come_back(tmp_path: Path) -> None:
    """Preempted, kept on the host and restored, with prefixes that end inside a page."""
    folder = write_tiny_chat(tmp_path / "chat")
    frontend = CHAT.load_frontend(folder)

    def asked(name: str, count: int) -> list[Request]:
        made = []
        for i in range(count):
            text = (
                "The same beginning of a question " + "about this and that " * 7 + "ending"[i % 6 :]
            )
            said = (ChatMessage(Role.USER, text),)
            ask = ChatInput(said, temperature=0.8, seed=i, max_new_tokens=40)
            made.append(frontend.prepare_chat(f"{name} {i}", "m", ask))
        return made

    expected = outputs(whole({"m": folder}), asked("alone", 8))
    tight = EngineConfig(kv_bytes=150 << 10, host_bytes=1 << 24)
    with split({"m": folder}, tmp_path, config=tight) as made:
        outputs(made.engine, asked("before", 4))
        found = outputs(made.engine, asked("split", 8))
        load = made.engine.load["m"]
    figures = ("preempted", "pages_demoted", "pages_promoted", "prefix_positions_hit")
    assert min(load[name] for name in figures) > 0
    for i in range(8):
        assert found[f"split {i}"][0] == expected[f"alone {i}"][0]
