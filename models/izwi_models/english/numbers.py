"""Numbers in words: cardinals, ordinals, years, digits, fractions."""

from __future__ import annotations

_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_BELOW_TWENTY = (
    *_DIGITS,
    *("ten", "eleven", "twelve", "thirteen", "fourteen"),
    *("fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_SCALES = ("thousand", "million", "billion", "trillion")
_ORDINALS = {
    "one": "first",
    "two": "second",
    "three": "third",
    "five": "fifth",
    "eight": "eighth",
    "nine": "ninth",
    "twelve": "twelfth",
}
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
        words = _in_words(int(whole)) if whole else ""
    return f"{words} point {digits(decimals)}".strip() if point and decimals else words


def ordinal(number: int) -> str:
    """Say a place in an order: 21 is "twenty first"."""
    before, _, last = cardinal(str(number)).rpartition(" ")
    if last in _ORDINALS:
        last = _ORDINALS[last]
    else:
        last = f"{last[:-1]}ieth" if last.endswith("y") else f"{last}th"
    return f"{before} {last}".strip()


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


def _in_words(number: int) -> str:
    """Say 0 to 10^15 - 1: 1005 is "one thousand and five"."""
    if number < 1000:
        return _below_thousand(number)
    parts = []
    for power in range(len(_SCALES), 0, -1):
        count, number = divmod(number, 1000**power)
        if count:
            parts.append(f"{_below_thousand(count)} {_SCALES[power - 1]}")
    if number:
        parts.append(f"{'and ' if number < 100 else ''}{_below_thousand(number)}")
    return " ".join(parts)


def _below_thousand(number: int) -> str:
    hundreds, rest = divmod(number, 100)
    if hundreds:
        words = f"{_DIGITS[hundreds]} hundred"
        return f"{words} and {_below_thousand(rest)}" if rest else words
    if rest < 20:
        return _BELOW_TWENTY[rest]
    tens, ones = divmod(rest, 10)
    return f"{_TENS[tens - 2]} {_DIGITS[ones]}" if ones else _TENS[tens - 2]
