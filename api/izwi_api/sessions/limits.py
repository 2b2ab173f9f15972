"""Limits of one live session."""

from __future__ import annotations

from dataclasses import dataclass

from izwi_api.sessions.errors import NORMAL


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """Time limits of a session, and how much may wait in it.

    Attributes:
        total_s: Maximum seconds of a session.
        idle_s: Seconds without messages and without work of the server for the client.
        idle_code: Close code for idle sessions.
        unread_s: Seconds for which messages wait and the client reads none.
        pending_messages: While this many messages wait for the client, its messages are not read,
            and its answers wait.
        pending_bytes: The same, in bytes.
        bad_messages: This many errors in a row end it.
        tick_s: Seconds between checks of the clock.
    """

    total_s: float = 3600.0
    idle_s: float = 900.0
    idle_code: int = NORMAL
    unread_s: float = 30.0
    pending_messages: int = 64
    pending_bytes: int = 4 << 20
    bad_messages: int = 100
    tick_s: float = 0.05
