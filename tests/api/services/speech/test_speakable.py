"""What is spoken of a chat answer, however the answer was cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from izwi_api.services.speech.speakable import SpeakableText
from tests.examples import examples


def said(text: str, cuts=()) -> str:
    speakable = SpeakableText()
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    return "".join(map(speakable.write, pieces)) + speakable.close()


CASES = {
    "It is **very** late, _really_.": "It is very late, really.",
    "Call `print(x)` now.": "Call print(x) now.",
    "See [the docs](https://a.example/b?c=1) first.": "See the docs first.",
    "Look at https://www.example.com/a/b?c=d, please.": "Look at example.com, please.",
    "![a cat](cat.png)": "a cat",
    "# Title\nText": "Title.\nText",
    "- one\n- two!\n": "one.\ntwo!\n",
    "1. first\n2) second\n": "first.\nsecond.\n",
    "> quoted text\n": "quoted text.\n",
    "Before\n```python\nx = 1\n```\nAfter": "Before\nAfter",
    "~~~\na\n```\nb\n~~~\nc": "c",
    "| a | b |\n|---|---|\n| 1 | 2 |\nEnd": "End",
    "one\n---\ntwo": "one\ntwo",
    "Hello 👋🏽 world 👩‍💻!": "Hello  world !",
    "Water is wet.[1] It flows.[2,3][4]": "Water is wet. It flows.",
    "Water is wet[1](https://a.example/b).": "Water is wet.",
    "Water is wet【4†source】. Take [2] of x[0].": "Water is wet. Take [2] of x[0].",
    "It is 20 °C.": "It is 20 °C.",
    "2 * 3 * 4 and a_name": "2 * 3 * 4 and a_name",
    "-5 degrees": "-5 degrees",
    "an [open bracket and text": "an [open bracket and text",
    "```\nnever closed": "",
    "": "",
}


@pytest.mark.parametrize("text", CASES)
def test_cases(text):
    assert said(text) == CASES[text]


MARKS = st.sampled_from(
    ["**", "`", "```", "\n", "\n\n", " ", "# ", "- ", "| ", "[", "](", ")", "https://a.b/c", "1. ",
     "word", "[1]", "Sentence. ", "_", "~~~", "---", "👋", "<b>", "é", "*", ".", "\n```\n"]
)  # fmt: skip


@examples(100)
@given(st.lists(MARKS, max_size=25).map("".join), st.data())
def test_cuts_change_nothing(text, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=10)))
    assert said(text, cuts) == said(text)
    assert said(text, range(1, len(text))) == said(text)


def test_plain_text_is_said_word_by_word():
    speakable = SpeakableText()
    assert speakable.write("The train ") == "The train "
    assert speakable.write("lea") == ""
    assert speakable.write("ves at ") == "leaves at "


def test_a_bracket_that_is_never_closed_does_not_hold_the_rest_back():
    speakable = SpeakableText()
    heard = "".join(speakable.write("[word and ") for _ in range(100))
    assert len(heard) > 500
