"""How requests are placed on engines: settings."""

from __future__ import annotations

from dataclasses import dataclass

from izwi.config import require_one_of
from izwi.errors import InvalidRequest
from izwi.router.policy import ROUTER_POLICIES


@dataclass(frozen=True, slots=True)
class RouterOptions:
    """How requests are placed on engines.

    Attributes:
        policy: A name in `izwi.router.policy.ROUTER_POLICIES`.
        page_size: Positions of one page of the engines' prefix trees.
        max_in_flight: Requests that all engines together may run or have queued; 0: no limit.
        max_in_flight_each: The same of one engine.
        max_wait_s: Seconds in which a new stream must be predicted to have its first output, or it
            is refused; 0: no limit.
        num_prefill: Engines, the first ones, that compute long prompts for the others; 0: each
            engine computes its own. They run other requests only if no other engine accepts any.
        prefill_positions: Positions that are not cached from which a prompt is long.
    """

    policy: str = "prefix"
    page_size: int = 16
    max_in_flight: int = 0
    max_in_flight_each: int = 0
    max_wait_s: float = 0.0
    num_prefill: int = 0
    prefill_positions: int = 1024

    def __post_init__(self) -> None:
        require_one_of("policy", self.policy, tuple(ROUTER_POLICIES))
        for name in ("max_in_flight", "max_in_flight_each", "max_wait_s", "num_prefill"):
            if getattr(self, name) < 0:
                raise InvalidRequest(f"{name} must be at least 0", param=name)
