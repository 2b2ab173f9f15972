"""Grammars that an answer follows: what a request carries, and whether a schema can be used.

A grammar is a text in the Lark dialect of llguidance, with JSON schemas inside (docs/adr/0023).
"""

from __future__ import annotations

import json
from typing import Any

from llguidance import LLMatcher, LLParserLimits
from msgspec import Struct

from izwi.errors import InvalidRequest

MAX_SCHEMA_CHARS = 1 << 16
# Spaces as models write JSON, and nowhere else: with free white space an answer need never end.
_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class Grammar(Struct, frozen=True):
    """What the tokens of an answer must follow.

    Attributes:
        text: In Lark, as llguidance reads it.
        after: Id of the token behind which it begins, that of </think>; -1: at once.
    """

    text: str
    after: int = -1


def limits() -> LLParserLimits:
    """Return what compiling a grammar, and a step of it, may take: tens of milliseconds."""
    return LLParserLimits(
        initial_lexer_fuel=500_000,
        step_lexer_fuel=100_000,
        step_max_items=50_000,
        max_lexer_states=50_000,
        max_grammar_size=200_000,
        verbose_errors=False,
    )


def json_rule(name: str, schema: dict[str, Any], param: str) -> str:
    """Return a rule that a JSON schema's values follow, after a check that it can be compiled.

    Args:
        name: Of the rule: small letters.
        schema: Any; what llguidance does not support is refused.
        param: Field of the request that errors name.

    Raises:
        InvalidRequest: It is too large or no schema, or has what is not supported.
    """
    try:
        spelled = json.dumps(schema | {"x-guidance": _SPACING})
        if len(spelled) > MAX_SCHEMA_CHARS:
            raise InvalidRequest(
                f"a JSON schema may have {MAX_SCHEMA_CHARS} characters, got {len(spelled)}",
                param=param,
            )
        grammar = LLMatcher.grammar_from_json_schema(spelled)
        is_error, problems = LLMatcher.validate_grammar_with_warnings(grammar, limits=limits())
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the JSON schema cannot be read: {error}", param=param) from error
    if is_error:
        raise InvalidRequest(f"the JSON schema cannot be used: {problems[0]}", param=param)
    return f"{name}: %json {spelled}\n"
