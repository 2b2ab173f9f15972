"""What one model may use in addition to its weights; `memory_plan` says how much of the device."""

from __future__ import annotations

import os
from dataclasses import dataclass

from izwi.backends.memory_plan import MemoryPlan, ModelPlan
from izwi.config import EngineConfig

# A host's memory is shared with other programs.
_HOST_SHARE = 0.25
# The prefix cache fills all memory that it gets, and a laptop runs other programs too.
_MOST_HOST_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """Memory that one model may use in addition to its weights.

    Attributes:
        device: Its part of the device's memory plan.
        shared_bytes: What all models of the device share.
        page_bytes: KV pages demoted to host memory.
        state_bytes: Codec states of preempted streams, in host memory.
        disk_bytes: KV pages demoted to disk.
        encoded_bytes: Cached results of the audio encoders.
    """

    device: ModelPlan
    shared_bytes: int = 0
    page_bytes: int = 0
    state_bytes: int = 0
    disk_bytes: int = 0
    encoded_bytes: int = 0

    @property
    def figures(self) -> dict[str, float]:
        """Parts of the plan, by keys of `izwi.metrics.FIGURES`."""
        return {
            "weight_bytes": self.device.weight_bytes,
            "state_bytes": self.device.state_bytes,
            "graph_bytes": self.device.buffer_bytes,
            "shared_bytes": self.shared_bytes,
        }


def budget_of(config: EngineConfig, plan: MemoryPlan, name: str, num_shares: int) -> MemoryBudget:
    """Return a model's budget: its part of the plan, and an equal share of host memory and disk."""
    return MemoryBudget(
        plan.share_of(name),
        plan.shared_bytes,
        page_bytes=config.host_bytes // num_shares // 2,
        state_bytes=config.host_bytes // num_shares // 2,
        disk_bytes=config.disk_bytes // num_shares,
        encoded_bytes=config.encoded_bytes // num_shares,
    )


def free_host_kv_bytes() -> int:
    """Return how many bytes of the host's free memory keys and values may take."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if _KNOWS_FREE else 4 << 30
    return min(_MOST_HOST_BYTES, int(free * _HOST_SHARE))


_KNOWS_FREE = "SC_AVPHYS_PAGES" in os.sysconf_names
