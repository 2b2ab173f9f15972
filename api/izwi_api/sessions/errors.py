"""How a session ends, and the close codes of RFC 6455 that say so."""

from __future__ import annotations

NORMAL, GOING_AWAY, POLICY, INTERNAL = 1000, 1001, 1008, 1011


class ClientLeft(Exception):
    """The client has hung up."""


class SessionOver(Exception):
    """The session ends.

    Args:
        message: Why, for the client.
        code: The same, for its program; also the reason of the close frame.
        close_code: Of RFC 6455.
        is_told: An error comes before the close frame; else the frame alone says it.
    """

    def __init__(self, message: str, code: str, close_code: int, *, is_told: bool = True):
        super().__init__(message)
        self.code, self.close_code, self.is_told = code, close_code, is_told
