"""Header lines are read in linear time, and as h11 reads them."""

from __future__ import annotations

import re

import h11
import h11._abnf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from izwi_api.http.server import HEADER_LINE, Connection, server_config

THEIRS = re.compile(h11._abnf.header_field.encode("ascii"))
ALPHABET = st.sampled_from(
    [b"a", b"Z", b"-", b":", b" ", b"\t", b"\0", b"\r", b"\x0b", b"\xff", b"_"]
)


@given(st.lists(ALPHABET, max_size=14).map(b"".join))
def test_it_reads_what_h11_reads(line: bytes) -> None:
    ours, theirs = HEADER_LINE.fullmatch(line), THEIRS.fullmatch(line)
    assert (ours and ours.groupdict()) == (theirs and theirs.groupdict())


@pytest.mark.parametrize(
    "before",
    [
        b"GET / HTTP/1.1\r\nhost: a\r\n",
        # trailers
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n",
    ],
)
def test_white_space_before_a_value_takes_no_time(before: bytes) -> None:
    server_config(None, "127.0.0.1", 0, 5.0)  # type: ignore[arg-type]
    connection = Connection()
    # 200 KB: minutes, if it took time with the square of its length
    connection.receive_data(before + b"x: " + b" \t" * 100_000 + b"\0\r\n\r\n")
    with pytest.raises(h11.RemoteProtocolError, match="illegal header line"):
        list(iter(connection.next_event, None))
