"""How a runner uses captured steps: rows that it launches, and frames for a codec."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from izwi.backends.budget import budget_of
from izwi.config import EngineConfig
from izwi.model.step_batch import StepBatch
from izwi.request.sequence import Sequence
from izwi.runner.planning import plan_models
from izwi.runner.runner import Drawn, Runner
from izwi.scheduler.work import PlannedRow
from tests.backends.kinds import backend_of
from tests.engine.toy import CLONE, CODEBOOKS, ToyCodec, toy_request


class Launched:
    """A step that is done: each row has drawn its own number."""

    def __init__(self, count: int):
        self._count = count

    def __call__(self) -> Any:
        return [[number] * CODEBOOKS for number in range(self._count)], {}

    def then(self, finish: Callable[..., Any]) -> Callable[[], Any]:
        return partial(finish, self)


class Graphs:
    """Stands in for captured graphs, and remembers what it was given."""

    accepts, fails = True, False

    def __init__(self) -> None:
        self.chunks: list[list[list[int]]] = []
        self.heard: list[tuple[int, int]] = []  # frames and row

    def takes(self, batch: StepBatch) -> bool:
        return self.accepts

    def launch(self, batch: StepBatch) -> Launched:
        if self.fails:
            raise RuntimeError("it cannot be launched")
        return Launched(len(batch.rows))

    def takes_chunks(self, most: int) -> bool:
        return most <= 4

    def vocode(self, chunks: Any, rows: Any) -> Any:
        self.chunks += [chunk.tolist() for chunk in chunks]
        return [partial(np.full, len(chunk), row) for chunk, row in zip(chunks, rows, strict=True)]

    def advance_codec(self, codes: Any, row: int) -> None:
        self.heard.append((len(codes), row))


def runner_of(graphs: Graphs | None) -> Runner:
    config, backend = EngineConfig(page_size=4, kv_bytes=1 << 20), backend_of("torch")
    model = ToyCodec()
    plan = plan_models({"toy": model}, backend, config, {})
    runner = Runner(model, backend, config, budget_of(config, plan, "toy", 1))
    runner._graphs = graphs  # type: ignore[assignment]
    return runner


def stream_of(runner: Runner, name: str, num_frames: int = 0) -> Sequence:
    sequence = Sequence(toy_request(name, 3, seed=1, frames=9), 0)
    runner.set_up_tracks(sequence)
    sequence.emitted += [(frame, 0, 0) for frame in range(num_frames)]
    sequence.audio.state_row = runner.states.allocate()
    return sequence


def test_only_rows_that_a_graph_takes_are_launched() -> None:
    graphs = Graphs()
    runner = runner_of(graphs)
    rows = [PlannedRow(stream_of(runner, "a"), 0, 3), PlannedRow(stream_of(runner, "b"), 0, 3)]
    launched = runner.launch(rows)
    assert launched is not None
    assert launched() == [Drawn(((0, 0, 0),)), Drawn(((1, 1, 1),))]
    assert runner.launch([]) is None
    graphs.fails = True
    assert runner.launch(rows) is None, "the pass itself will find the row at fault"
    graphs.fails, graphs.accepts = False, False
    assert runner.launch(rows) is None
    without = runner_of(None)
    assert without.launch(rows) is None
    assert (runner.codec_overlaps, without.codec_overlaps) == (True, False)


def test_a_codec_decodes_the_clip_of_a_clone_once_and_then_each_frame_once() -> None:
    graphs = Graphs()
    runner = runner_of(graphs)
    clone, other = (stream_of(runner, name, 5) for name in (f"{CLONE}-a", "b"))
    for frames in (2, 3):
        pending = runner.vocode([(clone, frames), (other, frames)])
        assert [len(wait()) for wait in pending if callable(wait)] == [frames, frames]
        for sequence in (clone, other):
            sequence.audio.num_vocoded += frames
            sequence.audio.chunks.append(frames)
    first, second = [[0, 0, 0], [1, 0, 0]], [[2, 0, 0], [3, 0, 0], [4, 0, 0]]
    assert graphs.chunks == [first, first, second, second]
    assert graphs.heard == [(3, clone.audio.state_row)]
    assert runner.rebuild([clone, other]) == {}
    assert graphs.heard[1:] == [
        *((frames, clone.audio.state_row) for frames in (3, 2, 3)),
        *((frames, other.audio.state_row) for frames in (2, 3)),
    ]
