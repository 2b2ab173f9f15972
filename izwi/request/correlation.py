"""Which call a request is part of, so that logs and traces of all processes can be joined."""

from __future__ import annotations

from msgspec import Struct

# "00-<32 hex digits: trace>-<16 hex digits: span>-<2 hex digits: flags>"
_TRACE_DIGITS = slice(3, 35)
_SPAN_DIGITS = slice(36, 52)


class Correlation(Struct, frozen=True, array_like=True):
    """The call that submitted a request.

    Attributes:
        call_id: The call's x-request-id. Several requests may have the same one.
        traceparent: Trace context of the call in W3C's format; empty without one.
    """

    call_id: str = ""
    traceparent: str = ""

    @property
    def trace_id(self) -> str:
        """The trace, 32 hexadecimal digits, or an empty text."""
        return self.traceparent[_TRACE_DIGITS]

    @property
    def span_id(self) -> str:
        """The span that submitted the request, 16 hexadecimal digits, or an empty text."""
        return self.traceparent[_SPAN_DIGITS]
