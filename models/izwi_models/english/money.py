"""Amounts of money in words."""

from __future__ import annotations

import re
from re import Match

from izwi_models.english.numbers import cardinal
from izwi_models.english.units import EXPRESSION, rate_words

_CENTS = ("cent", "cents")
_CURRENCIES = {
    "$": ("dollar", "dollars", *_CENTS),
    "£": ("pound", "pounds", "penny", "pence"),
    "€": ("euro", "euros", *_CENTS),
    "¥": ("yen", "yen", "sen", "sen"),
    "₹": ("rupee", "rupees", "paisa", "paise"),
    "₩": ("won", "won", "jeon", "jeon"),
    "₿": ("bitcoin", "bitcoins", *_CENTS),
    "₽": ("ruble", "rubles", "kopeck", "kopecks"),
    "₪": ("shekel", "shekels", "agora", "agorot"),
    "₺": ("lira", "lira", "kurus", "kurus"),
    "₱": ("peso", "pesos", "centavo", "centavos"),
    "₫": ("dong", "dong", "xu", "xu"),
    "₦": ("naira", "naira", "kobo", "kobo"),
    "₴": ("hryvnia", "hryvnias", "kopeck", "kopecks"),
    "฿": ("baht", "baht", "satang", "satang"),
    "US$": ("U S dollar", "U S dollars", *_CENTS),
    "C$": ("Canadian dollar", "Canadian dollars", *_CENTS),
    "A$": ("Australian dollar", "Australian dollars", *_CENTS),
    "NZ$": ("New Zealand dollar", "New Zealand dollars", *_CENTS),
    "HK$": ("Hong Kong dollar", "Hong Kong dollars", *_CENTS),
    "S$": ("Singapore dollar", "Singapore dollars", *_CENTS),
    "R$": ("real", "reais", "centavo", "centavos"),
    "CHF": ("Swiss franc", "Swiss francs", "centime", "centimes"),
    "CNY": ("yuan", "yuan", "fen", "fen"),
    "SEK": ("Swedish krona", "Swedish kronor", "ore", "ore"),
    "NOK": ("Norwegian krone", "Norwegian kroner", "ore", "ore"),
    "DKK": ("Danish krone", "Danish kroner", "ore", "ore"),
    "ZL": ("zloty", "zlotys", "grosz", "groszy"),
    "CZK": ("Czech koruna", "Czech korunas", "haler", "halers"),
    "MXN": ("Mexican peso", "Mexican pesos", "centavo", "centavos"),
    "ZAR": ("rand", "rand", *_CENTS),
}
_ALIASES = {
    "USD": "$",
    "GBP": "£",
    "EUR": "€",
    "JPY": "¥",
    "INR": "₹",
    "KRW": "₩",
    "RUB": "₽",
    "CA$": "C$",
    "CAD": "C$",
    "AU$": "A$",
    "AUD": "A$",
    "NZD": "NZ$",
    "HKD": "HK$",
    "SGD": "S$",
    "BRL": "R$",
    "RMB": "CNY",
    "PLN": "ZL",
    "ILS": "₪",
    "THB": "฿",
    "RS": "₹",
    "RS.": "₹",
}
# Codes are written before or after an amount.
CODES = (
    *("USD", "GBP", "EUR", "JPY", "INR", "KRW", "RUB", "CHF", "CAD", "AUD", "NZD", "HKD", "SGD"),
    *("usd", "gbp", "eur", "jpy", "inr", "chf", "cad", "aud"),
    *("BRL", "CNY", "RMB", "SEK", "NOK", "DKK", "PLN", "CZK", "MXN", "ZAR", "ILS", "THB"),
)
SIGNS = "$£€¥₹₩₿₽₪₺₱₫₦₴฿"
_CODE = "|".join(CODES)
_SIGN = f"[{SIGNS}]"
_MAGNITUDES = {
    "k": "thousand",
    "m": "million",
    "mn": "million",
    "mm": "million",
    "bn": "billion",
    "b": "billion",
    "tn": "trillion",
    "t": "trillion",
}
# Letters first, and what is before them behind, are found faster.
_BEFORE = (
    r"(?:(?:US|CA|AU|NZ|HK)\$(?<![A-Z].{3})|[CASR]\$(?<![A-Z].{2})|"
    rf"{_SIGN}|(?:{_CODE})(?<!\w.{{3}})|Rs(?<!\w.{{2}})\.?)"
)
_BEHIND = rf"(?:{_SIGN}(?!\w)|\b(?:{_CODE}|zl)\b)"
_NUMBER = r"(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"
_MAGNITUDE = (
    r"(?: (?:hundred|thousand|million|billion|trillion|lakh|crore)s?\b"
    r"|(?:[kK]|[mM][nN]?|[bB][nN]?|[tT][nN]?)\b)"
)
_PER_UNIT = rf"(?:/({EXPRESSION})(?![\w]))?"
_TO = r"(?: ?[-–—] ?| to )"

