"""How many examples a property is tried on: few in `make test`, 133 times as many at night."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

USUAL = 100  # at night 2000, and 15 in `make test`


def examples(number: int, **others: Any) -> settings:
    """Return settings for a property, as `hypothesis.settings` in units of the profile.

    Args:
        number: A twentieth of the examples at night; `make test` tries 0.15 times as many. 100 is
            usual; a property whose examples are slow asks for fewer.
        others: Further settings of hypothesis.
    """
    scaled = max(1, number * settings.default.max_examples // USUAL)
    return settings(max_examples=scaled, deadline=None, **others)
