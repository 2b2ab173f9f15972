"""Grammars that an answer must follow: what a request contains, and whether a schema can be used.

A grammar is a text in the Lark dialect of llguidance, with JSON schemas inside (docs/adr/0023).
"""

from __future__ import annotations

import json
import re
from typing import Any

from llguidance import LLMatcher, LLParserLimits
from llguidance.gbnf_to_lark import gbnf_to_lark
from msgspec import Struct

from izwi.chat import ChatInput
from izwi.errors import InvalidRequest

MAX_SCHEMA_CHARS = 1 << 16
# Translating EBNF takes time quadratic in its rules: tens of milliseconds for this many.
MAX_EBNF_CHARS = 1 << 12
_MAX_PROBLEM_CHARS = 300
_ENDS_IN_ESCAPE = re.compile(r"(?<!\\)(?:\\\\)*\\\Z")
# Spaces as models write JSON, and nowhere else: with free white space an answer could be endless.
_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class Grammar(Struct, frozen=True):
    """A grammar of an answer's tokens.

    Attributes:
        text: Grammar in llguidance's Lark dialect.
        after: Id of the token after which it begins, that of </think>; -1 for the start.
        param: Field of the caller's request that it comes from; errors name it.
    """

    text: str
    after: int = -1
    param: str = "response_format"


def limits() -> LLParserLimits:
    """Return limits for compiling a grammar and for one step of it: tens of milliseconds."""
    return LLParserLimits(
        initial_lexer_fuel=500_000,
        step_lexer_fuel=100_000,
        step_max_items=50_000,
        max_lexer_states=50_000,
        max_grammar_size=200_000,
        verbose_errors=False,
    )


def answer_grammar(ask: ChatInput, after: int = -1) -> Grammar | None:
    """Return the grammar of an answer without calls; None if it is not constrained.

    Args:
        ask: The request.
        after: As in `Grammar`.

    Raises:
        InvalidRequest: The schema, the regex or the EBNF cannot be used.
    """
    param = ask.grammar_param
    if ask.regex:
        return Grammar(regex_grammar(ask.regex, param), after, param)
    if ask.ebnf:
        return Grammar(ebnf_grammar(ask.ebnf, param), after, param)
    if not ask.response_schema:
        return None
    rule = json_rule("answer", json.loads(ask.response_schema), param)
    return Grammar(f"start: answer\n{rule}", after, param)


def json_rule(name: str, schema: dict[str, Any], param: str) -> str:
    """Check that a JSON schema can be compiled, and return a rule for its values.

    Args:
        name: Name of the rule, in lower case.
        schema: Any schema; unsupported parts are refused.
        param: Field of the request that errors name.

    Raises:
        InvalidRequest: It is too large, not a schema, or has unsupported parts.
    """
    try:
        spelled = json.dumps(schema | {"x-guidance": _SPACING})
        if len(spelled) > MAX_SCHEMA_CHARS:
            raise InvalidRequest(
                f"a JSON schema may have at most {MAX_SCHEMA_CHARS} characters, got {len(spelled)}",
                param=param,
            )
        grammar = LLMatcher.grammar_from_json_schema(spelled)
        is_error, problems = LLMatcher.validate_grammar_with_warnings(grammar, limits=limits())
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the JSON schema cannot be read: {error}", param=param) from error
    if is_error:
        raise InvalidRequest(f"the JSON schema cannot be used: {problems[0]}", param=param)
    return f"{name}: %json {spelled}\n"


def regex_grammar(pattern: str, param: str) -> str:
    """Return a grammar whose text matches a regular expression from its beginning to its end.

    Args:
        pattern: Regular expression of Rust's regex crate: no look-around, no back-references.
        param: Field of the request that errors name.

    Raises:
        InvalidRequest: It is too large, invalid, or matches nothing.
    """
    if len(pattern) > MAX_SCHEMA_CHARS:
        raise InvalidRequest(
            f"a regex may have at most {MAX_SCHEMA_CHARS} characters, got {len(pattern)}",
            param=param,
        )
    if _ENDS_IN_ESCAPE.search(pattern):
        raise InvalidRequest("the regex ends in the middle of an escape", param=param)
    try:
        made = json.loads(LLMatcher.grammar_from_regex(pattern))
    except ValueError as error:
        raise InvalidRequest(f"the regex cannot be read: {error}", param=param) from error
    return _checked(made["grammars"][0]["lark_grammar"], "regex", param)


def ebnf_grammar(text: str, param: str) -> str:
    """Return a grammar from EBNF.

    Args:
        text: EBNF as in llama.cpp (GBNF) and xgrammar: rules `name ::= ...`, from `root`.
        param: Field of the request that errors name.

    Raises:
        InvalidRequest: It is too large, invalid, or too expensive.
    """
    if len(text) > MAX_EBNF_CHARS:
        raise InvalidRequest(
            f"an EBNF grammar may have at most {MAX_EBNF_CHARS} characters, got {len(text)}",
            param=param,
        )
    try:
        lark = gbnf_to_lark(text)
    # the translator raises plain exceptions for invalid input
    except Exception as error:
        raise InvalidRequest(f"the EBNF grammar cannot be read: {error}", param=param) from error
    return _checked(lark, "EBNF grammar", param)


def _checked(lark: str, what: str, param: str) -> str:
    try:
        grammar = LLMatcher.grammar_from_lark(lark)
        is_error, problems = LLMatcher.validate_grammar_with_warnings(grammar, limits=limits())
    except ValueError as error:
        raise InvalidRequest(f"the {what} cannot be read: {error}", param=param) from error
    if is_error:
        raise InvalidRequest(f"the {what} cannot be used: {_reason(problems[0])}", param=param)
    return lark


def _reason(problem: str) -> str:
    """Return the message of an error, without positions in the Lark text, which is ours."""
    of_regex = problem.partition("(in regex): ")[2]
    lines = (of_regex or problem).splitlines()
    marked = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return (marked or lines)[0][:_MAX_PROBLEM_CHARS]
