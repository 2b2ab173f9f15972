"""A small world for the loop's tests: toy models, a simulated clock, and callers' output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from izwi.cache.pages import pages_for
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.engine.model_worker import ModelWorker
from izwi.request.request import Chunk, Reason, Request
from izwi.scheduler.work import Work
from tests.backends.kinds import backend_of
from tests.engine.toy import ToySpeech, ToyText

SPEECH, TEXT = ToySpeech(), ToyText()


@cache
def toys(backend: str) -> tuple[ToySpeech, ToyText]:
    """The toys of speech and of text on a backend."""
    if backend == "torch":
        return SPEECH, TEXT
    ops = backend_of(backend).ops
    return ToySpeech(ops), ToyText(ops)


PAGE = 4
STEP_S = 0.01


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class Log:
    """What one request received."""

    def __init__(self) -> None:
        self.entries: list[list[int]] = []
        self.pcm: list[float] = []
        self.chunks: list[int] = []
        self.logprobs: list[float] = []
        self.reason: Reason | None = None
        self.error: BaseException | None = None

    def add_chunk(self, chunk: Chunk) -> None:
        assert self.reason is None, "a chunk after the last one"
        self.entries += chunk.entries.tolist()
        if chunk.pcm is not None:
            self.pcm += chunk.pcm.tolist()
            self.chunks.append(len(chunk.pcm) // SPEECH.frame_samples)
        if chunk.logprobs is not None:
            self.logprobs += chunk.logprobs.tolist()
        self.reason, self.error = chunk.reason, chunk.error


class World:
    """An engine over the toys, whose memory is as small as a test wants it."""

    def __init__(self, pages: int = 400, backend: str = "torch", **settings: object):
        bytes_per_position = 2 * 2 * 2 * 8 * 4  # k and v, layers, heads, width, float32
        pages *= 2 * backend_of(backend).page_copies  # of two models
        config = EngineConfig(page_size=PAGE, kv_bytes=pages * PAGE * bytes_per_position)
        self.clock = Clock()
        self.config = replace(config, **settings)  # type: ignore[arg-type]
        speech, text = toys(backend)
        models = {"toy": speech, "text": text}
        self.engine = Engine(models, backend_of(backend), self.config, self.clock)
        self.logs: dict[str, Log] = {}
        for worker in self.engine._workers.values():
            worker.schedule = self._checked(worker)  # type: ignore[method-assign]

    def _checked(self, worker: ModelWorker) -> Callable[[float], Work]:
        """Schedule, and see that the step stays within its budgets."""
        plan = worker.schedule

        def schedule(now_s: float) -> Work:
            work = plan(now_s)
            config = self.config
            assert sum(row.stop - row.start for row in work.forward) <= config.max_step_tokens
            assert len(work.encode) <= config.max_step_encodes
            assert len(work.vocode) <= config.max_step_vocodes
            assert worker.scheduler.num_running <= config.max_running
            for row in work.forward:
                pages = row.sequence.kv.pages
                assert len(set(pages)) == len(pages) == pages_for(row.stop, config.page_size)
            return work

        return schedule

    def submit(self, request: Request) -> None:
        self.logs[request.request_id] = Log()
        self.engine.submit(request)

    def deliver(self, chunks: list[Chunk]) -> None:
        for chunk in chunks:
            self.logs[chunk.request_id].add_chunk(chunk)

    def step(self) -> None:
        self.deliver(self.engine.step())
        self.clock.now_s += STEP_S

    def run(self, limit: int = 4000) -> None:
        run_until_idle(self.engine, self.step, limit)

    def check_nothing_is_lost(self) -> None:
        check_nothing_is_lost(self.engine, "toy")


def run_until_idle(engine: Engine, step: Callable[[], None], limit: int) -> None:
    """Step until nothing has work, within a limit."""
    for _ in range(limit):
        if not engine.has_work:
            return
        step()
    raise AssertionError("the loop stands still")


def check_nothing_is_lost(engine: Engine, model: str) -> None:
    """Check that each page is free or held by the prefix tree only, and that each row is free."""
    for load in engine.load.values():
        assert load["running"] == load["waiting"] == load["paused"] == 0
        assert load["available_pages"] == load["pages"]
    assert engine._workers[model].runner.states.num_free == engine.config.max_running


def run(world: World, requests: list[Request]) -> dict[str, Log]:
    """Submit all at once and run to the end."""
    for request in requests:
        world.submit(request)
    world.run()
    return world.logs


def alone(request: Request, **settings: object) -> Log:
    """The output of a request that runs alone."""
    world = World(**settings)  # type: ignore[arg-type]
    return run(world, [request])[request.request_id]
