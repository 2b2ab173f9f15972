"""Turn a conversation into token ids by the checkpoint's own chat template.

The template is executed as in transformers (`izwi.sandbox.chat_template`), with the variables of
`apply_chat_template`. Added tokens in the rendered text are encoded as tokens, with one exception:
a control token (one flagged `special`, like <|im_end|>) in a message, a tool or a name is encoded
as text, so that a caller can neither end nor begin a turn. Added tokens that are not special, like
<think>, are always tokens, as in transformers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from izwi.checkpoints.folder import read_json
from izwi.errors import CheckpointError, InvalidRequest
from izwi.inputs.chat import ChatInput, ChatMessage, ToolChoice
from izwi.inputs.images import parts_of
from izwi.sandbox.chat_template import SandboxedTemplate as JinjaTemplate
from izwi_models.qwen3.tokenizer import TextTokenizer

THINK, END_THINK = "<think>", "</think>"
CALL, END_CALL = "<tool_call>", "</tool_call>"

_OPENS_THOUGHT = re.compile(r"assistant(\\n|\n)<think>")
# While the template is executed, one of these splits control tokens in the caller's text. The
# one that is used occurs neither in that text nor in the template.
_NONCHARACTERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]


class Thinking(Enum):
    """Whether a checkpoint thinks before it answers."""

    ASKED = "thinks if asked to"
    ALWAYS = "always thinks"
    NEVER = "never thinks"


@dataclass(frozen=True, slots=True)
class EncodedChat:
    """A conversation in the template.

    Attributes:
        ids: Its token ids.
        in_thought: Whether it ends inside the answer's thought.
    """

    ids: list[int]
    in_thought: bool


class ChatTemplate:
    """One checkpoint's template.

    Attributes:
        tokenizer: The checkpoint's tokenizer.
        thinking: Whether the checkpoint thinks.
    """

    def __init__(
        self,
        tokenizer: TextTokenizer,
        source: str | None,
        names: Mapping[str, str] | None = None,
        with_tools: str | None = None,
    ):
        """Parse the template.

        Args:
            tokenizer: The checkpoint's tokenizer.
            source: The template's text; None if the checkpoint has none and so cannot chat.
            names: Tokens that templates refer to by name: bos_token, eos_token and so on.
            with_tools: The text of another template, for conversations with tools.

        Raises:
            ValueError: The template is not valid Jinja.
        """
        self.tokenizer, self._names = tokenizer, dict(names or {})
        self._template = None if source is None else JinjaTemplate(source)
        self._with_tools = self._template if with_tools is None else JinjaTemplate(with_tools)
        self.thinking = _thinking(source or "", tokenizer)
        self._ids, control = tokenizer.added_tokens, tokenizer.control_tokens
        self._added, self._control = _any_of(self._ids), _any_of(control)
        self._control_ids = set(control.values())

    @property
    def thought_ids(self) -> tuple[int, int] | None:
        """Ids that begin and end a thought; None if the checkpoint never thinks."""
        if self.thinking is Thinking.NEVER:
            return None
        return self._ids[THINK], self._ids[END_THINK]

    def thinks(self, wanted: bool | None) -> bool:
        """Return whether an answer begins with a thought.

        Args:
            wanted: What the caller asked for; None for no thought unless the checkpoint always
                thinks.

        Raises:
            InvalidRequest: The checkpoint does not support `wanted`.
        """
        can = {Thinking.ASKED: (False, True), Thinking.ALWAYS: (True,), Thinking.NEVER: (False,)}
        choices = can[self.thinking]
        if wanted is None:
            return choices[0]
        if wanted not in choices:
            when = self.thinking.value
            raise InvalidRequest(f"this model {when} before it answers", param="enable_thinking")
        return wanted

    def render(self, ask: ChatInput, *, thinks: bool, max_chars: int) -> str:
        """Return the text of a conversation and of the beginning of its answer.

        Args:
            ask: The conversation and the tools.
            thinks: Whether the answer begins with a thought.
            max_chars: Maximum length of the text.

        Raises:
            InvalidRequest: The checkpoint has no template, or the template rejected the
                conversation or exceeded a limit.
        """
        text, filler = self._rendered(ask, thinks, max_chars)
        return text.replace(filler, "") if filler else text

    def encode(self, ask: ChatInput, *, thinks: bool, max_chars: int) -> EncodedChat:
        """Return the ids of a conversation and of the beginning of its answer; see `render`."""
        text, filler = self._rendered(ask, thinks, max_chars)
        ids = self.encode_text(text, filler)
        return EncodedChat(ids, self._in_thought(ids))

    def encode_text(self, text: str, filler: str = "") -> list[int]:
        """Return the ids of a text whose added tokens are encoded as tokens.

        Args:
            text: The text.
            filler: Character that splits control tokens that are only text; removed. Empty if there
                are none.
        """
        ids: list[int] = []
        for part in self._added.split(text):
            if part in self._ids:
                ids.append(self._ids[part])
            elif part:
                ids += self.tokenizer.encode(part.replace(filler, "") if filler else part)
        return ids

    def _in_thought(self, ids: list[int]) -> bool:
        """Return whether a thought is open at the end, after the template's last control token."""
        begin, end = self.thought_ids or (None, None)
        borders = {begin, end, *self._control_ids}
        return next((index for index in reversed(ids) if index in borders), end) == begin != end

    def _rendered(self, ask: ChatInput, thinks: bool, max_chars: int) -> tuple[str, str]:
        """Return the text, and the character that splits control tokens that are only text.

        It is empty if there are none.
        """
        try:
            return self._run(self._variables(ask), thinks, max_chars)
        except RecursionError as error:
            raise InvalidRequest(
                "a tool or a function call is nested too deeply", param="messages"
            ) from error

    def _run(self, variables: dict[str, Any], thinks: bool, max_chars: int) -> tuple[str, str]:
        template = self._with_tools if variables["tools"] else self._template
        if template is None:
            raise InvalidRequest(
                "the model's checkpoint has no chat template, so it cannot chat; "
                "POST /generate takes text",
                param="model",
            )
        if self.thinking is Thinking.ASKED:
            variables["enable_thinking"] = thinks
        spelled = json.dumps(variables, ensure_ascii=False)
        filler = ""
        if self._control.search(spelled):  # JSON does not escape any part of a control token
            filler = _unused_mark(spelled + template.source)
            variables = _filled(variables, self._control, filler)
        return template.render(variables | self._names, max_chars), filler

    def _variables(self, ask: ChatInput) -> dict[str, Any]:
        tools = (
            json.loads(ask.tools) if ask.tools and ask.tool_choice is not ToolChoice.NONE else []
        )
        return {
            "messages": [_message(message) for message in ask.messages],
            "tools": tools or None,
            "documents": None,
            "add_generation_prompt": True,
        }


