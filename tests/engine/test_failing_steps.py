"""If anything fails in a step, at any point: correct audio or an error, never wrong audio."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from izwi.backends.torch.backend import TorchBackend
from izwi.backends.torch.captured.codec_graphs import CodecGraphs
from izwi.backends.torch.kv import PagedKV
from izwi.backends.torch.ops import TorchOps
from izwi.backends.torch.state import StateArena
from izwi.backends.torch.transfer import HostCopy
from izwi.cache.memory import PagedMemory
from izwi.engine.engine import Engine
from izwi.engine.model_worker import ModelWorker
from izwi.request.request import Chunk, Reason, Request
from izwi.runner.runner import Runner
from izwi.scheduler.scheduler import Scheduler
from tests.engine.ahead import one_step_ahead
from tests.engine.toy import CLONE, ToyCodec, toy_request
from tests.engine.virtual import VirtualLoop
from tests.engine.world import World
from tests.examples import examples

pytest.importorskip("triton")  # which staging knows the limits of


class CapturingOps(TorchOps):
    """The plain operations, captured: on a CPU a capture runs again each time."""

    captures = True


POINTS: tuple[tuple[object, str], ...] = (
    (TorchOps, "numpy"),
    (TorchOps, "array"),
    (torch.Tensor, "index_copy_"),
    (torch.Tensor, "zero_"),
    (StateArena, "gather"),
    (StateArena, "scatter"),
    (StateArena, "clear"),
    (StateArena, "save"),
    (StateArena, "restore"),
    (ToyCodec, "decode"),
    (ToyCodec, "warm_codes"),
    (ToyCodec, "embed"),
    (ToyCodec, "run"),
    (ToyCodec, "draw"),
    (ToyCodec, "encode"),
    (PagedKV, "context"),
    (PagedMemory, "claim"),
    (PagedMemory, "allocate"),
    (PagedMemory, "publish"),
    (HostCopy, "__init__"),
    (HostCopy, "wait"),
    (CodecGraphs, "_launch"),
    (Runner, "encode"),
    (Runner, "rebuild"),
    (Runner, "vocode"),
    (Runner, "_remake"),
    (Scheduler, "schedule"),
    (Scheduler, "computed"),
    (Scheduler, "finish_request"),
    (Scheduler, "delivered"),
    (ModelWorker, "_append"),
    (ModelWorker, "_chunk"),
    (ModelWorker, "_due"),
)
# What they hand out is lost with the call.
HAND_OUT = ("claim", "allocate")


@contextmanager
def failing(owner: object, name: str, calls: frozenset[int], after: bool) -> Iterator[None]:
    """Let some calls of a function fail, before or after it has done its work."""
    real: Callable[..., Any] = getattr(owner, name)
    done, here = 0, threading.get_ident()

    def fails(*arguments: Any, **named: Any) -> Any:
        nonlocal done
        if threading.get_ident() != here:
            return real(*arguments, **named)
        done += 1
        if done - 1 not in calls:
            return real(*arguments, **named)
        if after:
            real(*arguments, **named)
        raise MemoryError(f"{name} fails")

    with patch.object(owner, name, fails):
        yield


def requests() -> list[Request]:
    """Streams that begin together, chunk alike and end apart; clones; one with audio."""
    return [
        replace(
            toy_request(name, 3 + i, seed=10 + i, frames=frames, audio=i == 2),
            stop_ids=(),
        )
        for i, (name, frames) in enumerate(
            (("a", 20), (f"{CLONE} b", 14), ("c", 20), (f"{CLONE} d", 9), ("e", 1))
        )
    ]


class Failing:
    """Runs requests in the stepping thread's own loop, where steps fail."""

    def __init__(self, captured: bool, device: str = "cpu", **more: Any):
        self.ops = (CapturingOps if captured else TorchOps)(torch.device(device))
        kv = {"kv_dtype": "int8"} if captured else {}  # the steps themselves run without a graph
        self.world = World(chunk_ramp=(1, 2, 3), **kv, **more)
        self.world.engine = Engine(
            {"toy": ToyCodec(self.ops)}, TorchBackend(self.ops), self.world.config, self.world.clock
        )
        self.loop = VirtualLoop(self.world)
        self.chunks: dict[str, list[Chunk]] = {}
        self.loop.deliver = self._deliver  # type: ignore[method-assign]

    def _deliver(self, chunks: list[Chunk]) -> None:
        VirtualLoop.deliver(self.loop, chunks)
        for chunk in chunks:
            self.chunks.setdefault(chunk.request_id, []).append(chunk)

    def run(self, asked: Sequence[Request]) -> None:
        self.loop.run([(0.0, request) for request in asked])

    def audio(self, name: str) -> list[float]:
        return [x for c in self.chunks[name] if c.pcm is not None for x in c.pcm.tolist()]

    def entries(self, name: str) -> list[list[int]]:
        return [entry for chunk in self.chunks[name] for entry in chunk.entries.tolist()]


