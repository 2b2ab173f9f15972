r"""Parse an answer while it is generated: the thought, then content and function calls.

    [<think>] \n thought \n </think> \n\n content [<tool_call> call </tool_call>]

Control tokens are recognized by id, so a thought may contain the text "</think>". The line breaks
around the thought belong to the template and to neither text.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence as Seq

from izwi.inputs.chat import AnswerText
from izwi_models.qwen3.tokenizer import TextTokenizer
from izwi_models.qwen3_chat.tool_calls import CallReader


class ChatReader:
    """Parser of one answer. Implements `izwi.inputs.chat.AnswerReader`."""

    def __init__(
        self,
        tokenizer: TextTokenizer,
        thought_ids: tuple[int, int] | None,
        thinks: bool,
        most_calls: int = 0,
    ):
        """Start an empty answer.

        Args:
            tokenizer: The checkpoint's tokenizer.
            thought_ids: Ids of <think> and </think>; None if the checkpoint has none.
            thinks: Whether the prompt ends inside the thought.
            most_calls: Maximum number of function calls; 0 reads calls as text, -1 has no limit.
        """
        self._tokenizer = tokenizer
        self._thought_ids = thought_ids or (-1, -1)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._thinks = self._trims = thinks
        self._breaks = ""  # line breaks at the end of the thought so far: maybe the template's
        self._calls = CallReader(most_calls if most_calls > 0 else None) if most_calls else None
        self.num_reasoning_tokens = 0

    @property
    def num_calls(self) -> int:
        """Number of complete calls."""
        return 0 if self._calls is None else self._calls.num_calls

    @property
    def ended(self) -> bool:
        """Whether the answer is over: text after it is ignored."""
        return self._calls is not None and self._calls.ended

    def spell(self, token_id: int) -> bytes:
        """Return the bytes of one token; control tokens are spelled by name."""
        return self._tokenizer.spell(token_id, self._tokenizer.control_tokens)

    def read(self, token_ids: Seq[int]) -> AnswerText:
        """Return the text that these tokens add."""
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
        """Return the rest of the text; an incomplete character becomes U+FFFD."""
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
        """Add `text` to the thought; return all but line breaks that may be the template's."""
        text = self._breaks + self._trimmed(text)
        certain = text.rstrip("\n")
        self._breaks = text[len(certain) :]
        return certain

    def _trimmed(self, text: str) -> str:
        if self._trims:
            text = text.lstrip("\n")
            self._trims = not text
        return text
