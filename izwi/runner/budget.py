"""Divide the memory among the models; one added later takes an unused share."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from izwi.backends.protocol import ArrayBackend
from izwi.config import EngineConfig

# What is left alone: activations, the codec's buffers, the API servers, other programs.
DEVICE_SHARE = 0.8
_HOST_SHARE = 0.25
# Known prefixes fill whatever they are given, and a laptop has other things to keep.
_MOST_HOST_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """What one model may take beyond its weights.

    Attributes:
        kv_bytes: Pages of keys and values, on the device.
        page_bytes: Pages that had to leave the device, in host memory.
        state_bytes: Codec states of streams that do not run, in host memory.
        disk_bytes: Pages that had to leave the host memory.
        encoded_bytes: Results of the audio encoders.
    """

    kv_bytes: int
    page_bytes: int = 0
    state_bytes: int = 0
    disk_bytes: int = 0
    encoded_bytes: int = 0


def divide(config: EngineConfig, backend: ArrayBackend, num_models: int) -> MemoryBudget:
    """Give each model the same share; call it after the weights are loaded.

    Where the configuration names no bytes for keys and values, they take most of what the device
    has free; a CPU shares its memory with everything else, so there it is a quarter at most.
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
    """Return a share as it can still be given: no more for keys and values than is free now.

    The weights of a new request were not there when the memory was divided.
    """
    if config.kv_bytes:
        return share
    return replace(share, kv_bytes=min(share.kv_bytes, backend.free_kv_bytes()))


def free_host_kv_bytes() -> int:
    """Bytes that keys and values may take of the host's memory as it is now."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if _KNOWS_FREE else 4 << 30
    return min(_MOST_HOST_BYTES, int(free * _HOST_SHARE))


_KNOWS_FREE = "SC_AVPHYS_PAGES" in os.sysconf_names
