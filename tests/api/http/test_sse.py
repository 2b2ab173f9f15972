"""Server-sent events, parsed by the rules of the standard, equal those that were sent."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from izwi_api.http.sse import DONE, event

# what a schema lets in: no lone surrogates
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXTS,
    lambda some: st.lists(some, max_size=3) | st.dictionaries(TEXTS, some, max_size=3),
)


def data_of(stream: bytes) -> list[str]:
    """Events of a stream, as https://html.spec.whatwg.org/multipage/server-sent-events.html says:
    lines end with CR LF, LF or CR, an empty line ends an event, its data lines are joined."""
    text = stream.decode().replace("\r\n", "\n").replace("\r", "\n")
    assert text.endswith("\n\n")
    blocks = text[:-2].split("\n\n")
    lines = [block.split("\n") for block in blocks]
    assert all(line.startswith("data: ") for block in lines for line in block)
    return ["\n".join(line.removeprefix("data: ") for line in block) for block in lines]


@given(st.lists(st.dictionaries(TEXTS, VALUES, max_size=4), min_size=1, max_size=3))
def test_any_objects_are_read_back(sent: list[dict[str, object]]) -> None:
    stream = b"".join(map(event, sent)) + DONE
    *read, last = data_of(stream)
    assert [json.loads(data) for data in read] == sent
    assert last == "[DONE]"
