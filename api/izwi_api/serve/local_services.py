"""The engine in this process, and its models."""

from __future__ import annotations

import os
from collections.abc import Sequence

from izwi.backends.choice import open_backend, own_device
from izwi.backends.protocol import Backend
from izwi.checkpoints.registry import Registry, named
from izwi.config import EngineConfig
from izwi.engine.async_engine import AsyncEngine
from izwi.engine.engine import Engine
from izwi.runner.planning import prepare_device
from izwi_api.console import messages
from izwi_api.environment import read_settings
from izwi_api.runtime_options import RuntimeOptions
from izwi_api.services.models.served import LocalModels


def load_models(
    sources: Sequence[str], runtime: RuntimeOptions, config: EngineConfig
) -> tuple[Registry, Backend]:
    """Load checkpoints onto a device, and log each one.

    Raises:
        DoesNotFit: The device has no room for the models; none was loaded.
        ModelNotFound: A source is no checkpoint.
        CheckpointError: A checkpoint is broken.
        InvalidRequest: The device, the dtype, the weights or the attention cannot be used.
    """
    device = own_device(runtime.device)
    backend = open_backend(device, runtime.dtype, runtime.weights, runtime.attention)
    registry = Registry(backend)
    found = {source: named(source, offline=runtime.offline) for source in sources}
    prepare_device(backend, dict(found.values()), config, runtime.weights)
    with messages().status("loading") as status:
        for source, (name, folder) in found.items():
            status.update(f"loading {source}")
            registry.load_folder(name, folder, source)
    return registry, backend


def open_services(
    sources: Sequence[str], runtime: RuntimeOptions, config: EngineConfig | None = None
) -> LocalModels:
    """Load checkpoints and build the engine over them; it does not step yet.

    Raises:
        InvalidRequest: A setting cannot be used.
        IzwiError: As `load_models`.
    """
    settings = read_settings(os.environ)
    config = config or EngineConfig()
    registry, backend = load_models(sources, runtime, config)
    engine = AsyncEngine(Engine(registry.models, backend, config))
    return LocalModels(engine, registry, settings)
