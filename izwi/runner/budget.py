"""Divide the memory among the models; a model that is added later takes an unused share."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from izwi.backends.protocol import ArrayBackend
from izwi.config import EngineConfig

# Left free for activations, codec buffers, API servers and other programs.
DEVICE_SHARE = 0.8
_HOST_SHARE = 0.25
# The prefix cache fills all memory that it gets, and a laptop runs other programs too.
_MOST_HOST_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Memory that one model may use in addition to its weights.

    Attributes:
        kv_bytes: KV pages on the device.
        page_bytes: KV pages demoted to host memory.
        state_bytes: Codec states of preempted streams, in host memory.
        disk_bytes: KV pages demoted to disk.
        encoded_bytes: Cached results of the audio encoders.
    """

    kv_bytes: int
    page_bytes: int = 0
    state_bytes: int = 0
    disk_bytes: int = 0
    encoded_bytes: int = 0


def divide(config: EngineConfig, backend: ArrayBackend, num_models: int) -> MemoryBudget:
    """Give each model an equal share. Call this after the weights are loaded.

    If the configuration sets no size for keys and values, they take most of the device's free
    memory. A CPU shares its memory with other programs, so there they take at most a quarter.
    """
    kv_bytes = config.kv_bytes or backend.free_kv_bytes()
    share = max(1, num_models)
    return MemoryBudget(
        kv_bytes=kv_bytes // share,
        page_bytes=config.host_bytes // share // 2,
        state_bytes=config.host_bytes // share // 2,
        disk_bytes=config.disk_bytes // share,
        encoded_bytes=config.encoded_bytes // share,
    )


def share_of_added_model(
    config: EngineConfig, backend: ArrayBackend, share: MemoryBudget
) -> MemoryBudget:
    """Return a share for a model added at run time: its KV memory is limited to what is free now.

    The weights of the new model were not loaded when the memory was divided.
    """
    if config.kv_bytes:
        return share
    return replace(share, kv_bytes=min(share.kv_bytes, backend.free_kv_bytes()))


def free_host_kv_bytes() -> int:
    """Return how many bytes of the host's free memory keys and values may take."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if _KNOWS_FREE else 4 << 30
    return min(_MOST_HOST_BYTES, int(free * _HOST_SHARE))


_KNOWS_FREE = "SC_AVPHYS_PAGES" in os.sysconf_names
