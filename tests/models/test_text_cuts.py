"""Text that is tokenised, cut and spelled out while it is written: only the text counts."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from izwi_models.qwen3.tokenizer import IncrementalTokenizer, QwenTokenizer
from izwi_models.qwen3_tts.pieces import Cutter, SpokenStream, joined, sentences, split_text
from tests.examples import examples
from tests.models.tiny_tts import write_tokenizer

# Everything that makes a split or a normal form depend on what follows.
TRICKY = (
    "ab 1\n\r\t.'sre!,漢가각ㄱ\u1100\u1161\u11a8\u0301\u0327\u0344e\u09c7\u09be😀👨\u200d\x1c\x85"
)
any_text = st.one_of(st.text(max_size=40), st.text(alphabet=TRICKY, max_size=40))
prose = st.text(alphabet="aab bcd AB12  ..,!?$%&\n'-;:é。，", max_size=60)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> QwenTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(folder)
    return QwenTokenizer(folder)


def cut(text: str, data: st.DataObject) -> list[str]:
    """Cut a text at random, often into single characters."""
    marks = data.draw(st.lists(st.integers(0, len(text)), max_size=8))
    if data.draw(st.booleans()):
        marks = list(range(len(text)))
    edges = [0, *sorted(marks), len(text)]
    return [text[first:last] for first, last in pairwise(edges)]


@examples(300)
@given(text=any_text, data=st.data())
@example("x  1", None)
@example("a\n  \n", None)
@example("!\n\n", None)
@example("e\u0301\u0327", None)
@example("I've 'r 're", None)
def test_ids_do_not_depend_on_the_cuts(
    tokenizer: QwenTokenizer, text: str, data: st.DataObject | None
) -> None:
    pieces = cut(text, data) if data else list(text)
    stream = IncrementalTokenizer(tokenizer)
    ids = [index for piece in pieces for index in stream.write(piece)]
    assert ids + stream.close() == tokenizer.encode(text)


def test_a_word_comes_out_with_what_follows_it(tokenizer: QwenTokenizer) -> None:
    stream = IncrementalTokenizer(tokenizer)
    assert stream.write("the") == []
    assert stream.write(" ") == []  # it may carry an accent
    assert stream.write("i") == tokenizer.encode("the")
    assert stream.write("n", word_ends=True) == tokenizer.encode(" in")
    assert stream.close() == []


@given(text=st.one_of(prose, any_text), limit=st.integers(1, 40), data=st.data())
def test_pieces_do_not_depend_on_the_cuts(text: str, limit: int, data: st.DataObject) -> None:
    cutter = Cutter(limit)
    parts = [part for piece in cut(text, data) for part in cutter.write(piece)]
    parts += cutter.close()
    assert (joined(parts) or [""]) == split_text(text, limit)
    assert all(part.text or part.ends for part in parts)


def test_words_flow_until_the_piece_may_end() -> None:
    cutter = Cutter(20)
    given_out = [cutter.write(character) for character in "one two, three four five six"]
    flow = ["".join(part.text for part in parts) for parts in given_out]
    assert flow[4] == "one"  # the next word has begun
    assert flow[8] == " two,"
    assert not any(flow[9:20])  # the piece may end after the clause
    last = cutter.close()
    pieces = joined([*(part for parts in given_out for part in parts), *last])
    assert pieces == ["one two,", "three four five six"]


@given(text=st.one_of(prose, any_text), data=st.data())
def test_what_is_spelled_out_does_not_depend_on_the_cuts(text: str, data: st.DataObject) -> None:
    stream = SpokenStream()
    parts = [part for piece in cut(text, data) for part in stream.write(piece)]
    assert joined([*parts, *stream.close()]) == sentences(text)
    for sentence in sentences(text):
        assert sentence[-1] in ".?!"
        assert any(character.isalpha() for character in sentence)
