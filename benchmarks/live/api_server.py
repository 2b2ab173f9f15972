"""The API-server process of `benchmarks.live.server`: untrained models output given text."""

from __future__ import annotations

from benchmarks.live.models import fix_models
from izwi.checkpoints.registry import Registry
from izwi_api.serve.api_server_process import load_frontends, main
from izwi_api.serve.control import ApiServerSpec


def load(spec: ApiServerSpec) -> Registry:
    """Describe the models."""
    return fix_models(load_frontends(spec))


if __name__ == "__main__":
    main(load)
