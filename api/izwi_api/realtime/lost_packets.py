"""Sound over a network that loses packets: which packet is decoded next, and what fills the gaps.

aiortc's own buffer keeps the packets before a lost one until it is full, and then drops them too:
with one packet in ten lost, nearly half of the sound was. Knows nothing of aiortc but the shape of
its buffers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Int16 = NDArray[np.int16]

# Packets of 20 ms that wait for one that is late.
_DEPTH = 4
# Beyond that the sender has begun anew.
_MOST_APART = 100
_SEQUENCE = 1 << 16
# Shorter gaps are the resampler's, longer ones are pauses of the sender.
_LEAST_FILLED_S, _MOST_FILLED_S = 0.005, 1.0


class Packet(Protocol):
    """An RTP packet of sound, with its own payload."""

    sequence_number: int
    timestamp: int
    _data: bytes


@dataclass(slots=True)
class Encoded:
    """What is decoded: one packet. The receiver puts its own time into it."""

    data: bytes
    timestamp: int


@dataclass(slots=True)
class PacketBuffer:
    """Packets in order, each 80 ms after it came; one that is not there by then is lost.

    Takes the place of aiortc's `JitterBuffer` in a receiver of sound, where a packet is a frame.
    """

    _waiting: dict[int, Packet] = field(default_factory=dict)
    _next: int | None = None

    def add(self, packet: Packet) -> tuple[bool, Encoded | None]:
        """Take a packet, and return (False, the one that is due now or None)."""
        number = packet.sequence_number
        ahead = 0 if self._next is None else _apart(number, self._next)
        if abs(ahead) > _MOST_APART:
            self._waiting.clear()
            ahead = 0
            self._next = number
        if self._next is None:
            self._next = number
        if ahead < 0:  # it is too late
            return False, None
        self._waiting[number] = packet
        newest = max(_apart(one, self._next) for one in self._waiting)
        if newest < _DEPTH:
            return False, None
        while self._next not in self._waiting:
            self._next = (self._next + 1) % _SEQUENCE
        due = self._waiting.pop(self._next)
        self._next = (self._next + 1) % _SEQUENCE
        return False, Encoded(due._data, due.timestamp)


def _apart(one: int, other: int) -> int:
    """How far a sequence number is behind another; negative where it is before."""
    return (one - other + _SEQUENCE // 2) % _SEQUENCE - _SEQUENCE // 2


@dataclass(slots=True)
class Filler:
    """Fills the gaps between pieces of sound, so that time goes on: the last piece, fading out.

    Args:
        rate: Samples a second.
    """

    rate: int
    _end_s: float | None = None
    _last: Int16 = field(default_factory=lambda: np.zeros(0, np.int16))

    def pieces(self, start_s: float, samples: Int16) -> Iterator[Int16]:
        """Yield what was lost before a piece, and the piece.

        Args:
            start_s: Where it begins, by the sender's clock.
            samples: (n,) of the piece.
        """
        gap_s = 0.0 if self._end_s is None else start_s - self._end_s
        missing = round(gap_s * self.rate) if _LEAST_FILLED_S <= gap_s <= _MOST_FILLED_S else 0
        fading = self._last
        while missing > 0:
            fading = fading // 2 if len(fading) else np.zeros(missing, np.int16)
            yield fading[:missing]
            missing -= len(fading)
        self._end_s, self._last = start_s + len(samples) / self.rate, samples
        yield samples
