"""Check, character by character, whether a text can still become a JSON object.

Source of the grammar: RFC 8259.
"""

from __future__ import annotations

import re

_SPACE = " \t\n\r"
_HEX = "0123456789abcdefABCDEF"
_ESCAPED = '"\\/bfnrtu'
_WORDS = ("true", "false", "null")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_NUMBER_PREFIX = re.compile(r"-?((0|[1-9][0-9]*)((\.[0-9]*)?|(\.[0-9]+)?([eE][+-]?[0-9]*)))?")
_MAX_DEPTH = 256


class JsonPrefix:
    """Incremental check of one JSON object.

    Attributes:
        done: The object is complete.
        failed: The text is not the beginning of a JSON object.
    """

    def __init__(self) -> None:
        self.done = self.failed = False
        self._open: list[str] = []  # brackets that are not closed yet
        self._expects = "value"  # value, first value, key, first key, colon, next
        self._string: str | None = None  # inside a string: "key" or "value"
        self._escape = 0  # 1 after a backslash; after \u, missing hexadecimal digits + 1
        self._scalar = ""  # the number or word read so far

    def read(self, text: str) -> int:
        """Read more text; return how many of its characters belong to the object."""
        for place, character in enumerate(text):
            if self.done or self.failed or not self._accept(character):
                self.failed = self.failed or not self.done
                return place
        return len(text)

    def _accept(self, character: str) -> bool:
        if self._string is not None:
            return self._take_in_string(character)
        if self._scalar:
            if self._is_scalar_prefix(self._scalar + character):
                self._scalar += character
                return True
            if self._scalar not in _WORDS and not _NUMBER.fullmatch(self._scalar):
                return False
            self._scalar, self._expects = "", "next"
        if character in _SPACE:
            return bool(self._open)
        return self._take_sign(character)

    def _take_in_string(self, character: str) -> bool:
        if self._escape == 1:
            self._escape = 5 if character == "u" else 0
            return character in _ESCAPED
        if self._escape:
            self._escape = 0 if self._escape == 2 else self._escape - 1
            return character in _HEX
        if character == "\\":
            self._escape = 1
        elif character == '"':
            self._expects = "colon" if self._string == "key" else "next"
            self._string = None
        return character >= " "

    def _take_sign(self, character: str) -> bool:
        expects = self._expects
        if character in "}]":
            return self._close(character)
        if expects == "next":
            self._expects = "key" if self._open[-1] == "{" else "value"
            return character == ","
        if expects == "colon":
            self._expects = "value"
            return character == ":"
        if expects in ("key", "first key"):
            self._string = "key"
            return character == '"'
        if character in "{[" and len(self._open) < _MAX_DEPTH:
            self._open.append(character)
            self._expects = "first key" if character == "{" else "first value"
            return len(self._open) > 1 or character == "{"
        if not self._open:  # the outermost value must be an object
            return False
        if character == '"':
            self._string = "value"
            return True
        self._scalar = character
        return self._is_scalar_prefix(character)

    def _close(self, character: str) -> bool:
        opened = {"}": ("{", "first key"), "]": ("[", "first value")}[character]
        if not self._open or self._open.pop() != opened[0]:
            return False
        is_allowed = self._expects in ("next", opened[1])
        self._expects = "next"
        self.done = not self._open and is_allowed
        return is_allowed

    @staticmethod
    def _is_scalar_prefix(text: str) -> bool:
        return any(word.startswith(text) for word in _WORDS) or bool(_NUMBER_PREFIX.fullmatch(text))
