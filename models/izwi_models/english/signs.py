"""Special characters: HTML entities, powers, letters of other alphabets."""

from __future__ import annotations

import html
import re
from re import Match

from izwi_models.english.units import UNIT_MINUS, UNITS

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
    }
)
# Letters of Greek, apart from those in units.
_GREEK = dict(
    zip(
        "αβγδεζηθικλμνξοπρστυφχψως",
        re.findall(
            r"\w+",
            """alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi
            rho sigma tau upsilon phi chi psi omega sigma""",
        ),
        strict=True,
    )
)
_NO_GREEK = "[\u0370-\u03ff\u1f00-\u1fff]"
_GREEK_LETTERS = re.compile(f"(?<!{_NO_GREEK})[Α-ω]{{1,2}}(?!{_NO_GREEK})")
# The sign and the letter, before the letters of a unit.
_MICRO = re.compile("(?<![^\\W\\d_])[\u00b5\u03bc](?=[A-Za-z]{1,3}(?![A-Za-z]))")
_MICROSECONDS = re.compile("[\u00b5\u03bc]s\\b")  # "us" is a word
_OHM = re.compile(r"(\d ?[kMm]?)[\u2126\u03a9](?![\u0370-\u03ff])")
_MATHS = str.maketrans(
    {
        "≠": " is not equal to ",
        "∞": " infinity ",
        "∈": " in ",
        "∉": " not in ",
        "∩": " intersection ",
        "∪": " union ",
        "∅": " empty set ",
        "⊂": " subset of ",
        "⊆": " subset of ",
        "∀": " for all ",
        "∃": " there exists ",
        "∑": " sum of ",
        "∏": " product of ",
        "∫": " integral of ",
        "∂": " partial ",
        "∇": " nabla ",
        "∝": " proportional to ",
        "∴": " therefore ",
        "∛": " cube root of ",
        "≡": " is equivalent to ",
        "≪": " much less than ",
        "≫": " much more than ",
        "≦": "≤",
        "≧": "≥",
        "∶": ":",
        "∕": "/",
        "∗": "*",
        "∙": "⋅",
        "·": "⋅",
        "⇒": ", ",
    }
)
_ENTITY = re.compile(r"&(?:amp|lt|gt|quot|apos|nbsp|#39|#x27);")
_HYPHEN = re.compile("[\u2010-\u2012]")  # not a dash
_MIXED = re.compile(r"(?<=\d)(?=[¼½¾⅐-⅞])")
_RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ"
_RAISED_RUN = re.compile(f"[{_RAISED}]+")
_LOWERED = str.maketrans(_RAISED, "0123456789+-n")
_BRACED = re.compile(r"\^\{(-?\w{1,4})\}")
# A number after a mark is that of a note: "wet.^1".
_NOTE = re.compile(r"(?<=[.,;:!?\"”’])\^\d{1,3}(?![\w^])")
_POWER = re.compile(r"([A-Za-z\u0370-\u03ff]+|\d+|[)\]])\^(-?\d+[+-]?|[+-]|[a-z]\b)(?![A-Za-z\d])")
_AFTER_NUMBER = re.compile(r"(?:\d ?|/|[·⋅*(]|\d ?([A-Za-z]{1,4})\d? )$")
_NAMED_POWERS = {"2": " squared", "3": " cubed"}
_FUNCTIONS = frozenset(("sin", "cos", "tan", "cot", "sec", "log", "exp", "ln"))
_SHORTEST_WORD = 4
_CHARGES = {"+": "plus", "-": "minus"}
_TIMES_TEN = re.compile(r"(?<=\d) ?[x×⋅] ?(?=10\^)")
_DOT_TIMES = re.compile(r"(?<=\d) ?⋅ ?(?=\d)")
_FACTORIAL = re.compile(r"(?<=\d)!(?= ?[=+*/-])")
_DIVIDED = re.compile(r"(?<=\d) / (?=\d+ ?=)")
_HEX = re.compile(r"\b0x([\dA-Fa-f]{1,16})\b|#(?=\w*\d)([\dA-Fa-f]{6})\b")
_EXPONENT = re.compile(r"(?<=\d)[eE]-(?=\d)")
_EMOTICON = re.compile(r"(?<!\S)[:;=]-?[()DPp|](?=[\s.,!?]|$)")
_BACKSLASH = re.compile(r"(?<=[\w:])\\(?=\w)")
_OPERATORS = {"!=": " is not equal to ", "&&": " and ", "||": " or ", "==": " equals "}
_TIMES = re.compile(r"(?<=\d) ?\* ?(?=\d)")
_RAISED_TO = re.compile(r"(?<=[\w)]) ?\*\* ?(?=\d)")
_CAMEL = re.compile(r"(?<=[a-z]{2})(?=[A-Z])|(?<=[a-z])(?=[A-Z]{2,}\b)")


