r"""The templates of Qwen3 chat: how a conversation becomes the ids that an answer follows.

    <|im_start|>{role}\n{content}<|im_end|>\n                        for each message
    <|im_start|>assistant\n[<think>\n[\n</think>\n\n]]               for the answer

What was thought before an earlier answer is left out, but for answers after the last user's turn.
There is no system message unless the caller writes one. Control tokens go in by id; whoever types
one has typed text.

The published checkpoints have one of three templates: the first ones think or not, as they are
asked; of the later ones (2507) some always think and some never do. Which one is told by the text
of the checkpoint's own template, whose rules are followed here; the text itself is a program of
strangers and is not run. Source: `chat_template` of Qwen3-0.6B, Qwen3-4B-Instruct-2507 and
Qwen3-4B-Thinking-2507.
"""

from __future__ import annotations

import re
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from izwi.chat import ChatMessage, Role
from izwi.checkpoint import read_json
from izwi.errors import CheckpointError, InvalidRequest
from izwi_models.qwen3.tokenizer import QwenTokenizer

START, END = "<|im_start|>", "<|im_end|>"
THINK, END_THINK = "<think>", "</think>"

_OPENS_THOUGHT = re.compile(r"assistant(\\n|\n)<think>")
# A user's turn between these is the answer of a tool, so it is not what the assistant is asked.
_TOOL_ANSWER, _END_TOOL_ANSWER = "<tool_response>", "</tool_response>"


class Thinking(Enum):
    """When a checkpoint thinks before it answers."""

    ASKED = "thinks where it is asked to"
    ALWAYS = "always thinks"
    NEVER = "never thinks"


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """One checkpoint's template."""

    tokenizer: QwenTokenizer
    thinking: Thinking

    @property
    def opens_thought(self) -> bool:
        """Whether what it encodes ends within a thought."""
        return self.thinking is Thinking.ALWAYS

    @property
    def thought_ids(self) -> tuple[int, int] | None:
        """Ids around a thought; None where there is none."""
        if self.thinking is Thinking.NEVER:
            return None
        return self.tokenizer.id_of(THINK), self.tokenizer.id_of(END_THINK)

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
            raise InvalidRequest(f"before it answers this model {when}", param="enable_thinking")
        return wanted

    def encode(self, messages: Seq[ChatMessage], *, thinks: bool) -> list[int]:
        """Ids of a conversation and of the beginning of its answer.

        Args:
            messages: The turns in order, at least one.
            thinks: As `thinks` says.
        """
        last_query = _last_query(messages)
        ids: list[int] = []
        for place, message in enumerate(messages):
            if message.role is Role.ASSISTANT:
                is_last = place == len(messages) - 1
                ids += self._answer(message, asked=place > last_query, is_last=is_last)
            else:
                ids += self._ids(START, f"{message.role}\n{message.content}", END, "\n")
        if self.opens_thought:
            return ids + self._ids(START, "assistant\n", THINK, "\n")
        if self.thinking is Thinking.ASKED and not thinks:
            return ids + self._ids(START, "assistant\n", THINK, "\n\n", END_THINK, "\n\n")
        return ids + self._ids(START, "assistant\n")

    def _answer(self, message: ChatMessage, *, asked: bool, is_last: bool) -> list[int]:
        """Ids of an earlier answer; with its thought where it answers what is still asked."""
        content, reasoning = message.content, message.reasoning
        if reasoning is None:
            reasoning, content = _parted(content)
        empty_too = is_last and self.thinking is not Thinking.NEVER
        if asked and (reasoning or empty_too):
            thought, said = reasoning.strip("\n"), content.lstrip("\n")
            inside = (THINK, f"\n{thought}\n", END_THINK, f"\n\n{said}")
            return self._ids(START, "assistant\n", *inside, END, "\n")
        return self._ids(START, f"assistant\n{content}", END, "\n")

    def _ids(self, *parts: str) -> list[int]:
        """Ids of control tokens, each with the text after it."""
        ids: list[int] = []
        for control, text in zip(parts[::2], parts[1::2], strict=True):
            ids += [self.tokenizer.id_of(control), *self.tokenizer.encode(text)]
        return ids


def read_template(folder: Path, tokenizer: QwenTokenizer) -> ChatTemplate:
    """Tell which of the published templates a checkpoint has; the first one where it says nothing.

    Raises:
        CheckpointError: It has another, or its tokenizer lacks one of the control tokens.
    """
    path, config = folder / "chat_template.jinja", folder / "tokenizer_config.json"
    text: object = None
    if path.is_file():
        text = path.read_text(encoding="utf-8", errors="replace")
    elif config.is_file():
        path, text = config, read_json(config).get("chat_template")
    if text is not None and not (isinstance(text, str) and START in text):
        raise CheckpointError(f"{path}: the chat_template is not one of Qwen3's")
    template = ChatTemplate(tokenizer, _thinking(text))
    _ = tokenizer.id_of(START), tokenizer.id_of(END), template.thought_ids
    return template


def _thinking(text: str | None) -> Thinking:
    if text is None or "enable_thinking" in text:
        return Thinking.ASKED
    return Thinking.ALWAYS if _OPENS_THOUGHT.search(text) else Thinking.NEVER


def _last_query(messages: Seq[ChatMessage]) -> int:
    """Index of the last user turn; the last index if there is none."""
    for place in range(len(messages) - 1, -1, -1):
        text = messages[place].content
        is_tools = text.startswith(_TOOL_ANSWER) and text.endswith(_END_TOOL_ANSWER)
        if messages[place].role is Role.USER and not is_tools:
            return place
    return len(messages) - 1


def _parted(content: str) -> tuple[str, str]:
    """Part an answer into what was thought, if anything was, and what was said."""
    if END_THINK not in content:
        return "", content
    thought, said = content.split(END_THINK)[0], content.split(END_THINK)[-1]
    return thought.rstrip("\n").split(THINK)[-1].lstrip("\n"), said.lstrip("\n")
