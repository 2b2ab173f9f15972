"""Out-of-band responses: not part of the conversation, and concurrent with its response."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

from izwi.errors import IzwiError
from izwi_api.realtime.answering.response import Emit, Hooks, Response, ResponseSetting
from izwi_api.realtime.answering.response_maker import ResponseMaker
from izwi_api.realtime.protocol.errors import EventError
from izwi_api.realtime.protocol.items import Item
from izwi_api.realtime.protocol.settings import RealtimeSettings
from izwi_api.telemetry.calls import current_call

logger = logging.getLogger(__name__)

# Concurrent out-of-band responses per session.
MAX_OUT_OF_BAND = 4


class OutOfBandResponses:
    """The out-of-band responses of one session. Speech does not pause them.

    Args:
        maker: Opens their answers.
        emit: Sends an event.
        room: Waits while the client reads too slowly (backpressure).
    """

    def __init__(self, maker: ResponseMaker, emit: Emit, room: Callable[[], Awaitable[None]]):
        self._maker, self._emit, self._room = maker, emit, room
        self._responses: dict[str, Response] = {}

    @property
    def is_responding(self) -> bool:
        """Return whether any response is in progress."""
        return bool(self._responses)

    def create(
        self, settings: RealtimeSettings, setting: ResponseSetting, items: Sequence[Item]
    ) -> None:
        """Start a response. Raises EventError if too many are in progress."""
        if len(self._responses) >= MAX_OUT_OF_BAND:
            raise EventError(
                f"{MAX_OUT_OF_BAND} responses outside of the conversation are in progress",
                "too_many_responses",
            )
        hooks = Hooks(
            self._emit,
            lambda _: None,  # they add no item to the conversation
            lambda _: None,  # echo detection follows only the conversation's answers
            self._room,
            lambda error: self._ended(response, error),
            call=current_call.get(),
        )
        response = Response(-1, setting, hooks)
        self._responses[response.response_id] = response
        response.prepare(lambda: self._maker.open_answer(settings, setting, items))
        response.release()

    def cancel(self, response_id: str) -> bool:
        """Cancel the response with this id; return whether it exists."""
        response = self._responses.pop(response_id, None)
        if response is not None:
            response.finish("cancelled", "client_cancelled")
        return response is not None

    def close(self) -> None:
        """Stop all of them."""
        for response in self._responses.values():
            response.discard()
            response.end_call("cancelled", "session_closed")
        self._responses.clear()

    def _ended(self, response: Response, error: IzwiError | None) -> None:
        if self._responses.pop(response.response_id, None) is None:
            return  # already cancelled
        if error is not None:
            logger.warning("a response failed: %s", error)
        response.finish("completed" if error is None else "failed", None, error)
