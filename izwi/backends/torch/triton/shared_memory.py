"""How much shared memory one program of a kernel may use. Knows no kernel."""

from __future__ import annotations

from functools import lru_cache

import torch

# Per block, of compute capability 9.0; CUDA's programming guide, "Compute Capabilities". 8.0 has
# 163 KiB; 8.6, 8.9 and 12.0, the cards of personal computers, have 99.
_MOST_BYTES = 227 * 1024


@lru_cache
def shared_bytes(device: torch.device) -> int:
    """Return the bytes of shared memory that one program may use on a device."""
    if device.type != "cuda":  # interpreted
        return _MOST_BYTES
    properties = torch.cuda.get_device_properties(device)
    # torch's types do not know it, and ROCm does not have it
    most_bytes = getattr(properties, "shared_memory_per_block_optin", None)
    return int(most_bytes or properties.shared_memory_per_block)
