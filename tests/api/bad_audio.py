"""Files that are built to harm their decoder."""

from __future__ import annotations

import io
import struct

import numpy as np
import soundfile

from izwi.audio.encode import wav_header

_OGG_POLYNOMIAL = 0x04C11DB7
_PACKETS_A_PAGE = 255


def opus_bomb(num_bytes: int, packet: bytes = b"\xdb\xc2\x00\x00", packet_ms: int = 40) -> bytes:
    """An Ogg Opus file of silence: so many bytes of it are days.

    Args:
        num_bytes: About as long.
        packet: One packet; by default two stereo CELT frames of 20 ms that hold nothing.
        packet_ms: Duration of the audio in each packet.
    """
    head = b"OpusHead" + struct.pack("<BBHIhB", 1, 2, 0, 48_000, 0, 0)
    tags = b"OpusTags" + struct.pack("<I4sI", 4, b"none", 0)
    pages = [_page(head, [len(head)], 0, 0, 2), _page(tags, [len(tags)], 0, 1, 0)]
    lacing = [len(packet)] * _PACKETS_A_PAGE
    blank = _page(packet * _PACKETS_A_PAGE, lacing, 0, 0, 0)
    (blank_sum,) = struct.unpack_from("<I", blank, 22)
    shares = _checksum_shares(len(blank))
    step = _PACKETS_A_PAGE * packet_ms * 48
    for index in range(2, num_bytes // len(blank)):
        place = struct.pack("<Q", (index - 1) * step), struct.pack("<I", index)
        checksum = blank_sum
        for position, byte in (*enumerate(place[0], 6), *enumerate(place[1], 18)):
            checksum ^= shares[position][byte]
        page = bytearray(blank)
        page[6:14], page[18:22], page[22:26] = *place, struct.pack("<I", checksum)
        pages.append(bytes(page))
    return b"".join(pages)


def forged_flac() -> bytes:
    """A second of 8 channels whose header claims 655350 Hz."""
    buffer = io.BytesIO()
    soundfile.write(buffer, np.zeros((16_000, 8), np.float32), 16_000, format="FLAC")
    content = bytearray(buffer.getvalue())
    # STREAMINFO: 20 bits of rate at byte 18
    rest = int.from_bytes(content[18:22], "big") & 0xFFF
    content[18:22] = (655_350 << 12 | rest).to_bytes(4, "big")
    return bytes(content)


def flac_of(rate: int, num_channels: int, seconds: int) -> bytes:
    """A FLAC of silence whose header and frames agree on a rate that does not exist."""
    buffer = io.BytesIO()
    silence = np.zeros((16_000 * seconds, num_channels), np.float32)
    soundfile.write(buffer, silence, rate, format="FLAC")
    return buffer.getvalue()


def nested_mp4(depth: int) -> bytes:
    """An MP4 of deeply nested boxes."""
    content = b""
    for _ in range(depth):
        content = struct.pack(">I4s", len(content) + 8, b"moov")[:8] + content[: 8 * depth]
    return struct.pack(">I4s4sI4s", 20, b"ftyp", b"isom", 512, b"isom") + content


def wav_that_claims(data_bytes: int, riff_bytes: int | None = None, content: bytes = b"") -> bytes:
    """A WAV whose header claims more data than follows."""
    head = bytearray(wav_header(16_000, 0))
    struct.pack_into(
        "<I", head, 4, data_bytes + 36 & 0xFFFFFFFF if riff_bytes is None else riff_bytes
    )
    struct.pack_into("<I", head, 40, data_bytes)
    return bytes(head) + content


def _page(body: bytes, lacing: list[int], granule: int, sequence: int, flags: int) -> bytes:
    head = b"OggS" + struct.pack("<BBQIIIB", 0, flags, granule, 1, sequence, 0, len(lacing))
    page = bytearray(head + bytes(lacing) + body)
    struct.pack_into("<I", page, 22, _checksum(page))
    return bytes(page)


def _step(register: int, byte: int) -> int:
    register ^= byte << 24
    for _ in range(8):
        register = (register << 1 ^ (_OGG_POLYNOMIAL if register >> 31 else 0)) & 0xFFFFFFFF
    return register


_TABLE = [_step(0, byte) for byte in range(256)]


def _checksum(content: bytes | bytearray) -> int:
    register = 0
    for byte in content:
        register = (register << 8 & 0xFFFFFFFF) ^ _TABLE[register >> 24 ^ byte]
    return register


def _checksum_shares(size: int) -> dict[int, list[int]]:
    """What each value of a byte adds to the checksum of a page: the sum is linear, so pages need
    not be summed anew."""
    shares = {}
    for position in (*range(6, 14), *range(18, 22)):
        by_bit = []
        for bit in range(8):
            register = _TABLE[1 << bit]
            for _ in range(size - position - 1):
                register = (register << 8 & 0xFFFFFFFF) ^ _TABLE[register >> 24]
            by_bit.append(register)
        shares[position] = [
            int(np.bitwise_xor.reduce([0, *(by_bit[b] for b in range(8) if value >> b & 1)]))
            for value in range(256)
        ]
    return shares
