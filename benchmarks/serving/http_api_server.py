"""The API-server process of `benchmarks.serving.http_server`: every output has the same length."""

from __future__ import annotations

import os

from benchmarks.fixed_length import FRAMES, fix_lengths
from benchmarks.serving.timeline import api_server_timeline
from izwi.checkpoints.registry import Registry
from izwi_api.serve.api_server_process import load_frontends, main
from izwi_api.serve.control import ApiServerSpec


def load(spec: ApiServerSpec) -> Registry:
    """Describe the models."""
    registry = load_frontends(spec)
    fix_lengths(registry, int(os.environ[FRAMES]))
    api_server_timeline(registry)
    return registry


if __name__ == "__main__":
    main(load)