def read_template(
    folder: Path, tokenizer: TextTokenizer, kind: type[ChatTemplate] = ChatTemplate
) -> ChatTemplate:
    """Read a checkpoint's template: chat_template.jinja, or a key of tokenizer_config.json.

    Of several templates the one named `tool_use` is for conversations with tools, and the one named
    `default` for others, as in transformers.

    Args:
        folder: The checkpoint.
        tokenizer: Its tokenizer.
        kind: How the template's text is encoded.

    Raises:
        CheckpointError: The template is not valid Jinja.
    """
    path, config_path = folder / "chat_template.jinja", folder / "tokenizer_config.json"
    config = read_json(config_path) if config_path.is_file() else {}
    source: object = config.get("chat_template")
    if path.is_file():
        source = path.read_text(encoding="utf-8", errors="replace")
    else:
        path = config_path
    with_tools: object = None
    if isinstance(source, list):
        if not all(isinstance(entry, dict) and _is_named(entry) for entry in source):
            raise CheckpointError(f"{path}: chat_template must be text, or a list of named texts")
        named = {entry["name"]: entry.get("template") for entry in source}
        source, with_tools = named.get("default"), named.get("tool_use")
    more = folder / "additional_chat_templates" / "tool_use.jinja"
    if more.is_file():
        with_tools = more.read_text(encoding="utf-8", errors="replace")
    if not isinstance(source, str | None) or not isinstance(with_tools, str | None):
        raise CheckpointError(f"{path}: chat_template must be text")
    try:
        return kind(tokenizer, source, _token_names(config), with_tools)
    except ValueError as error:
        raise CheckpointError(f"{path}: the chat_template is {error}") from error


