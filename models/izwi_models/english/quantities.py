"""Money, units, phone numbers and plain numbers in words."""

from __future__ import annotations

import re
from re import Match

from izwi_models.english.numbers import cardinal, digits, fraction, ordinal

_CURRENCIES = {
    "$": ("dollar", "dollars", "cent", "cents"),
    "£": ("pound", "pounds", "penny", "pence"),
    "€": ("euro", "euros", "cent", "cents"),
    "¥": ("yen", "yen", "sen", "sen"),
    "₹": ("rupee", "rupees", "paisa", "paise"),
    "₩": ("won", "won", "jeon", "jeon"),
    "₿": ("bitcoin", "bitcoins", "cent", "cents"),
    "US$": ("U S dollar", "U S dollars", "cent", "cents"),
    "C$": ("Canadian dollar", "Canadian dollars", "cent", "cents"),
    "A$": ("Australian dollar", "Australian dollars", "cent", "cents"),
    "CHF": ("Swiss franc", "Swiss francs", "centime", "centimes"),
}
_CURRENCY_CODES = {
    "USD": "$",
    "GBP": "£",
    "EUR": "€",
    "JPY": "¥",
    "INR": "₹",
    "CHF": "CHF",
    "CA$": "C$",
    "CAD": "C$",
    "AU$": "A$",
    "AUD": "A$",
}
_CODE = "USD|GBP|EUR|JPY|INR|CHF|CAD|AUD"
_SIGN = "[$£€¥₹₩₿]"
_MAGNITUDES = {
    "k": "thousand",
    "m": "million",
    "mn": "million",
    "bn": "billion",
    "b": "billion",
    "tn": "trillion",
    "t": "trillion",
}
# Units after a number: singular, plural.
_UNITS = {
    "%": ("percent", "percent"),
    "km": ("kilometer", "kilometers"),
    "m": ("meter", "meters"),
    "cm": ("centimeter", "centimeters"),
    "mm": ("millimeter", "millimeters"),
    "mi": ("mile", "miles"),
    "ft": ("foot", "feet"),
    "yd": ("yard", "yards"),
    "kg": ("kilogram", "kilograms"),
    "g": ("gram", "grams"),
    "mg": ("milligram", "milligrams"),
    "lb": ("pound", "pounds"),
    "lbs": ("pound", "pounds"),
    "oz": ("ounce", "ounces"),
    "l": ("liter", "liters"),
    "L": ("liter", "liters"),
    "ml": ("milliliter", "milliliters"),
    "mph": ("mile per hour", "miles per hour"),
    "km/h": ("kilometer per hour", "kilometers per hour"),
    "kph": ("kilometer per hour", "kilometers per hour"),
    "m/s": ("meter per second", "meters per second"),
    "°C": ("degree Celsius", "degrees Celsius"),
    "°F": ("degree Fahrenheit", "degrees Fahrenheit"),
    "°": ("degree", "degrees"),
    "KB": ("kilobyte", "kilobytes"),
    "kB": ("kilobyte", "kilobytes"),
    "MB": ("megabyte", "megabytes"),
    "GB": ("gigabyte", "gigabytes"),
    "TB": ("terabyte", "terabytes"),
    "GiB": ("gibibyte", "gibibytes"),
    "MiB": ("mebibyte", "mebibytes"),
    "Hz": ("hertz", "hertz"),
    "kHz": ("kilohertz", "kilohertz"),
    "MHz": ("megahertz", "megahertz"),
    "GHz": ("gigahertz", "gigahertz"),
    "ms": ("millisecond", "milliseconds"),
    "s": ("second", "seconds"),
    "sec": ("second", "seconds"),
    "min": ("minute", "minutes"),
    "h": ("hour", "hours"),
    "hr": ("hour", "hours"),
    "hrs": ("hour", "hours"),
    "W": ("watt", "watts"),
    "kW": ("kilowatt", "kilowatts"),
    "kWh": ("kilowatt hour", "kilowatt hours"),
    "V": ("volt", "volts"),
    "A": ("amp", "amps"),
    "mA": ("milliamp", "milliamps"),
    "dB": ("decibel", "decibels"),
    "px": ("pixel", "pixels"),
    "in": ("inch", "inches"),
    "tsp": ("teaspoon", "teaspoons"),
    "tbsp": ("tablespoon", "tablespoons"),
    "fl oz": ("fluid ounce", "fluid ounces"),
    "sq ft": ("square foot", "square feet"),
    "um": ("micrometer", "micrometers"),
    "nm": ("nanometer", "nanometers"),
    "mL": ("milliliter", "milliliters"),
    "mW": ("milliwatt", "milliwatts"),
    "MW": ("megawatt", "megawatts"),
    "mAh": ("milliamp hour", "milliamp hours"),
    "ohm": ("ohm", "ohms"),
    "kohm": ("kilohm", "kilohms"),
    "us": ("microsecond", "microseconds"),
    "kbps": ("kilobit per second", "kilobits per second"),
    "Mbps": ("megabit per second", "megabits per second"),
    "Gbps": ("gigabit per second", "gigabits per second"),
    "Mbit/s": ("megabit per second", "megabits per second"),
    "Gbit/s": ("gigabit per second", "gigabits per second"),
    "MB/s": ("megabyte per second", "megabytes per second"),
    "GB/s": ("gigabyte per second", "gigabytes per second"),
    "bpm": ("beat per minute", "beats per minute"),
    "rpm": ("revolution per minute", "revolutions per minute"),
    "psi": ("pound per square inch", "pounds per square inch"),
    "kcal": ("kilocalorie", "kilocalories"),
    "cal": ("calorie", "calories"),
    "m/s2": ("meter per second squared", "meters per second squared"),
    "m2": ("square meter", "square meters"),
    "km2": ("square kilometer", "square kilometers"),
    "m3": ("cubic meter", "cubic meters"),
}
# After a space these are usually something else: "grade 5 A".
_GLUED_UNITS = frozenset(("A", "in", "us"))
_RATES = {"hr": "hour", "h": "hour", "min": "minute", "mo": "month", "yr": "year", "lb": "pound"}
_DIRECTIONS = {"N": "north", "S": "south", "E": "east", "W": "west"}
_NUMBER = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?"
_MAGNITUDE_WORD = r"(?: (?:hundred|thousand|million|billion|trillion))"
# A regular expression of all units.
UNIT = "|".join(re.escape(unit) for unit in sorted(_UNITS, key=len, reverse=True))
_SAID_DENOMINATORS = frozenset((*range(2, 11), 16, 32, 64, 100))

