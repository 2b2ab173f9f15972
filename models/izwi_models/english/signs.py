"""Special characters: HTML entities, powers, letters of other alphabets."""

from __future__ import annotations

import html
import re
from re import Match

# Letters that Unicode does not decompose into a base letter and an accent.
_LETTERS = str.maketrans(
    {
        "ß": "ss",
        "ẞ": "SS",
        "æ": "ae",
        "Æ": "Ae",
        "œ": "oe",
        "Œ": "Oe",
        "ø": "o",
        "Ø": "O",
        "ł": "l",
        "Ł": "L",
        "đ": "d",
        "Đ": "D",
        "ð": "th",
        "þ": "th",
        "ı": "i",
        "≠": " is not equal to ",  # normalization removes its stroke
        "\u00b5": "u",  # the sign
        "\u03bc": "u",  # the letter
        "\u2126": "ohm",  # the sign
        "\u03a9": "ohm",  # the letter
    }
)
_ENTITY = re.compile(r"&(?:amp|lt|gt|quot|apos|nbsp|#39|#x27);")
_MIXED = re.compile(r"(?<=\d)(?=[¼½¾⅐-⅞])")
_RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻"
# "20 m²" is an area and "m/s²" a unit; neither is a power
_POWER = re.compile(rf"(?<![\d/])(?<!\d )(?<!\w)([A-Za-z]|\d+)([{_RAISED}]+)")
_CARET = re.compile(r"(?<=[A-Za-z\d])\^(-?\d+)")
_NAMED_POWERS = {"2": " squared", "3": " cubed"}
_HEX = re.compile(r"\b0x([\dA-Fa-f]{1,16})\b|#(?=\w*\d)([\dA-Fa-f]{6})\b")
_EXPONENT = re.compile(r"(?<=\d)[eE]-(?=\d)")
_EMOTICON = re.compile(r"(?<!\S)[:;=]-?[()DPp|](?=[\s.,!?]|$)")
_BACKSLASH = re.compile(r"(?<=[\w:])\\(?=\w)")
_OPERATORS = {"!=": " is not equal to ", "&&": " and ", "||": " or ", "==": " equals "}
_TIMES = re.compile(r"(?<=\d) ?\* ?(?=\d)")
_CAMEL = re.compile(r"(?<=[a-z]{2})(?=[A-Z])|(?<=[a-z])(?=[A-Z]{2,}\b)")


def say_signs(text: str) -> str:
    """Write characters as words that Unicode normalization would decompose or lose."""
    text = _ENTITY.sub(lambda m: html.unescape(m[0]), text)
    text = _MIXED.sub(" ", text)
    text = _POWER.sub(lambda m: m[1] + _power(_lowered(m[2])), text)
    text = _CARET.sub(lambda m: _power(m[1]), text)
    return _EMOTICON.sub("", text).translate(_LETTERS)


def say_code(text: str) -> str:
    """Write operators, numbers and names in program code as words."""
    text = _HEX.sub(_hex, text)
    text = _TIMES.sub(" times ", _EXPONENT.sub(" e minus ", text))
    for sign, words in _OPERATORS.items():
        text = text.replace(sign, words)
    return _BACKSLASH.sub(" backslash ", text)


def part_names(text: str) -> str:
    """Split names that are written as one word: "OpenAI" is "Open AI"."""
    return _CAMEL.sub(" ", text)


def _lowered(raised: str) -> str:
    return "".join("-" if sign == "⁻" else str(_RAISED.index(sign)) for sign in raised)


def _power(exponent: str) -> str:
    return _NAMED_POWERS.get(exponent) or (" to the power of " + exponent.replace("-", "minus "))


def _hex(match: Match[str]) -> str:
    digits = " ".join((match[1] or match[2]).upper())
    return f"zero x {digits}" if match[1] else f"number {digits}"
