"""The deadlines that the caller of the current work wishes. Tasks inherit them."""

from __future__ import annotations

import re
from contextvars import ContextVar

from izwi.errors import InvalidRequest
from izwi.request.deadlines import Deadlines

HEADER = "x-izwi-deadlines"
current_deadlines: ContextVar[Deadlines | None] = ContextVar("current_deadlines", default=None)

_ENTRY = re.compile(r"(queue|prefill|decode)=(\d{1,6}(?:\.\d{1,3})?)")


def parse_deadlines(text: str) -> Deadlines:
    """Read `queue=2, prefill=1.5, decode=30`: seconds of some of the phases, each once.

    Raises:
        InvalidRequest: It is something else, or a time is 0.
    """
    times_s: dict[str, float] = {}
    for entry in text.split(","):
        found = _ENTRY.fullmatch(entry.strip())
        name = f"{found[1]}_s" if found is not None else ""
        if found is None or name in times_s or not float(found[2]):
            raise InvalidRequest(
                f"{HEADER} must be like 'queue=2, prefill=1.5, decode=30' (seconds above 0, each "
                f"phase at most once), got {text[:64]!r}",
                param=HEADER,
            )
        times_s[name] = float(found[2])
    return Deadlines(**times_s)
