"""A door's process of `benchmarks.http_server`: all that is asked for lasts the same time."""

from __future__ import annotations

import os

from benchmarks.fixed_length import FRAMES, fix_lengths
from izwi.registry import Registry
from izwi_api.serve.control import DoorSpec
from izwi_api.serve.door_process import describe_models, main


def load(spec: DoorSpec) -> Registry:
    """Describe the models."""
    registry = describe_models(spec)
    fix_lengths(registry, int(os.environ[FRAMES]))
    return registry


if __name__ == "__main__":
    main(load)
