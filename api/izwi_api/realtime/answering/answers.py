"""The responses of one conversation, by their numbers in the turn state machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from izwi.errors import IzwiError
from izwi_api.realtime.answering.response import Hooks, Response, ResponseSetting
from izwi_api.realtime.answering.response_maker import ResponseMaker
from izwi_api.realtime.protocol.items import Item
from izwi_api.realtime.protocol.settings import RealtimeSettings
from izwi_api.services.answer_figures import AnswerFigures


class Answers:
    """Makes responses and ends them.

    Args:
        maker: Opens answers.
        hooks: Of all responses; `ended` is not used.
        on_end: Called with a response's number when everything of it is sent, or with its error.
        report: Takes the figures of a response that has ended.
    """

    def __init__(
        self,
        maker: ResponseMaker,
        hooks: Hooks,
        on_end: Callable[[int, IzwiError | None], None],
        report: Callable[[AnswerFigures], None],
    ):
        self._maker, self._hooks, self._on_end, self._report = maker, hooks, on_end, report
        self._responses: dict[int, Response] = {}
        self._errors: dict[int, IzwiError] = {}
        self._heard: dict[int, dict[str, float]] = {}  # times of the turns that are answered

    def __contains__(self, number: int) -> bool:
        """Return whether a response was made."""
        return number in self._responses

    def __getitem__(self, number: int) -> Response:
        """Return a response."""
        return self._responses[number]

    def make(
        self,
        number: int,
        settings: RealtimeSettings,
        setting: ResponseSetting,
        items: Sequence[Item],
    ) -> None:
        """Make a response to items, without sending it."""
        hooks = replace(self._hooks, ended=lambda error: self._ended(number, error))
        response = self._responses[number] = Response(number, setting, hooks)
        response.prepare(lambda: self._maker.open_answer(settings, setting, items))

    def release(self, number: int, heard_s: dict[str, float]) -> None:
        """Send a response.

        Args:
            number: Its number.
            heard_s: When the user's last word ended (`speech`), and further times of the turn, on a
                monotonic clock. They may be added later.
        """
        self._heard[number] = self._responses[number].heard_s = heard_s
        self._responses[number].release()

    def finish(self, number: int, status: str, reason: str | None) -> None:
        """End a response: completed, cancelled or failed."""
        response = self._responses[number]
        response.finish(status, reason, self._errors.pop(number, None))
        if response.setting.wire is not None:
            num_gaps, gaps_ms = response.gaps
            times_s = self._heard.pop(number, {}) | response.times_s
            self._report(AnswerFigures(_latency(times_s), num_gaps, gaps_ms / 1000))
        self.truncate(number)

    def discard(self, number: int) -> None:
        """Abort a response that was not released."""
        self._responses.pop(number).discard()

    def truncate(self, number: int, played_ms: int | None = None) -> None:
        """Truncate an answer in the history. Audio that is still playing counts as played."""
        response = self._responses[number]
        if played_ms is not None and response.message is not None and response.setting.wire:
            response.message.content[0].played_ms = float(played_ms)
        for old in [n for n in self._responses if n < number - 1]:
            del self._responses[old]

    def number_of(self, response_id: str) -> int:
        """Return the number of a response, or -1 if the id is unknown."""
        found = (n for n, made in self._responses.items() if made.response_id == response_id)
        return next(found, -1)

    def number_of_item(self, item_id: str) -> int | None:
        """Return the number of the response with this message."""
        for number, response in self._responses.items():
            if response.message is not None and response.message.item_id == item_id:
                return number
        return None

    def close(self) -> None:
        """Stop all of them, and forget them."""
        for response in self._responses.values():
            response.discard()
            response.end_call("cancelled", "session_closed")
        self._responses.clear()

    def _ended(self, number: int, error: IzwiError | None) -> None:
        if error is not None:
            self._errors[number] = error
        self._on_end(number, error)


def _latency(times_s: dict[str, float]) -> dict[str, float]:
    """Return the times since the user's last word."""
    speech_s = times_s.get("speech")
    if speech_s is None:
        return {}
    return {name: at_s - speech_s for name, at_s in times_s.items() if name != "speech"}
