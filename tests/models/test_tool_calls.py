"""Function calls are separated from text, however they are cut, also malformed ones."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from izwi_models.qwen3_chat.json_prefix import JsonPrefix
from izwi_models.qwen3_chat.tool_calls import CallReader


def call(name="f", arguments='{"a": 1}', tail="}\n"):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}{tail}</tool_call>'


def read(text, cuts=(), most_calls=None):
    """Content, [(name, arguments)], and how many calls are complete."""
    reader = CallReader(most_calls)
    content, calls = "", []
    ends = [*sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[start:stop] for start, stop in zip([0, *ends], ends, strict=False)]
    for said, grown in [*map(reader.write, pieces), reader.close()]:
        content += said
        for place, name, arguments in grown:
            if name:
                assert (place, arguments) == (len(calls), "")
                calls.append([name, ""])
            else:
                assert place == len(calls) - 1
                calls[-1][1] += arguments
    return content, [tuple(known) for known in calls], reader.num_calls


CUT = '<tool_call>\n{"name": "f", "arguments": {"a": "b'
ANSWERS = {
    "text": ("Hello <tool> there\n\n", "Hello <tool> there\n\n", [], 0),
    "one": (call(), "", [("f", '{"a": 1}')], 1),
    "said before": ("Well.\n\n" + call(), "Well.", [("f", '{"a": 1}')], 1),
    "two": (call() + "\n" + call("g", "{}"), "", [("f", '{"a": 1}'), ("g", "{}")], 2),
    "said between": (call() + "\nand\n" + call("g", "{}"), "and", None, 2),
    "said behind": (call() + "\n\nDone.\n", "Done.\n", [("f", '{"a": 1}')], 1),
    "without line breaks": (
        '<tool_call>{"name":"f","arguments":{"a":[1,{"b":null}]}}</tool_call>',
        "",
        [("f", '{"a":[1,{"b":null}]}')],
        1,
    ),
    "tags in a string": (
        call(arguments='{"a": "</tool_call><tool_call>\\"}"}'),
        "",
        [("f", '{"a": "</tool_call><tool_call>\\"}"}')],
        1,
    ),
    "no end tag": (call()[:-13], "", [("f", '{"a": 1}')], 1),
    "arguments first": (
        '<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>',
        "",
        [("f", '{"a": 1}')],
        1,
    ),
    "arguments first, no end tag": (
        '<tool_call>{"arguments": {"a": 1}, "name": "f"}',
        "",
        [("f", '{"a": 1}')],
        1,
    ),
    "arguments as text": (
        '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>',
        "",
        [("f", '{"a": 1}')],
        1,
    ),
    "no arguments": ('<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")], 1),
    "more behind the arguments": (call(tail=', "id": 3}\n'), "", [("f", '{"a": 1}')], 1),
    # what is broken
    "cut off in the tag": ("a\n<tool_c", "a\n<tool_c", [], 0),
    "cut off in the head": ('<tool_call>\n{"name": "f', '<tool_call>\n{"name": "f', [], 0),
    "cut off in the arguments": (CUT, "", [("f", '{"a": "b')], 0),
    "no JSON": ("<tool_call>\nf(a=1)\n</tool_call>", "<tool_call>\nf(a=1)\n</tool_call>", [], 0),
    "not an object": ("<tool_call>[1]</tool_call>", "<tool_call>[1]</tool_call>", [], 0),
    "no name": (
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        [],
        0,
    ),
    "a name that is none": (
        '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
        '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
        [],
        0,
    ),
    "arguments that are a list": (
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        [],
        0,
    ),
    "arguments that do not parse": (
        call(arguments='{"a": oh}'),
        "oh}}\n</tool_call>",
        [("f", '{"a": ')],
        0,
    ),
    "nested tags": (
        "<tool_call>\n" + call(),
        "",
        [("f", '{"a": 1}')],
        1,
    ),
    "nested tags around text": (
        "<tool_call>\nf<tool_call>" + call(),
        "<tool_call>\nf",
        [("f", '{"a": 1}')],
        1,
    ),
    "an empty call": ("Well.\n<tool_call>\n</tool_call>", "Well.", [], 0),
    "tags alone": ("<tool_call>\n<tool_call>\n", "", [], 0),
    "a call in the arguments": (
        '<tool_call>{"name": "f", "arguments": {<tool_call>{"name": "g"}</tool_call>',
        "",
        [("f", "{"), ("g", "{}")],
        1,
    ),
    "an end without a begin": ("a</tool_call>b", "a</tool_call>b", [], 0),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_calls_are_separated_from_text_however_cut(name):
    text, content, calls, complete = ANSWERS[name]
    got = read(text)
    assert (got[0], got[2]) == (content, complete)
    assert calls is None or got[1] == calls
    for cut in range(len(text) + 1):
        assert read(text, [cut]) == got
    assert read(text, range(len(text))) == got


PIECES = st.sampled_from(
    [
        *("<tool_call>", "</tool_call>", "<tool", "\n", "a", '{"name": "f", "arguments": ', "{}"),
        *('{"a": ', '"b"', "}", "1", "]", "[", ",", ":", '"', "\\", "true", "nul", '{"name": "'),
        *(' "arguments": {"x": 1}', "é", "</tool_call>\n<tool_call>", '{"name": "g"}'),
    ]
)
TEXTS = st.lists(PIECES, max_size=12).map("".join) | st.sampled_from(
    [text for text, *_ in ANSWERS.values()]
)


@given(TEXTS, st.lists(st.integers(0, 80), max_size=6), st.sampled_from([None, 1, 2]))
def test_it_does_not_matter_how_an_answer_is_cut(text, cuts, most_calls):
    whole = read(text, most_calls=most_calls)
    assert read(text, cuts, most_calls) == whole
    assert read(text, range(len(text)), most_calls) == whole
    content, calls, complete = whole
    assert complete <= len(calls)
    parsed = 0
    for _, arguments in calls:
        with suppress(ValueError):
            parsed += isinstance(json.loads(arguments), dict)
    assert parsed == complete
    assert "<tool_call>" in text or (content, calls) == (text, [])


def test_after_the_last_call_nothing_is_read():
    text = "a" + call() + "\n" + call("g") + "and more"
    reader = CallReader(1)
    assert reader.write(text)[0] == "a"
    assert (reader.num_calls, reader.ended) == (1, True)
    assert reader.write(text) == reader.close() == ("", ())


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), JSON, max_size=4), st.booleans(), st.sampled_from([None, 1]))
def test_every_prefix_of_an_object_is_one(value, ascii_only, indent):
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    reader = JsonPrefix()
    for place, character in enumerate(text):
        assert not reader.done, text[:place]
        assert reader.read(character) == 1, text[:place]
    assert reader.done
    assert not reader.failed
    assert JsonPrefix().read(text + text) == len(text)


@given(
    st.dictionaries(st.text(max_size=3), JSON, max_size=3), st.integers(0, 60), st.text(max_size=2)
)
def test_what_is_done_is_what_json_reads(value, place, other):
    text = json.dumps(value)
    text = text[:place] + other + text[place + 1 :]
    reader = JsonPrefix()
    size = reader.read(text)
    if reader.done:
        assert isinstance(json.loads(text[:size]), dict)
    else:
        with pytest.raises(ValueError):
            json.loads(text)
