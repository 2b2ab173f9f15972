"""Graphs of prompts are captured as long as every rank's device has memory for them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from izwi.backends.torch.backend import TorchBackend
from izwi.engine.engine import Engine
from tests.backends.torch.eager import EagerOps, drawn_by_torch
from tests.backends.torch.test_eager_graphs import CONFIG, Text, config_of
from tests.engine.toy import toy_request

pytest.importorskip("triton")
from izwi.backends.torch.captured.capturer import CapturedGraph, GraphCapturer
from izwi.backends.torch.captured.prompt_graphs import _BY_USE, _SIZES, PromptGraphs

MIB = 1 << 20


class Room:
    """A device whose graphs take this much each; another rank may have less."""

    def __init__(self, free_mib: int, graph_mib: int, other_mib: int | None = None):
        self.free, self.graph = free_mib * MIB, graph_mib * MIB
        self.others_less = 0 if other_mib is None else self.free - other_mib * MIB

    def free_bytes(self) -> int:
        return self.free

    def least(self, value: int) -> int:
        return value - self.others_less


class Filling(GraphCapturer):
    """Takes memory for each graph, as a driver does."""

    def __init__(self, room: Room):
        super().__init__(torch.device("cpu"), room=room)
        self.filled = room

    def _capture(self, run: Any) -> CapturedGraph:
        self.filled.free -= self.filled.graph
        assert self.filled.free > self.filled.others_less, "the device is full"
        return super()._capture(run)


def run(engine: Engine) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for number, length in enumerate((3, 40, 20)):
        request = toy_request(f"r{number}", length, number, 4)
        found[request.request_id] = []
        engine.submit(request)
    while engine.has_work:
        for chunk in engine.step():
            assert chunk.error is None, chunk.error
            found[chunk.request_id] += chunk.entries.tolist()
    return found


@pytest.mark.parametrize(
    ("room", "num_graphs"),
    [
        pytest.param(Room(10_000, 100), len(_SIZES), marks=pytest.mark.slow),
        (Room(464, 100), 3),  # one more than fits would leave too little to be sure
        pytest.param(Room(10_000, 100, other_mib=464), 3, marks=pytest.mark.slow),
        (Room(60, 100), 0),
    ],
)
def test_as_many_prompt_sizes_are_captured_as_fit(
    room: Room, num_graphs: int, caplog: pytest.LogCaptureFixture
) -> None:
    with drawn_by_torch():
        plain = Engine({"toy": Text(EagerOps())}, TorchBackend(EagerOps()), config_of(graphs=False))
        engine = Engine({"toy": Text(EagerOps())}, TorchBackend(EagerOps()), CONFIG)
        graphs = engine._workers["toy"].runner._graphs
        assert graphs is not None
        assert graphs.prompts is not None
        prompts: PromptGraphs = graphs.prompts
        prompts._capturer = Filling(room)
        prompts.warm_up()
        assert sorted(prompts._prompts) == sorted(_BY_USE[:num_graphs])
        assert ("no memory is left for graphs of" in caplog.text) == (num_graphs < len(_SIZES))
        assert run(engine) == run(plain)
        assert sorted(prompts._prompts) == sorted(_BY_USE[:num_graphs]), "none is captured later"


def test_all_ranks_need_room() -> None:
    for other_mib, has_room in ((63, False), (64, True)):
        assert Filling(Room(10_000, 100, other_mib)).has_room() == has_room
