"""Which grammar an answer gets, and where it begins."""

from __future__ import annotations

import json
from typing import Any

import pytest

from izwi.inputs.chat import ChatInput
from izwi.inputs.grammar import Grammar, answer_grammar

SCHEMA = json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}})


def asked(**options: Any) -> ChatInput:
    return ChatInput((), **options)


@pytest.mark.parametrize(
    "options",
    [{"regex": "[a-z]+"}, {"ebnf": 'root ::= "yes" | "no"'}, {"response_schema": SCHEMA}],
    ids=lambda options: next(iter(options)),
)
@pytest.mark.parametrize(("after", "param"), [(-1, "response_format"), (7, "guided"), (0, "ebnf")])
def test_a_grammar_begins_after_the_thoughts_and_errors_name_its_field(options, after, param):
    grammar = answer_grammar(asked(**options, grammar_param=param), after)
    assert isinstance(grammar, Grammar)
    assert (grammar.after, grammar.param) == (after, param)
    assert grammar.text == answer_grammar(asked(**options)).text


def test_the_kinds_of_grammars_differ_and_no_constraint_is_none():
    texts = {
        answer_grammar(asked(**options)).text
        for options in (
            {"regex": "[a-z]+"},
            {"ebnf": 'root ::= "yes" | "no"'},
            {"response_schema": SCHEMA},
        )
    }
    assert len(texts) == 3
    assert answer_grammar(asked(), after=7) is None
