"""The engine as live sessions use it: before requests of callers who can wait."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from izwi.engine_client import ForwardingEngine, OutputStream
from izwi.request import Request

# Above that of all other requests. What it means is the policy's own: ADR 27 says it of `deadline`.
PRIORITY = 1


class LiveEngine(ForwardingEngine):
    """An engine whose requests have the priority of live sessions."""

    def submit(self, request: Request) -> OutputStream:
        """See `EngineClient.submit`."""
        return self._engine.submit(replace(request, priority=PRIORITY))

    def submit_all(self, requests: Sequence[Request]) -> Sequence[OutputStream]:
        """See `EngineClient.submit_all`."""
        return self._engine.submit_all([replace(r, priority=PRIORITY) for r in requests])
