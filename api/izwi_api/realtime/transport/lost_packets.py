"""A jitter buffer for audio packets, and concealment of lost ones.

When a packet is lost, aiortc's own buffer keeps those before it until it is full, and then drops
them too: with 10 % packet loss, nearly half of the audio was lost. This module depends on aiortc
only through the interface of its buffers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Int16 = NDArray[np.int16]

# Number of 20 ms packets held back while an earlier one is missing.
_DEPTH = 4
# A larger jump means that the sender has restarted.
_MOST_APART = 100
_SEQUENCE = 1 << 16
# Shorter gaps come from the resampler; longer ones are pauses of the sender.
_LEAST_FILLED_S, _MOST_FILLED_S = 0.005, 1.0


class Packet(Protocol):
    """An RTP packet of audio."""

    sequence_number: int
    timestamp: int
    _data: bytes


@dataclass(slots=True)
class Encoded:
    """The payload of one packet, for the decoder. The receiver sets its timestamp."""

    data: bytes
    timestamp: int


@dataclass(slots=True)
class PacketBuffer:
    """Returns packets in order, 80 ms after they arrive. A later packet counts as lost.

    Replaces aiortc's `JitterBuffer` in an audio receiver, where each packet is one frame.
    """

    _waiting: dict[int, Packet] = field(default_factory=dict)
    _next: int | None = None

    def add(self, packet: Packet) -> tuple[bool, Encoded | None]:
        """Add a packet and return (False, the packet that is due now or None)."""
        number = packet.sequence_number
        ahead = 0 if self._next is None else _apart(number, self._next)
        if abs(ahead) > _MOST_APART:
            self._waiting.clear()
            ahead = 0
            self._next = number
        if self._next is None:
            self._next = number
        if ahead < 0:  # too late
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
    """Return the distance between two sequence numbers; negative if the first is earlier."""
    return (one - other + _SEQUENCE // 2) % _SEQUENCE - _SEQUENCE // 2


@dataclass(slots=True)
class Filler:
    """Fills gaps between pieces of audio by repeating the last piece with a fade-out.

    Args:
        rate: Samples a second.
    """

    rate: int
    _end_s: float | None = None
    _last: Int16 = field(default_factory=lambda: np.zeros(0, np.int16))

    def pieces(self, start_s: float, samples: Int16) -> Iterator[Int16]:
        """Yield the fill for the gap before a piece, then the piece.

        Args:
            start_s: Start of the piece on the sender's clock.
            samples: The piece, (n,).
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

    def silence(self, duration_s: float) -> Int16:
        """Return silence while no piece comes. The gap before the next one is that much shorter."""
        if self._end_s is not None:
            self._end_s += duration_s
        self._last = np.zeros(0, np.int16)
        return np.zeros(round(duration_s * self.rate), np.int16)
