"""The rest of a key's limits for live sessions: the event `rate_limits.updated`."""

from __future__ import annotations

import math

from izwi_api.usage.metering import CHARACTERS_PER_ID, Usage

# OpenAI's clients know only these two names. Text is counted in characters here.
_NAMES = {"requests": ("requests", 1), "characters": ("tokens", CHARACTERS_PER_ID)}


def rate_limits(usage: Usage) -> list[dict[str, object]]:
    """Return OpenAI's description of each limit that has a name there."""
    found: list[dict[str, object]] = []
    for level in usage.levels():
        if level.what in _NAMES:
            name, size = _NAMES[level.what]
            found.append(
                {
                    "name": name,
                    "limit": math.floor(level.limit / size),
                    "remaining": math.floor(level.left / size),
                    "reset_seconds": round(level.reset_s, 3),
                }
            )
    return found
