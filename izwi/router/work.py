"""Predict the work of requests, in prompt positions, from those of the same model that ended."""

from __future__ import annotations

from izwi.request.request import Request

# An entry is a pass of its own, where a prompt is one pass for many positions.
_POSITIONS_PER_ENTRY = 8.0
# Entries that a request is predicted to emit before one of its model has ended.
_FIRST_ENTRIES = 64.0
# Weight of the latest request in the mean.
_SHARE = 0.1


class WorkPredictor:
    """Learns how many entries requests of each model emit."""

    def __init__(self) -> None:
        self._entries: dict[str, float] = {}
        self._works: dict[str, float] = {}

    def predict(self, request: Request) -> float:
        """Return the work of a request, without what is cached of its prompt."""
        entries = min(self._entries.get(request.model, _FIRST_ENTRIES), request.max_entries)
        return request.prompt.num_positions + _POSITIONS_PER_ENTRY * entries

    def mean(self, model: str) -> float:
        """Return the work of a request that is not prepared yet: the mean of the latest ones."""
        return self._works.get(model, _POSITIONS_PER_ENTRY * _FIRST_ENTRIES)

    def note(self, model: str, work: float) -> None:
        """Note the predicted work of a request that was placed."""
        mean = self._works.get(model, work)
        self._works[model] = mean + _SHARE * (work - mean)

    def learn(self, model: str, num_entries: int) -> None:
        """Learn from a request that has ended by itself."""
        mean = self._entries.get(model, float(num_entries))
        self._entries[model] = mean + _SHARE * (num_entries - mean)