_PRICE = re.compile(
    rf"((?<![A-Z])(?:US|CA?|AU?)\$|{_SIGN}|\b(?:{_CODE})) ?({_NUMBER})"
    rf"(?:({_MAGNITUDE_WORD})|(k|m|mn|bn|b|tn?)\b)?",
    re.IGNORECASE,
)
_PRICE_RANGE = re.compile(rf"({_SIGN})({_NUMBER}) ?[-–] ?{_SIGN}?({_NUMBER})(?![\w-])")
_PRICE_BEHIND = re.compile(rf"({_NUMBER}) ?({_SIGN}(?!\w)|\b(?:{_CODE})\b)")
_CENTS = re.compile(r"(\d+)¢")
_PHONE = re.compile(
    r"(?<![\w.])(\+\d{1,3}[ .-]?)?(?:\((\d{3})\) ?|(\d{3})[ .-])(\d{3})[ .-](\d{4})(?![\w-]|\.\d)"
)
_FOREIGN_PHONE = re.compile(r"(?<!\w)\+(\d{1,3}(?:[ .-]?\d{2,5}){2,5})(?!\w)")
_NATIONAL_PHONE = re.compile(r"(?<![\w.,$])\(?(0\d{2,4})\)?((?:[ -]\d{3,4}){2})(?![\w-]|\.\d)")
_LOCAL_PHONE = re.compile(r"(?<![\w.,$-])(\d{3})-(\d{4})(?![\w-])")
_SIZED = re.compile(rf"(?<![A-Za-z])({_NUMBER})( ?)({UNIT})(?![\w°]|/[A-Za-z])")
_DOTTED_UNIT = re.compile(r"(?<=\d)( ?(?:ft|lbs?|oz|hrs?|min|sec))\.(?= [a-z])")
_INCHES = re.compile(r"(?<=\d) in\.(?= [a-z])")
_SPOONS = re.compile(r"\b(t|tb)sp\b")
_LASTING = re.compile(r"\b(\d+)(h|m) ?(\d{1,2})(m|s)(?:in)?\b")
_PER = re.compile(
    rf"(?<=[\d¢kM])/({'|'.join(_RATES)}|second|minute|hour|day|week|month|year|person)\b"
)
_PRICE_PER = re.compile(rf"(?:{_SIGN}[\d.,]+[kM]?|\d¢){_PER.pattern}")
_LOSS = re.compile(rf"(?<![\w)])[-−](?={_SIGN}\d)")
_PRICE_TO = re.compile(rf"(?<=[\dkKmMbB]) ?[-–] ?(?={_SIGN}\d)")
_SHARE_TO = re.compile(r"(?<=%)(?: to | ?[-–] ?)(?=\d)")
_WORD_TO = re.compile(r"(?<=[A-Za-z%°])–(?=[\w$£€])|(?<=\d)–(?=[A-Za-z])")
_DIRECTION = re.compile(r"(?<=\d) ?° ?([NSEW])\b")
# "1,5" may be two numbers; in amounts of money and percentages it is one
_COMMA = re.compile(
    rf"(?<![\d,.])(\d+),(\d{{1,2}})(?![\d,]|\.\d)(?= ?(?:%|{_SIGN}|(?:{_CODE})\b))"
    rf"|(?<={_SIGN})(\d+),(\d{{1,2}})(?![\d,]|\.\d)"
)
_SPACED = re.compile(r"(?<![\d.,])(\d{1,3})((?: 000)+)\b(?![.,]?\d)")
_HALVES = re.compile(r"\b(50)-(50)\b|\b(24)-(7)\b")
_STARS = re.compile(r"(?<![\d/])(\d+(?:\.\d)?)/(5|10)(?= stars?\b)")
_POSTCODE = re.compile(r"(?<![\w-])(\d{5})-(\d{4})(?![\w-])")
_SERIAL = re.compile(r"(?<![\w-])\d+(?:-\d+){3,}(?![\w-])")
_MILLIONS = re.compile(r"\b(\d+(?:\.\d+)?)M\b")
_MIXED = re.compile(r"(?<![\d/.])(\d+)[ -](\d{1,2})[/⁄](\d{1,3})(?![\d/])")
_FRACTION = re.compile(r"(?<![\d/.])(\d{1,3})[/⁄](\d{1,3})(?![\d/])")
_RANGE = re.compile(rf"(?<![\w.-])({_NUMBER}) ?[-–] ?({_NUMBER})(?![\w-]|\.\d)")
_PRODUCT = re.compile(r"(?<=\d) ?[x×] ?(?=\d)")
_DOTTED = re.compile(r"\bv?(\d+(?:\.\d+){2,})\b|\bv(\d+(?:\.\d+)?)\b")
_ORDINAL = re.compile(r"\b(\d{1,3}(?:,\d{3})+|\d+)(?:st|nd|rd|th|ST|ND|RD|TH)\b")
# "4K" is a picture resolution
_THOUSANDS = re.compile(r"\b(\d+(?:\.\d+)?)k\b|\b(\d{2,}(?:\.\d+)?)K\b")
_TIMES = re.compile(r"(?<=\d)x\b")
_HEIGHT = re.compile(r"(?<![\w.])(\d)' ?(\d{1,2})(?:\"|''|(?![\w.:/%]))")
_RATIO = re.compile(r"(?<![\d:])(\d+):(\d+)(?![\d:])")
_CHAIN = re.compile(r"(?<=\d)[-–](?=\d)")
_JOINED = re.compile(r"(?<=[A-Za-z])-(?=\d)|(?<=\d)-(?=[A-Za-z])")
_MINUS = re.compile(r"(?<![\w)])[-−](?=\d|\.\d)")
_ABOUT = re.compile(r"~ ?(?=\d)")
_POINT = re.compile(r"(?<!\d)\.(\d+)")
_ANY = re.compile(_NUMBER)


