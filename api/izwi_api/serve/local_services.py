"""The engine in this process, and its models."""

from __future__ import annotations

import os
from collections.abc import Sequence

from izwi.backends.choice import open_backend, own_device
from izwi.backends.protocol import Backend
from izwi.checkpoints.registry import OWN_RUNNER, Registry, named, runner_family
from izwi.config import EngineConfig
from izwi.engine.async_engine import AsyncEngine
from izwi.engine.engine import Engine
from izwi.engine.stepped import Stepped
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


def open_engine(
    sources: Sequence[str], runtime: RuntimeOptions, config: EngineConfig
) -> tuple[Registry, Backend | None, Stepped]:
    """Load checkpoints, and open the engine over them; raises as `load_models`.

    Returns:
        The models, their backend, or None if izwi's loop does not run them, and the engine.
    """
    if runtime.runner == OWN_RUNNER:
        registry, backend = load_models(sources, runtime, config)
        return registry, backend, Engine(registry.models, backend, config)
    registry = Registry(runner=runtime.runner)
    folders = dict(named(source, offline=runtime.offline) for source in sources)
    for name, folder in folders.items():
        registry.load_folder(name, folder, str(folder))
    family = runner_family(runtime.runner)
    device = own_device(runtime.device)
    return registry, None, family.open_engine(folders, device, runtime.dtype, config)


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
    registry, _, engine = open_engine(sources, runtime, config)
    return LocalModels(AsyncEngine(engine), registry, settings)
