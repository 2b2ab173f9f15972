"""Divide chained Ogg files where the audio changes, because FFmpeg keeps the first one's decoder.

Source: RFC 3533, sections 4 (chaining) and 6 (pages). Pure: bytes in, bytes out.
"""

from __future__ import annotations

from collections.abc import Iterator

_MAGIC = b"OggS"
_HEAD_BYTES = 27  # of a page; the last one is the number of segments
_BEGINS_STREAM = 0x02


def is_ogg(content: bytes) -> bool:
    """Return whether this is an Ogg file."""
    return content.startswith(_MAGIC)


def ogg_files(content: bytes) -> Iterator[bytes]:
    """Yield the links of a chain; those that follow each other with equal headers as one file.

    Args:
        content: From a file for which `is_ogg` holds.
    """
    start, header, is_in_heads = 0, b"", False
    for position, is_head, body in _pages(content):
        if is_head and not is_in_heads and body != header:
            if position > start:
                yield content[start:position]
            start, header = position, body
        is_in_heads = is_head
    yield content[start:]


def _pages(content: bytes) -> Iterator[tuple[int, bool, bytes]]:
    """Yield each page's position, whether a stream begins with it, and then its body."""
    position = content.find(_MAGIC)
    while 0 <= position <= len(content) - _HEAD_BYTES:
        is_head = bool(content[position + 5] & _BEGINS_STREAM)
        start = position + _HEAD_BYTES + content[position + _HEAD_BYTES - 1]
        stop = start + sum(content[position + _HEAD_BYTES : start])
        yield position, is_head, content[start:stop] if is_head else b""
        # damaged pages are skipped
        position = content.find(_MAGIC, max(stop, position + 1))
