"""Limits of one live session."""

from __future__ import annotations

from dataclasses import dataclass

from izwi_api.sessions.errors import NORMAL


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """When a session ends, and how much may wait in it.

    Attributes:
        total_s: Seconds of a session.
        idle_s: Seconds in which no message comes or goes, and the server has nothing to do for it.
        idle_code: Close code of a session that was idle.
        unread_s: Seconds with messages of which the client reads none.
        pending_messages: Messages that wait for the client from which on it is read no further,
            and its answers wait.
        pending_bytes: The same, in bytes.
        bad_messages: So many errors in a row end it.
        tick_s: Seconds between two looks at the clock.
    """

    total_s: float = 3600.0
    idle_s: float = 900.0
    idle_code: int = NORMAL
    unread_s: float = 30.0
    pending_messages: int = 64
    pending_bytes: int = 4 << 20
    bad_messages: int = 100
    tick_s: float = 0.05