@cache
def undisturbed(captured: bool) -> dict[str, tuple[list[float], list[list[int]]]]:
    found = {}
    for request in requests():
        alone = Failing(captured)
        alone.run([request])
        found[request.request_id] = (
            alone.audio(request.request_id),
            alone.entries(request.request_id),
        )
    return found


def check_so_far(ran: Failing, captured: bool) -> None:
    for name, (audio, entries) in undisturbed(captured).items():
        if name in ran.chunks:
            got = ran.audio(name)
            assert got == audio[: len(got)], f"wrong audio for {name}"
            assert ran.entries(name) == entries[: len(ran.entries(name))]


def check(ran: Failing, captured: bool) -> None:
    check_so_far(ran, captured)
    for name, (audio, entries) in undisturbed(captured).items():
        got, last = ran.audio(name), ran.chunks[name][-1]
        if last.reason is Reason.ERROR:
            assert isinstance(last.error, MemoryError)
        else:
            assert (got, ran.entries(name)) == (audio, entries)


def test_every_point_is_there() -> None:
    assert [point for point in POINTS if not hasattr(*point)] == []


@examples(25)
@example((CodecGraphs, "_launch"), frozenset({1}), True, "captured", 5)
@example((HostCopy, "__init__"), frozenset({2}), True, "captured", 2)
@example((torch.Tensor, "index_copy_"), frozenset({7}), True, "plain", 2)
@example((TorchOps, "numpy"), frozenset({5}), True, "plain", 5)
@example((StateArena, "scatter"), frozenset({5}), True, "ahead", 2)
# fails in the recovery, too
@example((ModelWorker, "_chunk"), frozenset({5, 6}), False, "captured", 5)
@given(
    point=st.sampled_from(POINTS),
    calls=st.frozensets(st.integers(0, 60), min_size=1, max_size=3),
    after=st.booleans(),
    mode=st.sampled_from(["plain", "ahead", "captured"]),
    rows=st.sampled_from([2, 5]),
)
def test_right_audio_or_an_error(
    point: tuple[object, str], calls: frozenset[int], after: bool, mode: str, rows: int
) -> None:
    captured = mode == "captured"
    undisturbed(captured)
    after = after and point[1] not in HAND_OUT
    ran = Failing(captured, max_running=rows)
    with ExitStack() as stack:
        stack.enter_context(one_step_ahead() if mode == "ahead" else nullcontext())
        stack.enter_context(failing(*point, calls, after))
        try:
            ran.run(requests())
        except MemoryError:  # the recovery failed as well, and the engine's process would end
            check_so_far(ran, captured)
            return
    check(ran, captured)
    # and the engine is as good as new
    ran.chunks.clear()
    again = requests()
    ran.run(again)
    check(ran, captured)
    assert all(ran.chunks[request.request_id][-1].error is None for request in again)
    load = ran.world.engine.load["toy"]
    assert load["running"] == load["waiting"] == load["paused"] == 0
    assert load["available_pages"] == load["pages"]
    assert ran.world.engine._workers["toy"].runner.states.num_free == rows


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    "point",
    [
        (CodecGraphs, "_launch"),
        (HostCopy, "__init__"),
        (HostCopy, "wait"),
        (StateArena, "gather"),
        (StateArena, "scatter"),
        (torch.Tensor, "index_copy_"),
    ],
    ids=lambda point: point[1],
)
def test_right_audio_or_an_error_on_a_gpu(point: tuple[object, str], after: bool) -> None:
    """Captured: the state is advanced by a graph that the host has not waited for."""
    whole = Failing(True, device="cuda")
    whole.run(requests())
    for call in range(12):
        ran = Failing(True, device="cuda")
        with failing(*point, frozenset({call}), after):
            ran.run(requests())
        for request in requests():
            name = request.request_id
            got, right = ran.audio(name), whole.audio(name)
            assert got == right[: len(got)], f"wrong audio for {name}, call {call}"
            failed = ran.chunks[name][-1].reason is Reason.ERROR
            assert failed or len(got) == len(right)
        ran.chunks.clear()
        ran.run(requests())
        assert all(ran.audio(r.request_id) == whole.audio(r.request_id) for r in requests())
