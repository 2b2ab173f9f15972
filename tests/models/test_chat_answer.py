"""Thought and answer are separated, token by token, however they are cut."""

from __future__ import annotations

import pytest

from izwi_models.qwen3.tokenizer import QwenTokenizer
from izwi_models.qwen3_chat.answer import ChatReader
from tests.models.tiny_chat import write_tokenizer

THINK, END_THINK = 274, 275


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> QwenTokenizer:
    folder = tmp_path_factory.mktemp("tokens")
    write_tokenizer(folder)
    return QwenTokenizer(folder)


def ids_of(tokenizer: QwenTokenizer, *parts: str | int) -> list[int]:
    return [i for p in parts for i in ([p] if isinstance(p, int) else tokenizer.encode(p))]


def read(tokenizer, ids, step, thinks=False, thought_ids=(THINK, END_THINK)):
    reader = ChatReader(tokenizer, thought_ids, thinks)
    deltas = [reader.read(ids[at : at + step]) for at in range(0, len(ids), step)]
    deltas.append(reader.close())
    reasoning = "".join(delta.reasoning for delta in deltas)
    return reasoning, "".join(delta.content for delta in deltas), reader.num_reasoning_tokens


ANSWERS = {
    "said": (False, ["Hello 🙂\n\nthere\n"], "", "Hello 🙂\n\nthere\n", 0),
    "thought and said": (
        False,
        [THINK, "\nthe\n\nthought\n", END_THINK, "\n\nsaid\n"],
        "the\n\nthought",
        "said\n",
        None,
    ),
    "the prompt opened it": (True, ["the 🙂\n", END_THINK, "\n\n", "said"], "the 🙂", "said", None),
    "cut off in the thought": (True, ["\nthe thought\n"], "the thought", "", None),
    "nothing thought": (False, [THINK, "\n\n", END_THINK, "\n\nsaid"], "", "said", None),
    "nothing said": (False, [THINK, "x", END_THINK], "x", "", 3),
    "nothing": (False, [], "", "", 0),
    "it ends a thought that it did not begin": (False, ["a", END_THINK, "b"], "", "a</think>b", 0),
    "spelled, not thought": (False, ["<think>a</think>"], "", "<think>a</think>", 0),
    "tools are text": (False, [272, "x", 273], "", "<tool_call>x</tool_call>", 0),
    "control tokens are none": (False, ["a", 270, "b", 511], "", "ab", 0),
}


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("step", [1, 2, 1000])
def test_thought_and_answer_are_separated(tokenizer, name, step):
    thinks, parts, reasoning, content, num_tokens = ANSWERS[name]
    ids = ids_of(tokenizer, *parts)
    if num_tokens is None:
        num_tokens = ids.index(END_THINK) + 1 if END_THINK in ids else len(ids)
    assert read(tokenizer, ids, step, thinks) == (reasoning, content, num_tokens)


def test_a_character_comes_when_it_is_whole(tokenizer):
    reader = ChatReader(tokenizer, None, False)
    ids = tokenizer.encode("a🙂b")
    assert [reader.read([i]).content for i in ids] == ["a", "", "", "", "🙂", "b"]
    assert read(tokenizer, ids[:-2], 1) == ("", "a\ufffd", 0)


def test_without_thoughts_their_tokens_are_text(tokenizer):
    ids = ids_of(tokenizer, THINK, "x", END_THINK)
    assert read(tokenizer, ids, 1, thought_ids=None) == ("", "<think>x</think>", 0)
