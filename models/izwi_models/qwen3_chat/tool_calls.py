r"""Parse function calls in a Qwen3 answer while it is generated.

    text
    <tool_call>
    {"name": "f", "arguments": {...}}
    </tool_call>
    <tool_call> ...

Once the name is known, arguments are streamed as they are generated. Incomplete or malformed calls
lose no text:

* The head cannot be parsed (no name, another tag, not JSON): the whole call is content, tags
  included. Tags with nothing between them are no content.
* The arguments stop being JSON: the JSON before belongs to an incomplete call, the rest is content.
* The answer ends inside the arguments: they belong to an incomplete call.

Line breaks before and between calls belong to the template, not to the content.
"""

from __future__ import annotations

import json
import re
from enum import Enum

from izwi.inputs.chat import CallText
from izwi_models.qwen3_chat.json_prefix import JsonPrefix
from izwi_models.qwen3_chat.template import CALL, END_CALL

_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*(?=\{)')


class _Place(Enum):
    TEXT = "what is said"
    CALL = "a call whose head is not complete, or that is read when it is"
    ARGUMENTS = "arguments that are passed on"
    TAIL = "behind the arguments"


class CallReader:
    """Separator of calls and text; the result does not depend on how the input is cut.

    Attributes:
        num_calls: Number of complete calls, whose arguments are valid JSON.
        ended: The maximum number of calls is complete; further text is ignored.
    """

    def __init__(self, most_calls: int | None):
        """Start an empty answer.

        Args:
            most_calls: Maximum number of calls; None for no limit.
        """
        self.num_calls = 0
        self.ended = False
        self._most_calls = most_calls
        self._place = _Place.TEXT
        self._pending = ""  # received, but not parsed yet
        self._searched = 0  # offset in it before which no end tag begins
        self._trims = False  # the next line breaks are the template's
        self._num_begun = 0
        self._arguments = JsonPrefix()
        self._content: list[str] = []
        self._calls: list[CallText] = []

    def write(self, text: str) -> tuple[str, tuple[CallText, ...]]:
        """Add text; return the new content and the new parts of calls."""
        self._pending = "" if self.ended else self._pending + text
        while not self.ended and self._advance():
            pass
        return self._taken()

    def close(self) -> tuple[str, tuple[CallText, ...]]:
        """Return the rest at the end of the answer, as `write` does."""
        if not self.ended:
            if self._place is _Place.TEXT:
                self._content.append(self._pending)
            elif self._place is _Place.CALL and not self._whole_call(self._pending):
                self._say_call(self._pending)
        self._pending = ""
        return self._taken()

    def _taken(self) -> tuple[str, tuple[CallText, ...]]:
        taken = "".join(self._content), tuple(self._calls)
        self._content, self._calls = [], []
        return taken

    def _advance(self) -> bool:
        """Parse a part of the pending text; False if more text is needed first."""
        if self._place is _Place.TEXT:
            return self._read_text()
        if self._place is _Place.CALL:
            return self._read_call()
        if self._place is _Place.ARGUMENTS:
            return self._read_arguments()
        return self._read_tail()

    def _read_text(self) -> bool:
        text = self._pending.lstrip("\n") if self._trims else self._pending
        before, tag, after = text.partition(CALL)
        if tag:
            self._say(before.rstrip("\n"))
            self._enter(_Place.CALL, after)
            return True
        # the text may end with a part of a tag; line breaks before a tag are the template's
        size = _num_begun(text, CALL)
        said = text[: len(text) - size].rstrip("\n")
        self._pending = text[len(said) :]
        self._say(said)
        return False

    def _say(self, text: str) -> None:
        if text:
            self._content.append(text)
            self._trims = False

    def _say_call(self, inside: str, tag: str = "") -> None:
        """Add a call that is none to the content, unless there is nothing in it."""
        if inside.strip():
            self._say(CALL + inside + tag)

    def _read_call(self) -> bool:
        end, nested = (self._pending.find(tag, self._searched) for tag in (END_CALL, CALL))
        head = _HEAD.match(self._pending)
        name = _string(head[1]) if head else None
        # a tag inside the head ends it; otherwise the result would depend on how the text is cut
        if head and name and not any(0 <= tag < head.end() for tag in (end, nested)):
            self._start_call(name)
            self._arguments = JsonPrefix()
            self._enter(_Place.ARGUMENTS, self._pending[head.end() :])
            return True
        if nested >= 0 and (end < 0 or nested < end):
            self._say_call(self._pending[:nested])
            self._enter(_Place.CALL, self._pending[nested + len(CALL) :])
            return True
        if end < 0:
            self._searched = max(0, len(self._pending) - len(END_CALL))
            return False
        inside, rest = self._pending[:end], self._pending[end + len(END_CALL) :]
        if not self._whole_call(inside):
            self._say_call(inside, END_CALL)
        self._enter(_Place.TEXT, rest)
        return True

    def _whole_call(self, text: str) -> bool:
        """Parse a complete call; False if `text` is not one."""
        try:
            call = json.loads(text)
            arguments = call.get("arguments", {})
            if isinstance(arguments, str):  # JSON in JSON
                arguments = json.loads(arguments)
        except (AttributeError, ValueError, RecursionError):
            return False
        name = call.get("name")
        if not (isinstance(name, str) and name and isinstance(arguments, dict)):
            return False
        self._start_call(name)
        self._grow(json.dumps(arguments, ensure_ascii=False))
        self._complete()
        return True

    def _read_arguments(self) -> bool:
        size = self._arguments.read(self._pending)
        self._grow(self._pending[:size])
        rest = self._pending[size:]
        if self._arguments.done:
            self._complete()
            self._enter(_Place.TAIL, rest)
            return True
        if self._arguments.failed:
            self._enter(_Place.TEXT, rest)
            return True
        self._pending = ""
        return False

    def _read_tail(self) -> bool:
        """Skip text after the arguments, up to the end tag or the next call."""
        end, nested = self._pending.find(END_CALL), self._pending.find(CALL)
        if nested >= 0 and (end < 0 or nested < end):
            self._enter(_Place.TEXT, self._pending[nested:])
            return True
        if end < 0:
            self._pending = self._pending[-len(END_CALL) :]
            return False
        self._enter(_Place.TEXT, self._pending[end + len(END_CALL) :])
        return True

    def _enter(self, place: _Place, pending: str) -> None:
        self._place, self._pending, self._searched = place, pending, 0

    def _start_call(self, name: str) -> None:
        self._calls.append(CallText(self._num_begun, name))
        self._num_begun += 1

    def _grow(self, arguments: str) -> None:
        if arguments:
            self._calls.append(CallText(self._num_begun - 1, "", arguments))

    def _complete(self) -> None:
        self.num_calls += 1
        self._trims = True
        self.ended = self.num_calls == self._most_calls


def _string(spelled: str) -> str | None:
    try:
        text = json.loads(spelled)
    except ValueError:
        return None
    return str(text)


def _num_begun(text: str, tag: str) -> int:
    """Return how many characters at the end of `text` are the beginning of `tag`."""
    most = min(len(text), len(tag) - 1)
    return next((n for n in range(most, 0, -1) if tag.startswith(text[-n:])), 0)
