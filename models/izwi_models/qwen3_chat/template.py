"""How a conversation becomes the ids that an answer follows: the checkpoint's own template.

The template is executed as transformers does it (`izwi.chat_template`), with the variables of
`apply_chat_template`. In the text that it makes, tokens outside the merges count as tokens, with
one exception: a control token (one flagged `special`, like <|im_end|>) that stands in a message, a
tool or a name is text, so a caller can end no turn and begin none. Tokens that are not special,
like <think>, count wherever they stand, as in transformers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from izwi.chat import ChatInput, ChatMessage, ToolChoice
from izwi.chat_template import ChatTemplate as JinjaTemplate
from izwi.checkpoint import read_json
from izwi.errors import CheckpointError, InvalidRequest
from izwi_models.qwen3.tokenizer import QwenTokenizer

THINK, END_THINK = "<think>", "</think>"
CALL, END_CALL = "<tool_call>", "</tool_call>"

_OPENS_THOUGHT = re.compile(r"assistant(\\n|\n)<think>")
# One of these, which no text has, is put into what looks like a control token while the template
# is executed.
_NONCHARACTERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]


class Thinking(Enum):
    """When a checkpoint thinks before it answers."""

    ASKED = "thinks if asked to"
    ALWAYS = "always thinks"
    NEVER = "never thinks"


@dataclass(frozen=True, slots=True)
class EncodedChat:
    """A conversation in the template.

    Attributes:
        ids: Of its tokens.
        in_thought: It ends where the answer's thought has begun.
    """

    ids: list[int]
    in_thought: bool


class ChatTemplate:
    """One checkpoint's template.

    Attributes:
        tokenizer: The checkpoint's.
        thinking: When it thinks.
    """

    def __init__(
        self, tokenizer: QwenTokenizer, source: str | None, names: Mapping[str, str] | None = None
    ):
        """Parse the template.

        Args:
            tokenizer: The checkpoint's.
            source: The template's text; None: the checkpoint has none, and takes no conversations.
            names: Tokens that templates know by name: bos_token, eos_token and so on.

        Raises:
            ValueError: It is not valid Jinja.
        """
        self.tokenizer, self._names = tokenizer, dict(names or {})
        self._template = None if source is None else JinjaTemplate(source)
        self.thinking = _thinking(source or "", tokenizer)
        self._ids, control = tokenizer.added_tokens, tokenizer.control_tokens
        self._added, self._control = _any_of(self._ids), _any_of(control)
        self._control_ids = set(control.values())

    @property
    def thought_ids(self) -> tuple[int, int] | None:
        """Ids around a thought; None where there is none."""
        if self.thinking is Thinking.NEVER:
            return None
        return self._ids[THINK], self._ids[END_THINK]

    def thinks(self, wanted: bool | None) -> bool:
        """Whether an answer begins with a thought.

        Args:
            wanted: None leaves it to the checkpoint, which does not where it need not.

        Raises:
            InvalidRequest: It cannot do as wanted.
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
            thinks: As `thinks` says.
            max_chars: Of the text.

        Raises:
            InvalidRequest: The checkpoint has no template, or the template takes no such
                conversation, or was stopped.
        """
        text, filler = self._rendered(ask, thinks, max_chars)
        return text.replace(filler, "")

    def encode(self, ask: ChatInput, *, thinks: bool, max_chars: int) -> EncodedChat:
        """Ids of a conversation and of the beginning of its answer; as `render`."""
        text, filler = self._rendered(ask, thinks, max_chars)
        ids = self.encode_text(text, filler)
        return EncodedChat(ids, self._in_thought(ids))

    def encode_text(self, text: str, filler: str = "") -> list[int]:
        """Ids of a text in which tokens outside the merges count.

        Args:
            text: The same.
            filler: Is left out of it: it stands in what is no control token.
        """
        ids: list[int] = []
        for part in self._added.split(text):
            if part in self._ids:
                ids.append(self._ids[part])
            elif part:
                ids += self.tokenizer.encode(part.replace(filler, "") if filler else part)
        return ids

    def _in_thought(self, ids: list[int]) -> bool:
        """Whether a thought is open behind the last control token, which is the template's."""
        begin, end = self.thought_ids or (None, None)
        borders = {begin, end, *self._control_ids}
        return next((index for index in reversed(ids) if index in borders), end) == begin != end

    def _rendered(self, ask: ChatInput, thinks: bool, max_chars: int) -> tuple[str, str]:
        """The text, and the character that stands in what is no control token."""
        if self._template is None:
            raise InvalidRequest(
                "the model's checkpoint has no chat template, so it cannot chat; "
                "POST /generate takes text",
                param="model",
            )
        variables = self._variables(ask)
        if self.thinking is Thinking.ASKED:
            variables["enable_thinking"] = thinks
        spelled = json.dumps(variables, ensure_ascii=False)
        filler = next((mark for mark in _NONCHARACTERS if mark not in spelled), None)
        if filler is None:
            raise InvalidRequest("a message has all of Unicode's noncharacters", param="messages")
        if self._control.search(spelled):  # JSON escapes nothing of a control token
            variables = _filled(variables, self._control, filler)
        return self._template.render(variables | self._names, max_chars), filler

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


