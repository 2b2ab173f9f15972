"""The engine in this process, for the verbs: load the models, step while the verb runs, stop."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from izwi.async_engine import AsyncEngine
from izwi.config import EngineConfig
from izwi.engine import Engine
from izwi.registry import Registry
from izwi.runner.device import TorchBackend, torch_backend
from izwi_api.cli.options import messages
from izwi_api.door import Door
from izwi_api.settings import read_settings
from izwi_api.voice_store import VoiceStore
from izwi_api.where import Where


def load_models(sources: Sequence[str], where: Where) -> tuple[Registry, TorchBackend]:
    """Load checkpoints onto a device, telling which one it is at.

    Raises:
        ModelNotFound: A source is no checkpoint.
        CheckpointError: A checkpoint is broken.
        InvalidRequest: The device, the dtype, the weights or the attention cannot be used.
    """
    backend = torch_backend(where.device, where.dtype, where.weights, where.attention)
    registry = Registry(backend)
    with messages().status("loading") as status:
        for source in sources:
            status.update(f"loading {source}")
            registry.load(source, offline=where.offline)
    return registry, backend


def open_door(sources: Sequence[str], where: Where, config: EngineConfig | None = None) -> Door:
    """Load checkpoints and build the engine over them; it does not step yet.

    Raises:
        InvalidRequest: A setting cannot be used.
        IzwiError: As `load_models`.
    """
    settings = read_settings(os.environ)
    registry, backend = load_models(sources, where)
    engine = AsyncEngine(Engine(registry.models, backend.ops, config or EngineConfig()))
    return Door(engine, registry, settings, VoiceStore(settings.home / "voices"))


@asynccontextmanager
async def running_door(sources: Sequence[str], where: Where) -> AsyncGenerator[Door]:
    """Open a door whose engine steps until the block ends; raises as `open_door`."""
    door = open_door(sources, where)
    door.engine.start()
    try:
        yield door
    finally:
        await door.engine.stop()
