"""Arrays in lines of JSON: a shape that does not match its data is refused before use."""

from __future__ import annotations

import base64
import zlib

import msgspec
import numpy as np
import pytest

from izwi.errors import InvalidMessage
from izwi.request.log import Log
from izwi.request.serialization import decode_line, encode_line

ENTRIES = np.arange(6).reshape(3, 2)


def line_of(planes: bytes) -> bytes:
    fields = msgspec.json.decode(encode_line(Log(ENTRIES)))
    fields["entries"]["data"] = base64.b64encode(zlib.compress(planes)).decode()
    return msgspec.json.encode(fields)


PLANES = np.frombuffer(ENTRIES.tobytes(), np.uint8).reshape(-1, ENTRIES.itemsize).T.tobytes()


def test_an_array_arrives_as_it_was():
    for line in (encode_line(Log(ENTRIES)), line_of(PLANES)):
        assert np.array_equal(decode_line(line, Log).entries, ENTRIES)


@pytest.mark.parametrize(
    "planes",
    [PLANES[:-1], PLANES[:-8], PLANES + b"\0", PLANES + bytes(8), PLANES + bytes(1 << 20), b""],
)
def test_an_array_of_another_size_is_refused(planes):
    with pytest.raises(InvalidMessage, match="does not fill its data"):
        decode_line(line_of(planes), Log)