def read_template(folder: Path, tokenizer: QwenTokenizer) -> ChatTemplate:
    """Read a checkpoint's template: chat_template.jinja, or a key of tokenizer_config.json.

    Of several templates the one called `default` is taken.

    Raises:
        CheckpointError: It is not valid Jinja.
    """
    path, config_path = folder / "chat_template.jinja", folder / "tokenizer_config.json"
    config = read_json(config_path) if config_path.is_file() else {}
    source: object = config.get("chat_template")
    if path.is_file():
        source = path.read_text(encoding="utf-8", errors="replace")
    else:
        path = config_path
    if isinstance(source, list):
        named = {entry.get("name"): entry.get("template") for entry in source if entry}
        source = named.get("default")
    if source is not None and not isinstance(source, str):
        raise CheckpointError(f"{path}: chat_template must be text")
    try:
        return ChatTemplate(tokenizer, source, _token_names(config))
    except ValueError as error:
        raise CheckpointError(f"{path}: the chat_template is {error}") from error


def _token_names(config: Mapping[str, Any]) -> dict[str, str]:
    """Tokens by the names that templates use: bos_token, eos_token, pad_token and so on."""
    named = {key: value for key, value in config.items() if key.endswith("_token")}
    contents = {
        key: value.get("content") if isinstance(value, dict) else value
        for key, value in named.items()
    }
    return {key: content for key, content in contents.items() if isinstance(content, str)}


def _thinking(source: str, tokenizer: QwenTokenizer) -> Thinking:
    if not {THINK, END_THINK} <= tokenizer.added_tokens.keys():
        return Thinking.NEVER
    if "enable_thinking" in source:
        return Thinking.ASKED
    return Thinking.ALWAYS if _OPENS_THOUGHT.search(source) else Thinking.NEVER


def _message(message: ChatMessage) -> dict[str, Any]:
    """A message as templates read it. Arguments are an object where they are one."""
    values: dict[str, Any] = {"role": str(message.role), "content": message.content}
    if message.reasoning is not None:
        values |= {"reasoning_content": message.reasoning, "thinking": message.reasoning}
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
    except (ValueError, RecursionError):  # as it was written
        return arguments
    return value


def _any_of(names: Mapping[str, int]) -> re.Pattern[str]:
    longest_first = sorted(map(re.escape, names), key=len, reverse=True)
    return re.compile(f"({'|'.join(longest_first) or '(?!)'})")


def _filled(value: Any, control: re.Pattern[str], filler: str) -> Any:
    """The same JSON, with the filler behind the first character of each control token in it."""
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
