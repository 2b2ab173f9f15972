"""Formats that describe a value are dropped from schemas, and nothing else is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from izwi.inputs.grammar import DESCRIBING_FORMATS, without_describing_formats

BYTE = {"type": "string", "format": "byte"}
PLAIN = {"type": "string"}


@pytest.mark.parametrize("name", sorted(DESCRIBING_FORMATS))
def test_describing_formats_are_dropped_from_schemas(name):
    assert without_describing_formats({"type": "string", "format": name}) == PLAIN


@pytest.mark.parametrize(
    ("nested", "expected"),
    [
        ({"properties": {"format": BYTE}}, {"properties": {"format": PLAIN}}),
        ({"$defs": {"a": {"anyOf": [BYTE]}}}, {"$defs": {"a": {"anyOf": [PLAIN]}}}),
        ({"items": BYTE, "not": BYTE}, {"items": PLAIN, "not": PLAIN}),
        ({"items": [BYTE]}, {"items": [PLAIN]}),
        ({"patternProperties": {"^f": BYTE}}, {"patternProperties": {"^f": PLAIN}}),
        ({"additionalProperties": BYTE}, {"additionalProperties": PLAIN}),
    ],
)
def test_at_any_depth(nested, expected):
    assert without_describing_formats(nested) == expected


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "format": "date"},
        {"type": "string", "format": "nonsense"},
        {"const": BYTE},
        {"enum": [BYTE]},
        {"default": BYTE, "examples": [BYTE]},
        {"properties": {"a": True}, "additionalProperties": False},
        {"format": 3},
    ],
    ids=str,
)
def test_other_formats_and_values_stay(schema):
    assert without_describing_formats(schema) == schema


JSON = st.recursive(
    st.none() | st.booleans() | st.sampled_from(["byte", "date", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["format", "properties", "items", "anyOf", "not", "const", "a"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=10,
)


@given(JSON)
def test_any_value_is_left_as_it_is_the_second_time(value):
    once = without_describing_formats(value)
    assert without_describing_formats(once) == once
