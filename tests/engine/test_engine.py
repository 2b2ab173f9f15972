"""The loop: batching, pressure, cancelling and failing never change what a request says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from izwi.config import EngineConfig
from izwi.engine import Engine
from izwi.errors import InvalidRequest, Overloaded
from izwi.request import Chunk, Reason, Request
from tests.engine.toy import CODEBOOKS, ToySpeech, toy_request

MODEL = ToySpeech()


def engine(pages: int = 400, **settings: int) -> Engine:
    config = EngineConfig(page_size=4, **settings)  # type: ignore[arg-type]
    made = Engine({"toy": MODEL}, MODEL.ops, config)
    lane = made._lanes["toy"]
    lane.scheduler.pages.__init__(min(pages, lane.runner.num_pages))  # type: ignore[misc]
    return made


class Log:
    """What one request received."""

    def __init__(self) -> None:
        self.entries: list[list[int]] = []
        self.pcm: list[float] = []
        self.chunks: list[int] = []
        self.reason: Reason | None = None
        self.error: BaseException | None = None

    def take(self, chunk: Chunk) -> None:
        assert self.reason is None, "a chunk after the last one"
        self.entries += chunk.entries.tolist()
        if chunk.pcm is not None:
            self.pcm += chunk.pcm.tolist()
            self.chunks.append(len(chunk.pcm) // MODEL.frame_samples)
        self.reason, self.error = chunk.reason, chunk.error


def run(made: Engine, requests: list[Request], limit: int = 3000) -> dict[str, Log]:
    logs = {request.request_id: Log() for request in requests}
    for request in requests:
        made.submit(request)
    for _ in range(limit):
        if not made.has_work:
            break
        for chunk in made.step():
            logs[chunk.request_id].take(chunk)
    assert not made.has_work, "the loop stands still"
    return logs


def alone(request: Request) -> Log:
    return run(engine(), [request])[request.request_id]


def test_every_frame_becomes_sound_in_ramped_chunks() -> None:
    log = alone(toy_request("a", 7, seed=4, frames=40))
    assert len(log.pcm) == len(log.entries) * MODEL.frame_samples
    assert log.chunks[: min(4, len(log.chunks) - 1)] == [1, 2, 4, 8][: len(log.chunks) - 1]
    assert all(len(entry) == CODEBOOKS for entry in log.entries)
    assert all(entry[0] < 30 for entry in log.entries), "suppressed or stop ids were emitted"


def test_rows_of_a_step_share_one_forward_pass() -> None:
    MODEL.batch_sizes.clear()
    run(engine(), [toy_request(str(i), 5 + i, seed=i * 3, frames=10) for i in range(6)])
    assert max(MODEL.batch_sizes) == 6
    assert len(MODEL.batch_sizes) < 30


def test_same_seed_same_codes_alone_and_in_any_batch() -> None:
    requests = [toy_request(str(i), 3 + 5 * i, seed=i, frames=25, audio=i % 3) for i in range(8)]
    together = run(engine(max_step_tokens=64), requests)
    for request in requests:
        single = alone(request)
        assert together[request.request_id].entries == single.entries
        assert together[request.request_id].pcm == single.pcm


def test_seeds_differ_and_streams_of_noise_are_uniform() -> None:
    from izwi.runner.sampler import uniforms

    noise = np.array(
        [uniforms(range(2000), [step] * 2000, book) for step in range(4) for book in range(4)]
    )
    assert abs(noise.mean() - 0.5) < 0.01
    assert np.unique(noise).size == noise.size
    assert abs(np.corrcoef(noise)[np.triu_indices(16, 1)]).max() < 0.1


@settings(max_examples=40, deadline=None)
@given(
    plans=st.lists(
        st.tuples(st.integers(1, 20), st.integers(0, 50), st.integers(1, 16), st.integers(0, 2)),
        min_size=1,
        max_size=6,
    ),
    pages=st.integers(12, 40),
    tokens=st.integers(8, 40),
    arrivals=st.lists(st.integers(0, 30), min_size=6, max_size=6),
    aborts=st.dictionaries(st.integers(0, 5), st.integers(0, 40), max_size=2),
)
def test_pressure_never_changes_a_log_and_no_page_is_lost(
    plans, pages, tokens, arrivals, aborts
) -> None:
    requests = [toy_request(str(i), *plan) for i, plan in enumerate(plans)]
    made = engine(pages=pages, max_running=8, max_step_tokens=tokens)
    logs = {request.request_id: Log() for request in requests}
    for now in range(2000):
        for i, request in enumerate(requests):
            if arrivals[i] == now:
                made.submit(request)
            if aborts.get(i) == now and i < len(requests):
                for chunk in made.abort(str(i)):
                    logs[chunk.request_id].take(chunk)
        for chunk in made.step():
            logs[chunk.request_id].take(chunk)
        if now > 40 and not made.has_work:
            break
    assert not made.has_work, "the loop stands still"
    load = made.load["toy"]
    assert load["free_pages"] == load["pages"]
    assert made._lanes["toy"].runner.states.num_free == 8
    for i, request in enumerate(requests):
        log, single = logs[str(i)], alone(request)
        if log.reason is Reason.ABORTED:
            assert log.entries == single.entries[: len(log.entries)]
        else:
            assert log.entries == single.entries
            assert log.pcm == single.pcm
            assert log.reason == single.reason


def test_abort_frees_everything_at_once() -> None:
    made = engine()
    made.submit(toy_request("a", 30, seed=1, frames=100))
    for _ in range(4):
        made.step()
    chunks = made.abort("a")
    assert [chunk.reason for chunk in chunks] == [Reason.ABORTED]
    assert not made.has_work
    assert made.load["toy"]["free_pages"] == made.load["toy"]["pages"]
    assert made.abort("a") == []


def test_streams_that_still_owe_sound_keep_their_rows_from_newcomers() -> None:
    requests = [toy_request(str(i), 4, seed=i, frames=6 + i % 3) for i in range(12)]
    logs = run(engine(max_running=4, max_step_vocodes=1), requests)
    for request in requests:
        assert logs[request.request_id].pcm == alone(request).pcm


def test_a_failing_row_fails_alone() -> None:
    requests = [toy_request(str(i), 6, seed=i, frames=12) for i in range(4)]
    MODEL.poison = {"2"}
    try:
        logs = run(engine(), requests)
    finally:
        MODEL.poison = set()
    assert logs["2"].reason is Reason.ERROR
    assert isinstance(logs["2"].error, RuntimeError)
    for i in (0, 1, 3):
        assert logs[str(i)].entries == alone(requests[i]).entries


def test_a_held_request_emits_nothing_and_goes_on_where_it_was() -> None:
    made, request = engine(), toy_request("a", 6, seed=3, frames=20)
    log = Log()
    made.submit(request)
    for _ in range(5):
        [log.take(chunk) for chunk in made.step()]
    made.hold("a", True)
    before = len(log.entries)
    for _ in range(5):
        [log.take(chunk) for chunk in made.step()]
    assert len(log.entries) == before
    made.hold("a", False)
    while made.has_work:
        [log.take(chunk) for chunk in made.step()]
    assert log.entries == alone(request).entries
    assert log.pcm == alone(request).pcm


def test_encode_only_answers_with_the_encoded_audio() -> None:
    from dataclasses import replace

    request = replace(toy_request("a", 1, seed=3, frames=5, audio=2), encode_only=True)
    made = engine()
    made.submit(request)
    (chunk,) = made.step()
    assert chunk.reason is Reason.STOP
    assert len(chunk.encoded) == 2
    assert not made.has_work


def test_a_full_queue_and_a_prompt_too_long_are_told_at_once() -> None:
    made = engine(max_waiting=2)
    made.submit(toy_request("a", 3, seed=1, frames=5))
    made.submit(toy_request("b", 3, seed=1, frames=5))
    with pytest.raises(Overloaded):
        made.submit(toy_request("c", 3, seed=1, frames=5))
    with pytest.raises(InvalidRequest):
        engine(pages=3).submit(toy_request("d", 12, seed=1, frames=5))
