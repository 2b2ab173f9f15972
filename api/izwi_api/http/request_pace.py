"""The minimum rate at which a request body must arrive."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RequestPace:
    """Time limits for receiving a request.

    The default allows 25 MiB over 2 Mbit/s, which take 105 s.

    Attributes:
        max_head_s: Seconds for the request line and the headers.
        grace_s: Seconds for a body before its rate counts.
        min_bytes_per_s: Bytes of a body that add one second.
        max_body_s: Seconds for a whole body at any rate.
    """

    max_head_s: float = 30.0
    grace_s: float = 20.0
    min_bytes_per_s: float = 16_384.0
    max_body_s: float = 300.0

    def body_time_s(self, num_bytes: int) -> float:
        """Return the time limit, in seconds, after so many received bytes."""
        return min(self.max_body_s, self.grace_s + num_bytes / self.min_bytes_per_s)


@dataclass(frozen=True, slots=True)
class FetchPace:
    """Time limits for fetching a reference clip.

    Attributes:
        grace_s: Seconds from the start, for name, connection and headers, before the rate counts.
        min_bytes_per_s: Bytes of the clip that add one second.
        max_s: Seconds in total.
    """

    grace_s: float = 5.0
    min_bytes_per_s: float = 65_536.0
    max_s: float = 10.0

    def time_s(self, num_bytes: int) -> float:
        """Return the time limit, in seconds, after so many received bytes."""
        return min(self.max_s, self.grace_s + num_bytes / self.min_bytes_per_s)
