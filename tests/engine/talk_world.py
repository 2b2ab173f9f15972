"""An engine with a two-track model beside one-track models, and its callers' output."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import torch

from izwi.backends.torch.kv import bytes_per_page
from izwi.config import EngineConfig
from izwi.engine.engine import Engine
from izwi.model.layers import KVSpec
from izwi.request.log import Log
from izwi.request.request import Chunk, Reason, Request
from tests.backends.kinds import backend_of
from tests.engine.toy_talk import Logged, ToyTalk
from tests.engine.world import STEP_S, Clock, check_nothing_is_lost, run_until_idle, toys

TALK = ToyTalk()
PAGE = 4
PAGE_BYTES = bytes_per_page(KVSpec.from_layers(TALK.layers), PAGE, torch.float32)


@cache
def talk_of(backend: str) -> ToyTalk:
    """The model of two tracks on a backend."""
    return TALK if backend == "torch" else ToyTalk(backend_of(backend).ops)


@dataclass
class Heard:
    """The output of one request."""

    logged: list[Logged] = field(default_factory=list)
    pcm: list[float] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)  # of each chunk: what came in it
    chunks: list[Chunk] = field(default_factory=list)
    reason: Reason | None = None
    error: BaseException | None = None

    def add_chunk(self, chunk: Chunk) -> None:
        assert self.reason is None, "a chunk after the last one"
        tracks = [0] * len(chunk.entries) if chunk.tracks is None else chunk.tracks.tolist()
        entries = [tuple(i for i in ids if i >= 0) for ids in chunk.entries.tolist()]
        self.logged += zip(tracks, entries, strict=True)
        if chunk.pcm is not None:
            self.pcm += chunk.pcm.tolist()
        self.kinds.append("audio" if chunk.pcm is not None else "text")
        self.chunks.append(chunk)
        self.reason, self.error = chunk.reason, chunk.error

    @property
    def log(self) -> Log:
        """The log from which another engine resumes."""
        clips = [chunk.pcm for chunk in self.chunks if chunk.pcm is not None]
        entries = [chunk.entries for chunk in self.chunks if len(chunk.entries)]
        nothing = np.zeros((0, 3), np.int64)
        return Log(
            np.concatenate(entries) if entries else nothing,
            chunk_samples=tuple(map(len, clips)),
        )


class TalkWorld:
    """An engine whose memory is as small as a test wants it."""

    def __init__(self, pages: int = 400, backend: str = "torch", **settings: Any):
        pages *= 3 * backend_of(backend).page_copies  # of three models
        config = EngineConfig(page_size=PAGE, kv_bytes=pages * PAGE_BYTES)
        self.clock = Clock()
        self.config = replace(config, **settings)
        speech, text = toys(backend)
        models: Any = {"talk": talk_of(backend), "toy": speech, "text": text}
        self.backend = backend
        self.engine = Engine(models, backend_of(backend), self.config, self.clock)
        self.heard: dict[str, Heard] = {}

    def submit(self, request: Request, log: Log | None = None) -> None:
        self.heard[request.request_id] = Heard()
        self.engine.submit(request, log)

    def step(self) -> None:
        for chunk in self.engine.step():
            self.heard[chunk.request_id].add_chunk(chunk)
        self.clock.now_s += STEP_S

    def run(self, limit: int = 4000) -> None:
        run_until_idle(self.engine, self.step, limit)

    def check_nothing_is_lost(self) -> None:
        check_nothing_is_lost(self.engine, "talk")


_ALONE: dict[Any, Heard] = {}


def alone(request: Request, backend: str = "torch") -> Heard:
    """The output of a request that runs alone."""
    key = request.model, request.prompt, request.seed, request.max_entries, backend
    if key not in _ALONE:
        world = TalkWorld(backend=backend)
        world.submit(request)
        world.run()
        world.check_nothing_is_lost()
        _ALONE[key] = world.heard[request.request_id]
    return _ALONE[key]
