"""How long a request may take in each of its phases, as its caller wishes."""

from __future__ import annotations

from math import inf

from msgspec import Struct


class Deadlines(Struct, frozen=True, array_like=True):
    """The longest times of a request's phases, in seconds; each also has the engine's limit.

    Attributes:
        queue_s: From its submission to its start.
        prefill_s: From its start to its first output.
        decode_s: From its first output to its last one.
    """

    queue_s: float = inf
    prefill_s: float = inf
    decode_s: float = inf

    def tighter(self, other: Deadlines | None) -> Deadlines:
        """Return the shorter of two times in each phase."""
        if other is None:
            return self
        return Deadlines(
            min(self.queue_s, other.queue_s),
            min(self.prefill_s, other.prefill_s),
            min(self.decode_s, other.decode_s),
        )
