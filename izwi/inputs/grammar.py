"""Grammars that an answer must follow: what a request contains, and how it is compiled.

A grammar is a text in the Lark dialect of llguidance, with JSON schemas inside (docs/adr/0023). To
build the text takes milliseconds. To compile it may take hours and all of the memory, because
llguidance intersects regexes and multiplies alternatives without a limit; so a text from outside is
compiled in a limited process first (`izwi.sandbox.grammar_check`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from llguidance import LLMatcher, LLParserLimits
from llguidance.gbnf_to_lark import gbnf_to_lark
from msgspec import Struct

from izwi.errors import InvalidRequest
from izwi.inputs.chat import ChatInput

MAX_SCHEMA_CHARS = 1 << 16
# Translating EBNF takes time quadratic in its rules: tens of milliseconds for this many.
MAX_EBNF_CHARS = 1 << 12
_MAX_PROBLEM_CHARS = 300
_ENDS_IN_ESCAPE = re.compile(r"(?<!\\)(?:\\\\)*\\\Z")
# Where llguidance found a problem in the Lark text, which the caller has not written.
_PLACE = re.compile(r"^at \d+\(\d+\): (failed to compile JSON schema: )?")
# Spaces as models write JSON, and nowhere else: with free white space an answer could be endless.
_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
# llguidance's name for a grammar that no token can continue.
_NOTHING_FOLLOWS = "NoExtensionBias"
NO_ANSWER = "the schema or grammar allows no answer"


class Grammar(Struct, frozen=True):
    """A grammar of an answer's tokens.

    Attributes:
        text: Grammar in llguidance's Lark dialect.
        after: Id of the token after which it begins, that of </think>; -1 for the start.
        param: Field of the caller's request that it comes from; errors name it.
        source: What the caller has written there, for errors.
        is_checked: Whether it is known to compile within `izwi.sandbox.grammar_check`'s limits.
        is_slow: Whether that took long, so that others are not to wait for it.
    """

    text: str
    after: int = -1
    param: str = "response_format"
    source: str = "JSON schema"
    is_checked: bool = False
    is_slow: bool = False


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


def compile_grammar(tokenizer: Any, text: str) -> Any:
    """Compile a grammar; return its matcher, which may have failed.

    Args:
        tokenizer: An `llguidance.LLTokenizer`.
        text: As in `Grammar`.
    """
    lark = LLMatcher.grammar_from_lark(text)
    return LLMatcher(tokenizer, lark, log_level=0, limits=limits())


def explain(error: str, source: str) -> str:
    """Return the message for a caller whose grammar has failed.

    Args:
        error: A matcher's error.
        source: As in `Grammar`.
    """
    first = error.partition("\n")[0]
    if first == _NOTHING_FOLLOWS:
        return NO_ANSWER
    if "too many" in first.lower() or "too big" in first:
        return f"the {source} is too expensive to follow: {first[:_MAX_PROBLEM_CHARS]}"
    return f"the {source} cannot be used: {_reason(error)}"


def answer_grammar(ask: ChatInput, after: int = -1) -> Grammar | None:
    """Return the grammar of an answer without calls; None if it is not constrained.

    It is not compiled, so it may still turn out to be of no use.

    Args:
        ask: The request.
        after: As in `Grammar`.

    Raises:
        InvalidRequest: The schema, the regex or the EBNF cannot be read, or is too long.
    """
    param = ask.grammar_param
    if ask.regex:
        return Grammar(regex_grammar(ask.regex, param), after, param, "regex")
    if ask.ebnf:
        return Grammar(ebnf_grammar(ask.ebnf, param), after, param, "EBNF grammar")
    if not ask.response_schema:
        return None
    rule = json_rule("answer", json.loads(ask.response_schema), param)
    return Grammar(f"start: answer\n{rule}", after, param)


def json_rule(name: str, schema: dict[str, Any], param: str) -> str:
    """Return a rule for the values of a JSON schema.

    Args:
        name: Name of the rule, in lower case.
        schema: Any schema; it is not compiled.
        param: Field of the request that errors name.

    Raises:
        InvalidRequest: It is too large, or nested too deeply.
    """
    try:
        spelled = json.dumps(without_describing_formats(schema) | {"x-guidance": _SPACING})
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the JSON schema cannot be read: {error}", param=param) from error
    if len(spelled) > MAX_SCHEMA_CHARS:
        raise InvalidRequest(
            f"a JSON schema may have at most {MAX_SCHEMA_CHARS} characters, got {len(spelled)}",
            param=param,
        )
    return f"{name}: %json {spelled}\n"


def regex_grammar(pattern: str, param: str) -> str:
    """Return a grammar whose text matches a regular expression from its beginning to its end.

    Args:
        pattern: Regular expression of Rust's regex crate: no look-around, no back-references.
        param: Field of the request that errors name.

    Raises:
        InvalidRequest: It is too large, or no text.
    """
    if len(pattern) > MAX_SCHEMA_CHARS:
        raise InvalidRequest(
            f"a regex may have at most {MAX_SCHEMA_CHARS} characters, got {len(pattern)}",
            param=param,
        )
    if _ENDS_IN_ESCAPE.search(pattern):
        raise InvalidRequest("the regex ends in the middle of an escape", param=param)
    try:
        made = json.loads(LLMatcher.grammar_from_regex(pattern))  # quotes it
    except ValueError as error:
        raise InvalidRequest(f"the regex cannot be read: {error}", param=param) from error
    lark: str = made["grammars"][0]["lark_grammar"]
    return lark


def ebnf_grammar(text: str, param: str) -> str:
    """Return a grammar from EBNF.

    Args:
        text: EBNF as in llama.cpp (GBNF) and xgrammar: rules `name ::= ...`, from `root`.
        param: Field of the request that errors name.

    Raises:
        InvalidRequest: It is too large or invalid.
    """
    if len(text) > MAX_EBNF_CHARS:
        raise InvalidRequest(
            f"an EBNF grammar may have at most {MAX_EBNF_CHARS} characters, got {len(text)}",
            param=param,
        )
    try:
        return gbnf_to_lark(text)
    # the translator raises plain exceptions for invalid input
    except Exception as error:
        raise InvalidRequest(f"the EBNF grammar cannot be read: {error}", param=param) from error


def _reason(problem: str) -> str:
    """Return the message of an error, without positions in the Lark text, which is ours."""
    of_regex = problem.partition("(in regex): ")[2]
    lines = (of_regex or problem).splitlines() or [""]
    marked = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return _PLACE.sub("", (marked or lines)[0])[:_MAX_PROBLEM_CHARS]


# Formats that describe a value to people and do not restrict its text: those of OpenAPI, of
# pydantic's types (Path, SecretStr, bytes, Pattern), and JSON Schema's regex.
DESCRIBING_FORMATS = frozenset(
    (
        *("byte", "binary", "password", "int32", "int64", "float", "double", "decimal"),
        *("path", "file-path", "directory-path", "regex", "base64url", "json-string"),
    )
)
_ONE = frozenset(
    (
        *("items", "additionalItems", "additionalProperties", "unevaluatedItems"),
        *("unevaluatedProperties", "contains", "propertyNames", "not", "if", "then", "else"),
        "contentSchema",
    )
)
_SEVERAL = frozenset(("allOf", "anyOf", "oneOf", "prefixItems", "items"))
_NAMED = frozenset(("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"))


def without_describing_formats(schema: Any) -> Any:
    """Return a schema without those formats, at any depth; values and names stay as they are.

    Raises:
        RecursionError: It is nested too deeply.
    """
    if not isinstance(schema, dict):
        return schema
    made = {}
    for key, value in schema.items():
        if key == "format" and isinstance(value, str) and value in DESCRIBING_FORMATS:
            continue
        made[key] = _inside(key, value, without_describing_formats)
    return made


def _inside(key: str, value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a keyword's value with its schemas changed."""
    if key in _NAMED and isinstance(value, dict):
        return {name: change(schema) for name, schema in value.items()}
    if key in _SEVERAL and isinstance(value, list):
        return [change(schema) for schema in value]
    return change(value) if key in _ONE else value
