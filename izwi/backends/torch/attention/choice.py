"""Choose the implementation of the decoders' attention: our kernels or torch."""

from __future__ import annotations

from collections.abc import Sequence

from izwi.config import ATTENTIONS, require_one_of
from izwi.errors import InvalidRequest


def choose(attention: str, there: Sequence[str]) -> str:
    """Return the implementation to use.

    Args:
        attention: One of ATTENTIONS.
        there: Available implementations; "auto" takes the first.

    Raises:
        InvalidRequest: `attention` is unknown, or not available.
    """
    require_one_of("attention", attention, ATTENTIONS)
    if attention == "auto":
        return there[0]
    if attention not in there:
        raise InvalidRequest(
            f"attention {attention!r} is not available here: it takes a CUDA device and the "
            "package triton",
            param="attention",
        )
    return attention
