"""An engine client for live sessions: with priority, and across restarts of the engine."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from izwi.engine_client.protocol import Answer, Answers, ForwardingEngine
from izwi.request.request import Request

# Above all other requests. The policy defines its effect; see ADR 27 for `deadline`.
PRIORITY = 1


class LiveEngine(ForwardingEngine):
    """An engine client whose requests have the priority of live sessions and survive a restart.

    If the engine process has died, a request waits for the next one: the user cannot be asked to
    repeat what they said.
    """

    def submit(self, request: Request) -> Answer:
        """See `EngineClient.submit`."""
        return self._engine.submit(_live(request))

    def submit_all(self, requests: Sequence[Request]) -> Answers[Answer]:
        """See `EngineClient.submit_all`."""
        return self._engine.submit_all([_live(request) for request in requests])


def _live(request: Request) -> Request:
    return replace(request, priority=PRIORITY, awaits_engine=True)
