r"""How an answer is read while it is written: what is thought, then what is said and called.

    [<think>] \n thought \n </think> \n\n said [<tool_call> call </tool_call>]

The control tokens come by id, so a thought may speak of "</think>". The line breaks around the
thought are the template's, and no part of either text.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence as Seq

from izwi.chat import AnswerText
from izwi_models.qwen3.tokenizer import QwenTokenizer
from izwi_models.qwen3_chat.tool_calls import CallReader


class ChatReader:
    """Reads one answer. Implements `izwi.chat.AnswerReader`."""

    def __init__(
        self,
        tokenizer: QwenTokenizer,
        thought_ids: tuple[int, int] | None,
        thinks: bool,
        most_calls: int = 0,
    ):
        """Begin to read.

        Args:
            tokenizer: The checkpoint's.
            thought_ids: Of <think> and </think>; None where the checkpoint has none.
            thinks: The prompt has opened the thought.
            most_calls: Of functions; 0: what looks like one is text; -1: any number.
        """
        self._tokenizer = tokenizer
        self._thought_ids = thought_ids or (-1, -1)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._thinks = self._trims = thinks
        self._breaks = ""  # at the end of what is thought so far: it may be the template's
        self._calls = CallReader(most_calls if most_calls > 0 else None) if most_calls else None
        self.num_reasoning_tokens = 0

    @property
    def num_calls(self) -> int:
        """Calls that are complete."""
        return 0 if self._calls is None else self._calls.num_calls

    @property
    def ended(self) -> bool:
        """Whether nothing that follows is read."""
        return self._calls is not None and self._calls.ended

    def spell(self, token_id: int) -> bytes:
        """Bytes of one token; control tokens have their name."""
        return self._tokenizer.spell(token_id, self._tokenizer.control_tokens)

    def read(self, token_ids: Seq[int]) -> AnswerText:
        """Return what these tokens add."""
        reasoning, content = "", ""
        begin_id, end_id = self._thought_ids
        for index in token_ids:
            thought = self._thinks
            if index == begin_id and not thought:
                content += self._flush()
                self._thinks = self._trims = thought = True
            elif index == end_id and thought:
                reasoning += self._flush()
                self._thinks, self._trims, self._breaks = False, True, ""
            elif thought:
                reasoning += self._thought(self._decoder.decode(self._tokenizer.spell(index)))
            else:
                content += self._trimmed(self._decoder.decode(self._tokenizer.spell(index)))
            self.num_reasoning_tokens += thought
        if self._calls is None:
            return AnswerText(reasoning, content)
        return AnswerText(reasoning, *self._calls.write(content))

    def close(self) -> AnswerText:
        """Return what is left: half a character reads U+FFFD."""
        rest = self._flush()
        if self._thinks:
            return AnswerText(rest, "")
        if self._calls is None:
            return AnswerText("", rest)
        content, calls = self._calls.write(rest)
        more, last = self._calls.close()
        return AnswerText("", content + more, calls + last)

    def _flush(self) -> str:
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return self._thought(text) if self._thinks else self._trimmed(text)

    def _thought(self, text: str) -> str:
        """What is certain of a thought when `text` follows."""
        text = self._breaks + self._trimmed(text)
        certain = text.rstrip("\n")
        self._breaks = text[len(certain) :]
        return certain

    def _trimmed(self, text: str) -> str:
        if self._trims:
            text = text.lstrip("\n")
            self._trims = not text
        return text
