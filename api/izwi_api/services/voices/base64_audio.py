"""Audio inside text: a data: URL or plain base64."""

from __future__ import annotations

import base64
import binascii

from izwi.errors import InvalidAudio, TooLarge


def decode_base64_audio(text: str, limit_bytes: int, param: str) -> bytes:
    """Return the bytes of a data: URL or of plain base64.

    Args:
        text: The field's value.
        limit_bytes: Maximum size of the clip.
        param: Name of the field, for messages.

    Raises:
        InvalidAudio: It is neither.
        TooLarge: The clip is over the limit; it was not decoded.
    """
    if text.startswith("data:"):
        head, comma, text = text.partition(",")
        if not comma or not head.endswith(";base64") or head.startswith("data:text"):
            raise InvalidAudio("a data: URL must hold audio in base64", param=param)
    if len(text) * 3 // 4 > limit_bytes + 2:
        raise TooLarge(f"the clip is larger than {limit_bytes} bytes", param=param)
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidAudio(f"{param} is not valid base64", param=param) from error