def say_signs(text: str) -> str:
    """Write characters as words that Unicode normalization would decompose or lose."""
    text = _HYPHEN.sub("-", _ENTITY.sub(lambda m: html.unescape(m[0]), text))
    if not text.isascii():
        text = _MIXED.sub(" ", text)
    text = _say_maths(text)
    if ":" in text or ";" in text or "=" in text:
        text = _EMOTICON.sub("", text)
    return text if text.isascii() else text.translate(_LETTERS)


def say_code(text: str) -> str:
    """Write operators, numbers and names in program code as words."""
    if "0x" in text or "#" in text:
        text = _HEX.sub(_hex, text)
    if "*" in text:
        text = _TIMES.sub(" times ", _RAISED_TO.sub(" to the power of ", text))
    text = _EXPONENT.sub(" e minus ", text)
    for sign, words in _OPERATORS.items():
        text = text.replace(sign, words)
    return _BACKSLASH.sub(" backslash ", text)


def part_names(text: str) -> str:
    """Split names that are written as one word: "OpenAI" is "Open AI"."""
    return _CAMEL.sub(" ", text)


def _say_maths(text: str) -> str:
    """Write powers, Greek letters and operators as words."""
    if text.isascii() and "^" not in text and "!" not in text and " / " not in text:
        return text
    text = _MICROSECONDS.sub("usec", text)
    text = _MICRO.sub("u", _OHM.sub(r"\1ohm", text.translate(_MATHS)))
    text = _FACTORIAL.sub(" factorial", _DIVIDED.sub(" divided by ", text))
    text = _RAISED_RUN.sub(lambda m: "^" + m[0].translate(_LOWERED), text)
    if "^" in text:
        text = _NOTE.sub("", _BRACED.sub(r"^\1", text))
        text = _POWER.sub(_power, _TIMES_TEN.sub(" times ", text))
    if "⋅" in text:
        text = _DOT_TIMES.sub(" times ", text)
    text = text.replace("\u00b5", "\u03bc")
    return _GREEK_LETTERS.sub(lambda m: _say_greek(m[0]), text)


def _say_greek(letters: str) -> str:
    return "".join(f" {_GREEK.get(letter.lower(), '')} " for letter in letters)


def _power(match: Match[str]) -> str:
    base, exponent = match.groups()
    before = match.string[max(0, match.start() - 8) : match.start()]
    is_letters = base.isalpha()
    if is_letters and base.isascii() and _is_measured(base, exponent, before):
        return base + exponent.replace("-", UNIT_MINUS)  # say_quantities says it
    if exponent[-1] in "+-":
        return f"{' '.join(base.upper())} {exponent[:-1]} {_CHARGES[exponent[-1]]}"
    if is_letters and len(base) >= _SHORTEST_WORD and exponent.isdigit():
        return base  # the number of a note
    words = _NAMED_POWERS.get(exponent) or f" to the power of {exponent.replace('-', 'minus ')}"
    if base in ")]":
        return f"{base},{words}" if before else words
    if is_letters and base not in _FUNCTIONS:
        base = " " * before[-1:].isdigit() + " ".join(base)
    return f"{base}{words}{' ' * match.string[match.end() :][:1].isalpha()}"


def _is_measured(base: str, exponent: str, before: str) -> bool:
    """Whether letters with a power are a unit."""
    if exponent.lstrip("-") not in ("1", "2", "3") or base not in UNITS:
        return False
    number = _AFTER_NUMBER.search(before)
    follows = number is not None and (number[1] is None or number[1] in UNITS)
    return len(base) > 1 or before.endswith("per ") or follows


def _hex(match: Match[str]) -> str:
    digits = " ".join((match[1] or match[2]).upper())
    return f"zero x {digits}" if match[1] else f"number {digits}"
