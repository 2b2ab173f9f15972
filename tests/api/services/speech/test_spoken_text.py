"""Pauses and pronunciations of a text, whole or in parts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from izwi.errors import InvalidRequest
from izwi_api.schemas.speech import MAX_PRONUNCIATIONS
from izwi_api.services.speech.spoken_text import (
    Pause,
    Pronunciations,
    SpokenText,
    spoken_parts,
)

SPELLINGS = {
    "izwi": "ee-zwee",
    "New York": "Noo Yawk",
    "York": "Yawk",
    "a b": "X",
    "b c": "Z",
    "so": "thus",
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello.", ["Hello."]),
        ("[pause:1s]", [Pause(1.0)]),
        ("One[pause:500ms]two", ["One", Pause(0.5), "two"]),
        ("One [PAUSE:1.5S] two", ["One ", Pause(1.5), " two"]),
        ("[pause:1s][pause:0s]a", [Pause(1.0), Pause(0.0), "a"]),
        ("[pause: 1s] [pause:s] [pause:1m] [pause", ["[pause: 1s] [pause:s] [pause:1m] [pause"]),
        ("Izwi, izwi's IZWI!", ["ee-zwee, ee-zwee's ee-zwee!"]),
        ("kizwi izwis _izwi", ["kizwi izwis _izwi"]),
        ("In new york. Duke of York", ["In Noo Yawk. Duke of Yawk"]),
        ("a b c", ["X c"]),
        ("\u0131zwi \u017fo", ["ee-zwee thus"]),  # a dotless i, a long s
        ("izwi[pause:1s]izwi", ["ee-zwee", Pause(1.0), "ee-zwee"]),
        ("iz[pause:1s]wi", ["iz", Pause(1.0), "wi"]),
    ],
)
def test_text_is_cut_at_pauses_with_pronunciations(text, expected):
    assert spoken_parts(text, Pronunciations(SPELLINGS)) == expected


def test_without_a_list_a_text_is_as_it_is():
    assert spoken_parts("Izwi (a b).", Pronunciations()) == ["Izwi (a b)."]
    assert not Pronunciations({})


def test_a_word_is_spoken_once_it_cannot_become_a_listed_one():
    text = SpokenText(Pronunciations(SPELLINGS))
    assert text.write("Hello new") == ["Hello "]
    assert text.write("t") == ["newt"]
    assert text.write(" izwi") == [" "]
    assert text.write(" is [pau") == ["ee-zwee is "]
    assert text.write("nch] [pause:1") == ["[paunch] "]
    assert text.write("s") == []
    assert text.write("]York") == [Pause(1.0)]
    assert text.close() == ["Yawk"]
    assert text.close() == []


PIECES = st.sampled_from(
    [
        *("izwi", "iz", "wi", "new york", "new ", "york", "a b", " c", "a", "b", " ", ".", "é"),
        *("[pause:1s]", "[pause:", "1s", "]", "[", "\n"),
    ]
)


@given(st.lists(PIECES, max_size=12), st.data())
def test_parts_give_what_the_whole_gives(pieces, data):
    whole = "".join(pieces)
    text, parts, at = SpokenText(Pronunciations(SPELLINGS)), [], 0
    while at < len(whole):
        stop = data.draw(st.integers(at + 1, len(whole)))
        parts += text.write(whole[at:stop])
        at = stop
    parts += text.close()
    merged = []
    for part in parts:
        if isinstance(part, str) and merged and isinstance(merged[-1], str):
            merged[-1] += part
        else:
            merged.append(part)
    assert merged == spoken_parts(whole, Pronunciations(SPELLINGS))


@pytest.mark.parametrize(
    "spellings",
    [
        {"": "a"},
        {"a": " "},
        {"a" * 61: "a"},
        {"a": "a" * 201},
        {f"w{n}": "a" for n in range(MAX_PRONUNCIATIONS + 1)},
    ],
)
def test_lists_that_are_refused(spellings):
    with pytest.raises(InvalidRequest, match="pronunciations") as refused:
        Pronunciations(spellings)
    assert refused.value.param == "pronunciations"


def test_a_pause_that_is_too_long_is_refused():
    with pytest.raises(InvalidRequest, match="longer than the 10 s"):
        spoken_parts("[pause:9999999s] hello", Pronunciations())
    assert spoken_parts("[pause:10000ms]", Pronunciations()) == [Pause(10.0)]