def say_quantities(text: str) -> str:
    """Write all remaining digits of a text as words."""
    text = _say_signs_of_money(text)
    text = _CENTS.sub(lambda m: _counted(m[1], "cent", "cents"), text)
    text = _PRICE_RANGE.sub(
        lambda m: f"{cardinal(m[2])} to {cardinal(m[3])} {_CURRENCIES[m[1]][1]}", text
    )
    text = _PRICE.sub(_price, text)
    text = _PRICE_BEHIND.sub(_price_behind, text)
    if not any(character.isdigit() for character in text):
        return text
    text = _PHONE.sub(_phone, text)
    text = _FOREIGN_PHONE.sub(lambda m: "plus " + _groups(re.split(r"[ .-]", m[1])), text)
    text = _NATIONAL_PHONE.sub(lambda m: _groups([m[1], *re.split("[ -]", m[2][1:])]), text)
    text = _LOCAL_PHONE.sub(lambda m: _groups([m[1], m[2]]), text)
    text = _POSTCODE.sub(lambda m: _groups([m[1], m[2]]), text)
    text = _SERIAL.sub(lambda m: _groups(m[0].split("-")), text)
    text = _STARS.sub(r"\1 out of \2", _HALVES.sub(r"\1\3 \2\4", text))
    text = _LASTING.sub(_lasting, text)
    text = _DIRECTION.sub(lambda m: f" degrees {_DIRECTIONS[m[1]]}", text)
    text = _JOINED.sub(" ", text)
    text = _MINUS.sub("minus ", text)
    text = _ABOUT.sub("about ", text)
    text = _DOTTED.sub(_version, text)
    text = _ORDINAL.sub(lambda m: ordinal(int(m[1].replace(",", ""))), text)
    text = _MIXED.sub(_mixed, text)
    text = _FRACTION.sub(_fraction, text)
    text = _RANGE.sub(r"\1 to \2", _HEIGHT.sub(r"\1 foot \2", text))
    text = _CHAIN.sub(" ", _RATIO.sub(r"\1 to \2", text))
    text = _SIZED.sub(_sized, _INCHES.sub("in", _DOTTED_UNIT.sub(r"\1", text)))
    text = _SPOONS.sub(lambda m: "teaspoon" if m[1] == "t" else "tablespoon", text)
    text = _PRODUCT.sub(" by ", text)
    text = _THOUSANDS.sub(lambda m: f"{cardinal(m[1] or m[2])} thousand", text)
    text = _MILLIONS.sub(lambda m: f"{cardinal(m[1])} million", text)
    text = _TIMES.sub(" times", text)
    text = _POINT.sub(lambda m: f" point {digits(m[1])}", text)
    return _ANY.sub(lambda m: f" {cardinal(m[0])} ", text)


