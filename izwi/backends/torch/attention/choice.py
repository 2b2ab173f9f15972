"""Which implementation of the decoders' attention runs: the kernels', or torch's."""

from __future__ import annotations

from collections.abc import Sequence

from izwi.config import ATTENTIONS
from izwi.errors import InvalidRequest


def choose(attention: str, there: Sequence[str]) -> str:
    """The implementation that was asked for.

    Args:
        attention: One of ATTENTIONS.
        there: Those that a table of operations has, the one for "auto" first.

    Raises:
        InvalidRequest: It is unknown, or not there.
    """
    if attention not in ATTENTIONS:
        raise InvalidRequest(
            f"attention must be one of {', '.join(ATTENTIONS)}, got {attention!r}",
            param="attention",
        )
    if attention == "auto":
        return there[0]
    if attention not in there:
        raise InvalidRequest(
            f"attention {attention!r} is not available here: it takes a CUDA device and the "
            "package triton",
            param="attention",
        )
    return attention
