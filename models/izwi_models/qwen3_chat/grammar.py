r"""Build the grammar of an answer: a JSON schema, Qwen3's function calls, or either.

    <tool_call>\n{"name": "f", "arguments": ...}\n</tool_call>

The continuation of a plain text may follow a regular expression or EBNF instead. A thought before
the answer is not constrained.
"""

from __future__ import annotations

import json
from typing import Any

from izwi.errors import InvalidRequest
from izwi.inputs.chat import ChatInput, ToolChoice
from izwi.inputs.grammar import Grammar, answer_grammar, json_rule
from izwi_models.qwen3.tokenizer import TextTokenizer
from izwi_models.qwen3_chat.template import CALL, END_CALL


def chat_grammar(ask: ChatInput, tokenizer: TextTokenizer, after: int) -> Grammar | None:
    """Return the grammar of an answer; None if the answer is not constrained.

    Args:
        ask: The request.
        tokenizer: The checkpoint's tokenizer.
        after: As in `Grammar`.

    Raises:
        InvalidRequest: A schema is too large, or the checkpoint has no tokens for calls.
    """
    tools = json.loads(ask.tools) if ask.tools else []
    if ask.tool_name is not None:
        tools = [tool for tool in tools if tool["function"]["name"] == ask.tool_name]
    if ask.tool_choice is ToolChoice.REQUIRED:
        return Grammar(f"start: calls\n{_calls(tools, ask, tokenizer)}", after, "tools")
    if not tools or not ask.response_schema or ask.tool_choice is not ToolChoice.AUTO:
        return answer_grammar(ask, after)
    rule = json_rule("answer", json.loads(ask.response_schema), ask.grammar_param)
    calls = _calls(tools, ask, tokenizer)
    return Grammar(f"start: answer | calls\n{rule}{calls}", after, ask.grammar_param)


def _calls(tools: list[Any], ask: ChatInput, tokenizer: TextTokenizer) -> str:
    """Return the rules of one call, or of several."""
    added = tokenizer.added_tokens
    if CALL not in added or END_CALL not in added:
        raise InvalidRequest("this model's tokenizer has no tokens for calls", param="tools")
    several = ask.parallel_tool_calls and ask.tool_name is None
    functions = " | ".join(f"function{place}" for place in range(len(tools)))
    rules = [
        'calls: call ("\\n" call)*\n' if several else "calls: call\n",
        f'call: <[{added[CALL]}]> "\\n" ({functions}) "\\n" <[{added[END_CALL]}]>\n',
    ]
    for place, tool in enumerate(tools):
        function = tool["function"]
        head = f'{{"name": {json.dumps(function["name"])}, "arguments": '
        rules.append(f'function{place}: {json.dumps(head)} arguments{place} "}}"\n')
        schema = {**(function.get("parameters") or {}), "type": "object"}
        rules.append(json_rule(f"arguments{place}", schema, "tools"))
    return "".join(rules)
