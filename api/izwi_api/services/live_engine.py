"""The engine as live sessions use it: before callers who can wait, and beyond its death."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from izwi.engine_client import ForwardingEngine, OutputStream
from izwi.request import Request

# Above that of all other requests. What it means is the policy's own: ADR 27 says it of `deadline`.
PRIORITY = 1


class LiveEngine(ForwardingEngine):
    """An engine whose requests have the priority of live sessions, and outlive it.

    A user who speaks cannot be asked to say it again: where the engine has died, what the session
    asks for waits for the next one.
    """

    def submit(self, request: Request) -> OutputStream:
        """See `EngineClient.submit`."""
        return self._engine.submit(_live(request))

    def submit_all(self, requests: Sequence[Request]) -> Sequence[OutputStream]:
        """See `EngineClient.submit_all`."""
        return self._engine.submit_all([_live(request) for request in requests])


def _live(request: Request) -> Request:
    return replace(request, priority=PRIORITY, awaits_engine=True)
