"""Control characters and escape sequences of terminals are not spoken, however the text arrives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from izwi.inputs.control_characters import ControlFilter, without_controls
from izwi_api.services.speech.spoken_text import Pause, Pronunciations, SpokenText, spoken_parts
from tests.examples import examples

CASES = {
    "\x1b[31mred\x1b[0m, \x1b[1;38;5;208morange\x1b[m": "red, orange",
    "\x1b]0;a title\x07text \x1b]8;;https://a.example\x1b\\link\x1b]8;;\x1b\\": "text link",
    "\x1bPq#0;2;0\x1b\\a\x1b(Bb\x1b7c": "abc",
    "a\x1b[2Jb\x1b[10;5Hc\x1b[Kd": "a b cd",
    "\x9b31mred\x9b0m": "red",
    "a\0b\x07c\x7fd\x1fe\x81f": "a b c d e f",
    "a\x0bb\x0cc\x85d\u2028e\u2029f": "a\nb\nc\nd\ne\nf",
    "a\tb\nc\rd": "a\tb\nc\rd",
    "it\x92s \x93fine\x94 \x96 5\x80": "it’s “fine” – 5€",
    "an open string: \x1b]0;a title": "an open string:  ]0;a title",
    "cut off\x1b[3": "cut off",
    "cut off\x1b": "cut off ",
    "\x1b]" + "a" * 2000: " ]" + "a" * 2000,
    "zero\u200bwidth é 漢": "zero\u200bwidth é 漢",
}


@pytest.mark.parametrize("text", CASES)
def test_cases(text: str) -> None:
    assert without_controls(text) == CASES[text]


MARKS = ["\x1b", "\x1b[", "\x9b", "3", ";", "1m", "m", "H", "]0;", "P", "\x07", "\\", "\n", "\0"]
PIECES = st.sampled_from([*MARKS, "word", " "])


@examples(200)
@given(st.lists(PIECES, max_size=15), st.lists(st.integers(0, 40), max_size=6))
def test_cuts_change_nothing(pieces: list[str], cuts: list[int]) -> None:
    text, controls, parts, before = "".join(pieces), ControlFilter(), [], 0
    for place in sorted(min(cut, len(text)) for cut in cuts):
        parts.append(controls.write(text[before:place]))
        before = place
    parts += [controls.write(text[before:]), controls.close()]
    assert "".join(parts) == without_controls(text)
    assert not any(mark in "".join(parts) for mark in "\x1b\x9b\0\x07")


def test_every_speech_model_gets_text_without_them() -> None:
    listed = Pronunciations({"izwi": "ee-zwee"})
    assert spoken_parts("\x1b[1mizwi\x1b[0m is[pause:1s]on", listed) == [
        "ee-zwee is",
        Pause(1.0),
        "on",
    ]
    text = SpokenText(Pronunciations())
    assert text.write("one\x1b[3") == ["one"]
    assert text.write("1m two") == [" two"]
    assert text.close() == []