_HAS_MONEY = re.compile(rf"[{SIGNS}¢]|{_CODE}|Rs|zl")
_HAS_COMMA = re.compile(r",\d{1,2}(?!\d)")
_LOSS = re.compile(rf"(?<![\w)])[-−](?={_BEFORE} ?\.?\d)")
_LOSS_BEHIND = re.compile(rf"(?<![\w)])[-−](?={_NUMBER}{_MAGNITUDE}? ?{_BEHIND})")
_LOSS_INSIDE = re.compile(rf"(?<![\w.])(?<!\d )({_BEFORE}) ?(?:[-−] ?|minus )(?=\.?\d)")
_PRICE_TO = re.compile(
    rf"(?:(?<=\d)|(?<=\d[kKmMbBtT])|(?<=\d[mMbBtT]n)) ?[-–—] ?(?={_BEFORE} ?\.?\d)"
    rf"|(?<=illion)[-–—](?={_BEFORE} ?\.?\d)"
)
_PRICE_BEHIND_TO = re.compile(rf"(?<={_SIGN}) ?[-–—] ?(?={_NUMBER} ?{_SIGN})")
_RANGE = re.compile(rf"({_BEFORE}) ?({_NUMBER}){_TO}({_NUMBER})({_MAGNITUDE})?(?![\w-]){_PER_UNIT}")
_RANGE_BEHIND = re.compile(rf"(?<![\w.,])({_NUMBER}){_TO}({_NUMBER}) ?({_BEHIND}){_PER_UNIT}")
_PRICE = re.compile(rf"({_BEFORE}) ?({_NUMBER})({_MAGNITUDE})?{_PER_UNIT}")
_PRICE_BEHIND = re.compile(rf"({_NUMBER})({_MAGNITUDE})? ?({_BEHIND}){_PER_UNIT}")
_PENNIES = re.compile(rf"(\d+)¢{_PER_UNIT}")
# "1,5" may be two numbers; in amounts of money it is one.
_COMMA = re.compile(
    rf"(?<![\d,.])(\d+),(\d{{1,2}})(?![\d,]|\.\d)(?= ?{_BEHIND})"
    rf"|(?<={_SIGN})(-?\d+),(\d{{1,2}})(?![\d,]|\.\d)"
    rf"|(?<=\b(?:{'|'.join(code for code in CODES)}) )(\d+),(\d{{1,2}})(?![\d,]|\.\d)"
)


def say_money(text: str) -> str:
    """Write amounts of money as words."""
    if _HAS_MONEY.search(text) is None:
        return text
    if _HAS_COMMA.search(text):
        text = _COMMA.sub(lambda m: ".".join(part for part in m.groups() if part), text)
    text = _PRICE_BEHIND_TO.sub(" to ", _PRICE_TO.sub(" to ", text))
    text = _LOSS_BEHIND.sub("minus ", _LOSS.sub("minus ", text))
    text = _LOSS_INSIDE.sub(r"minus \1", text)
    text = _PENNIES.sub(lambda m: counted(m[1], *_CENTS) + _per(m[2]), text)
    text = _RANGE.sub(_range, text)
    text = _RANGE_BEHIND.sub(_range_behind, text)
    text = _PRICE.sub(lambda m: _amount(m[1], m[2], m[3]) + _per(m[4]), text)
    return _PRICE_BEHIND.sub(lambda m: _amount(m[3], m[1], m[2]) + _per(m[4]), text)


def counted(number: str, one: str, many: str) -> str:
    """Say a number of things."""
    return f"{cardinal(number)} {one if number == '1' else many}"


def _currency(sign: str) -> tuple[str, str, str, str]:
    sign = sign.upper()
    return _CURRENCIES[_ALIASES.get(sign, sign)]


def _amount(sign: str, number: str, magnitude: str | None) -> str:
    one, many, cent, cents = _currency(sign)
    if magnitude:
        return f"{cardinal(number)} {_magnitude(magnitude)} {many}"
    whole, _, small = number.partition(".")
    if len(small) != 2:
        return counted(number, one, many)
    if not int(small):
        return counted(whole, one, many)
    rest = counted(str(int(small)), cent, cents)
    if not int(whole.replace(",", "") or "0"):
        return rest
    return f"{counted(whole, one, many)} and {rest}"


def _magnitude(written: str) -> str:
    return _MAGNITUDES.get(written.lower()) or written.strip()


def _range(match: Match[str]) -> str:
    magnitude = f" {_magnitude(match[4])}" if match[4] else ""
    numbers = f"{cardinal(match[2])} to {cardinal(match[3])}"
    return f"{numbers}{magnitude} {_currency(match[1])[1]}{_per(match[5])}"


def _range_behind(match: Match[str]) -> str:
    numbers = f"{cardinal(match[1])} to {cardinal(match[2])}"
    return f"{numbers} {_currency(match[3])[1]}{_per(match[4])}"


def _per(unit: str | None) -> str:
    if not unit:
        return ""
    words = rate_words(unit)
    return f" per {words}" if words else f"/{unit}"
