"""The engine process of `benchmarks.serving.http_server`, with random weights."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.random_checkpoint import backend_of
from benchmarks.serving.timeline import engine_timeline
from izwi.backends.choice import own_device
from izwi.backends.torch.backend import TorchBackend
from izwi.checkpoints.registry import load_model
from izwi.model.protocol import Model
from izwi.runner.planning import prepare_device
from izwi_api.serve.control import EngineSpec
from izwi_api.serve.engine_process import main


def load(spec: EngineSpec) -> tuple[Mapping[str, Model], TorchBackend, Mapping[str, int]]:
    """Draw the weights of the models."""
    engine_timeline()
    first = next(iter(spec.models))
    device = own_device(spec.runtime.device)
    backend = backend_of(first, device, spec.runtime.dtype, spec.runtime.weights)
    weight_bytes = prepare_device(backend, spec.models, spec.config, spec.runtime.weights)
    models = {name: load_model(folder, backend) for name, folder in spec.models.items()}
    return models, backend, weight_bytes


if __name__ == "__main__":
    main(load)
