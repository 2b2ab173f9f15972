"""How a session ends, and the close codes of RFC 6455."""

from __future__ import annotations

NORMAL, GOING_AWAY, POLICY, TOO_BIG, INTERNAL = 1000, 1001, 1008, 1009, 1011


class ClientLeft(Exception):
    """The client has disconnected."""


class SessionOver(Exception):
    """The session ends.

    Args:
        message: The reason, for people.
        code: The reason, for programs; also the reason in the close frame.
        close_code: Of RFC 6455.
        is_told: Send an error before the close frame; otherwise only the close frame.
    """

    def __init__(self, message: str, code: str, close_code: int, *, is_told: bool = True):
        super().__init__(message)
        self.code, self.close_code, self.is_told = code, close_code, is_told
