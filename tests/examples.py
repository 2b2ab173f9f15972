"""How many examples a property is tried on: few in `make test`, twenty times as many at night."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

USUAL = 100  # of a property that asks for no number of its own


def examples(number: int, **others: Any) -> settings:
    """Return settings for a property, as `hypothesis.settings` in units of the profile.

    Args:
        number: Examples in `make test`; a property whose examples are slow asks for fewer.
        others: Further settings of hypothesis.
    """
    scaled = max(1, number * settings.default.max_examples // USUAL)
    return settings(max_examples=scaled, deadline=None, **others)
