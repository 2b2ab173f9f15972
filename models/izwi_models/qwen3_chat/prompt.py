"""The prompt of a chat request: a conversation in the template, as token ids."""

from __future__ import annotations

from msgspec import Struct

from izwi.arrays import Int64
from izwi.request.request import EncodeInput, Request


class ChatPrompt(Struct, frozen=True, eq=False, tag=True):
    """A conversation in the template.

    Attributes:
        token_ids: (positions,) int64.
        in_thought: The prompt ends within the answer's thought.
        most_calls: Maximum number of function calls in the answer; -1 for no limit.
    """

    token_ids: Int64
    in_thought: bool
    most_calls: int = 0
    encode_inputs: tuple[EncodeInput, ...] = ()

    @property
    def num_positions(self) -> int:
        """Number of positions of the prompt."""
        return len(self.token_ids)

    @property
    def content_keys(self) -> Int64:
        """Content keys of the positions, (positions,) int64: the token ids."""
        return self.token_ids


def prompt_of(request: Request) -> ChatPrompt:
    """Return the prompt of a request of this family."""
    assert isinstance(request.prompt, ChatPrompt)
    return request.prompt
