"""Plain English for the embedded voice."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from izwi_models.qwen3_tts.pieces import sentences, spell_out


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("Hello there", "Hello there."),
        ("It costs $5.", "It costs five dollars."),
        (
            "Room 1,234 on the 21st!",
            "Room one thousand two hundred and thirty four on the twenty first!",
        ),
        ("At 7:30 or 8:00?", "At seven thirty or eight o'clock?"),
        ("3.5% of it", "Three point five percent of it."),
        ("The BBC and NASA", "The B B C and nasa."),
        ("Tom & Jerry (a film); good", "Tom and Jerry, a film, good."),
        ("“Café,” she said…", "Cafe, she said."),
        ("one\ntwo\n\n", "One. Two."),
        ("Wait... what?!", "Wait. what?"),
        ("!!!", ""),
        ("世界", ""),
    ],
)
def test_examples(text: str, spoken: str) -> None:
    assert spell_out(text) == spoken


@given(st.text(max_size=80))
def test_anything_becomes_plain(text: str) -> None:
    spoken = spell_out(text)
    assert re.fullmatch(r"[A-Za-z ,.'?!-]*", spoken)
    assert not spoken or spoken[-1] in ".?!"
    assert "  " not in spoken


def test_sentences_are_cut_and_none_is_lost() -> None:
    assert sentences("One. Two? Three!") == ["One.", "Two?", "Three!"]
    assert sentences("") == []
