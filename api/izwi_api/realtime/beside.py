"""Responses that are no part of the conversation: each runs beside the one that is in progress."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

from izwi.errors import IzwiError
from izwi_api.realtime.errors import EventError
from izwi_api.realtime.items import Item
from izwi_api.realtime.making import ResponseMaker
from izwi_api.realtime.response import Emit, Hooks, Response, ResponseSetting
from izwi_api.realtime.settings import RealtimeSettings

logger = logging.getLogger(__name__)

# At once, of one session.
MAX_BESIDE = 4


class ResponsesBeside:
    """The out-of-band responses of one session. No speech pauses them, and turns know none.

    Args:
        maker: Opens their answers.
        emit: Sends an event.
        room: Waits while the client is far behind with reading.
    """

    def __init__(self, maker: ResponseMaker, emit: Emit, room: Callable[[], Awaitable[None]]):
        self._maker, self._emit, self._room = maker, emit, room
        self._responses: dict[str, Response] = {}

    @property
    def is_responding(self) -> bool:
        """Whether one is in progress."""
        return bool(self._responses)

    def create(
        self, settings: RealtimeSettings, setting: ResponseSetting, items: Sequence[Item]
    ) -> None:
        """Begin one. Raises EventError where there are too many."""
        if len(self._responses) >= MAX_BESIDE:
            raise EventError(
                f"{MAX_BESIDE} responses outside of the conversation are in progress",
                "too_many_responses",
            )
        hooks = Hooks(
            self._emit,
            lambda _: None,  # they add no item
            lambda _: None,  # echoes are looked for of the conversation's answers alone
            self._room,
            lambda error: self._ended(response, error),
        )
        response = Response(-1, setting, hooks)
        self._responses[response.response_id] = response
        response.prepare(lambda: self._maker.open_answer(settings, setting, items))
        response.release()

    def cancel(self, response_id: str) -> bool:
        """Cancel one; returns whether there is one of this id."""
        response = self._responses.pop(response_id, None)
        if response is not None:
            response.finish("cancelled", "client_cancelled")
        return response is not None

    def close(self) -> None:
        """Stop all of them."""
        for response in self._responses.values():
            response.discard()
        self._responses.clear()

    def _ended(self, response: Response, error: IzwiError | None) -> None:
        if self._responses.pop(response.response_id, None) is None:
            return  # it was cancelled in the meantime
        if error is not None:
            logger.warning("a response failed: %s", error)
        response.finish("completed" if error is None else "failed", None, error)