def _say_signs_of_money(text: str) -> str:
    """Write minus, to and per next to amounts as words, and decimal commas as points."""
    text = _SHARE_TO.sub(" to ", _PRICE_TO.sub(" to ", _LOSS.sub("minus ", text)))
    text = _WORD_TO.sub(" to ", text)
    text = _PRICE_PER.sub(
        lambda m: _PER.sub(lambda n: f" per {_RATES.get(n[1], n[1])}", m[0]), text
    )
    text = _COMMA.sub(r"\1\3.\2\4", text)
    return _SPACED.sub(lambda m: m[1] + m[2].replace(" ", ""), text)


def _lasting(match: Match[str]) -> str:
    first, of_first, second, of_second = match.groups()
    if of_first == of_second:
        return match[0]
    names = {"h": ("hour", "hours"), "m": ("minute", "minutes"), "s": ("second", "seconds")}
    return f"{_counted(first, *names[of_first])} {_counted(second, *names[of_second])}"


def _counted(number: str, one: str, many: str) -> str:
    return f"{cardinal(number)} {one if number == '1' else many}"


def _price(match: Match[str]) -> str:
    sign, number = match[1].upper(), match[2]
    one, many, cent, cents = _CURRENCIES[_CURRENCY_CODES.get(sign, sign)]
    magnitude = match[3] or (match[4] and f" {_MAGNITUDES[match[4].lower()]}")
    if magnitude:
        return f"{cardinal(number)}{magnitude} {many}"
    whole, _, small = number.partition(".")
    if len(small) != 2:
        return _counted(number, one, many)
    if not int(small):
        return _counted(whole, one, many)
    rest = _counted(str(int(small)), cent, cents)
    if not int(whole.replace(",", "")):
        return rest
    return f"{_counted(whole, one, many)} and {rest}"


def _price_behind(match: Match[str]) -> str:
    sign = _CURRENCY_CODES.get(match[2], match[2])
    return _PRICE.sub(_price, f"{sign}{match[1]}")


def _phone(match: Match[str]) -> str:
    country = match[1] or ""
    groups = [match[2] or match[3], match[4], match[5]]
    spoken = _groups(groups)
    return f"plus {digits(country)}, {spoken}" if country else spoken


def _groups(groups: list[str]) -> str:
    return ", ".join(digits(group) for group in groups)


def _version(match: Match[str]) -> str:
    parts = (match[1] or match[2]).split(".")
    said = f" {'dot' if match[1] else 'point'} ".join(cardinal(part) for part in parts)
    return f"version {said}" if match[0].startswith("v") else said


def _mixed(match: Match[str]) -> str:
    whole, above, below = match[1], int(match[2]), int(match[3])
    if not 0 < above < below:
        return match[0]
    part = fraction(above, below)
    return f"{cardinal(whole)} and {'a ' + part[4:] if above == 1 else part}"


def _fraction(match: Match[str]) -> str:
    above, below = int(match[1]), int(match[2])
    if 0 < above < below and below in _SAID_DENOMINATORS:
        return fraction(above, below)
    return f"{cardinal(match[1])} {cardinal(match[2])}"


def _sized(match: Match[str]) -> str:
    number, space, unit = match.groups()
    if space and unit in _GLUED_UNITS:
        return match[0]
    return _counted(number, *_UNITS[unit])