def _is_named(entry: dict[str, object]) -> bool:
    return isinstance(entry.get("name"), str)


def _token_names(config: Mapping[str, Any]) -> dict[str, str]:
    """Return tokens by the names that templates use: bos_token, eos_token, pad_token, ..."""
    named = {key: value for key, value in config.items() if key.endswith("_token")}
    contents = {
        key: value.get("content") if isinstance(value, dict) else value
        for key, value in named.items()
    }
    return {key: content for key, content in contents.items() if isinstance(content, str)}


def _unused_mark(text: str) -> str:
    """Return a noncharacter that occurs in a text neither as itself nor as an escape."""
    known = text.lower()
    for mark in _NONCHARACTERS:
        if mark not in known and f"{ord(mark):04x}" not in known:
            return mark
    raise InvalidRequest("a message has all of Unicode's noncharacters", param="messages")


def _thinking(source: str, tokenizer: TextTokenizer) -> Thinking:
    if not {THINK, END_THINK} <= tokenizer.added_tokens.keys():
        return Thinking.NEVER
    if "enable_thinking" in source:
        return Thinking.ASKED
    return Thinking.ALWAYS if _OPENS_THOUGHT.search(source) else Thinking.NEVER


def _message(message: ChatMessage) -> dict[str, Any]:
    """Return a message as templates expect it; arguments are parsed if they are a JSON object."""
    content: Any = message.content
    if message.images:
        content = [
            {"type": "text", "text": part} if isinstance(part, str) else {"type": "image"}
            for part in parts_of(message.content, message.images)
        ]
    values: dict[str, Any] = {"role": str(message.role), "content": content}
    if message.reasoning is not None:  # under both names, and in transformers' order
        values = {"thinking": message.reasoning, **values, "reasoning_content": message.reasoning}
    if message.tool_calls:
        values["tool_calls"] = [
            {
                "type": "function",
                "id": call.call_id,
                "function": {"name": call.name, "arguments": _object(call.arguments)},
            }
            for call in message.tool_calls
        ]
    if message.call_id is not None:
        values["tool_call_id"] = message.call_id
    if message.name is not None:
        values["name"] = message.name
    return values


def _object(arguments: str) -> object:
    try:
        value = json.loads(arguments)
        json.dumps(value, ensure_ascii=False).encode()  # an escape may name half a surrogate pair
    except (ValueError, RecursionError):  # pass the text unchanged
        return arguments
    return value


def _any_of(names: Mapping[str, int]) -> re.Pattern[str]:
    longest_first = sorted(map(re.escape, names), key=len, reverse=True)
    return re.compile(f"({'|'.join(longest_first) or '(?!)'})")


def _filled(value: Any, control: re.Pattern[str], filler: str) -> Any:
    """Return the JSON value with the filler after the first character of each control token."""
    if isinstance(value, str):
        return control.sub(lambda found: found[0][0] + filler + found[0][1:], value)
    if isinstance(value, list):
        return [_filled(item, control, filler) for item in value]
    if isinstance(value, dict):
        return {
            _filled(key, control, filler): _filled(item, control, filler)
            for key, item in value.items()
        }
    return value
