"""Numbers in words: cardinals, ordinals, years, digits, fractions."""

from __future__ import annotations

from num2words import num2words

_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_DENOMINATORS = {2: ("half", "halves"), 4: ("quarter", "quarters")}
# Longer runs of digits are not quantities: they are read digit by digit.
_LONGEST_CARDINAL = 15


def cardinal(number: str) -> str:
    """Say a quantity: digits with or without thousands separators and decimals.

    Args:
        number: Like "1,234.50" or "007", without a sign.
    """
    whole, point, decimals = number.replace(",", "").partition(".")
    if len(whole) > _LONGEST_CARDINAL or (len(whole) > 1 and whole[0] == "0"):
        words = digits(whole)
    else:
        words = _plain(num2words(int(whole))) if whole else ""
    return f"{words} point {digits(decimals)}".strip() if point and decimals else words


def ordinal(number: int) -> str:
    """Say a place in an order: 21 is "twenty first"."""
    if len(str(number)) <= _LONGEST_CARDINAL:
        return _plain(num2words(number, to="ordinal"))
    before, last = divmod(number, 10)
    return f"{digits(str(before))} {num2words(last, to='ordinal')}"


def year(number: int) -> str:
    """Say a year of 1000 to 2999: 1905 is "nineteen oh five", 2006 "two thousand and six"."""
    century, rest = divmod(number, 100)
    if century % 10 == 0 and rest < 10:
        return cardinal(str(number))
    if rest == 0:
        return f"{cardinal(str(century))} hundred"
    return f"{cardinal(str(century))} {two_digits(rest)}"


def decade(number: int) -> str:
    """Say the ten years from a year on: 1990 is "nineteen nineties", 90 "nineties"."""
    tens = number % 100
    last = {0: "hundreds", 10: "tens"}.get(tens) or f"{cardinal(str(tens))[:-1]}ies"
    if number < 100:
        return last
    if tens == 0 and number % 1000 == 0:
        return f"{cardinal(str(number))}s"
    return f"{cardinal(str(number // 100))} {last}"


def two_digits(number: int) -> str:
    """Say minutes, or the end of a year: 5 is "oh five"."""
    return f"oh {_DIGITS[number]}" if number < 10 else cardinal(str(number))


def digits(text: str) -> str:
    """Say digits one by one; all other characters are left out."""
    return " ".join(_DIGITS[int(digit)] for digit in text if digit in "0123456789")


def fraction(above: int, below: int) -> str:
    """Say a fraction: 3/4 is "three quarters"."""
    one, many = _DENOMINATORS.get(below) or (ordinal(below), f"{ordinal(below)}s")
    return f"{cardinal(str(above))} {one if above == 1 else many}"


def _plain(words: str) -> str:
    """Drop commas and hyphens."""
    return words.replace(",", "").replace("-", " ")
