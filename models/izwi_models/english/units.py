"""Units of measurement after a number: "µg/m³", "km/h", "J/(mol·K)"."""

from __future__ import annotations

import re

# The minus of a power in `EXPRESSION`. No text has this hyphen then.
UNIT_MINUS = "\u2010"
_PREFIXES = {
    "k": "kilo",
    "M": "mega",
    "G": "giga",
    "T": "tera",
    "P": "peta",
    "h": "hecto",
    "d": "deci",
    "c": "centi",
    "m": "milli",
    "u": "micro",
    "n": "nano",
    "p": "pico",
}
# Unit, its name, and the prefixes it is written with; "-" if it is not written without one.
_SCALED = (
    *(("m", "meter", "kdcmun"), ("g", "gram", "kmunp"), ("s", "second", "mun")),
    *(("L", "liter", "hdcmu"), ("l", "liter", "hdcmu"), ("t", "tonne", "MG")),
    *(("W", "watt", "kMGTmu"), ("Wh", "watt hour", "kMGT"), ("J", "joule", "kMGm")),
    *(
        ("V", "volt", "kMmu"),
        ("A", "amp", "kmu"),
        ("Ah", "amp hour", "km"),
        ("VA", "volt amp", "k"),
    ),
    *(("Pa", "pascal", "hkMG"), ("bar", "bar", "-m"), ("N", "newton", "kMm")),
    *(("Nm", "newton meter", "k"), ("eV", "electronvolt", "kMGTm"), ("mol", "mole", "kmun")),
    *(
        ("F", "farad", "-munp"),
        ("H", "henry", "-mun"),
        ("T", "tesla", "-mu"),
        ("ohm", "ohm", "m"),
    ),
    *(("Sv", "sievert", "mu"), ("Gy", "gray", "m"), ("Bq", "becquerel", "kMG")),
    *(
        ("B", "byte", "-kMGTP"),
        ("bit", "bit", "-kMGT"),
        ("b", "bit", "-kMGT"),
        ("cal", "calorie", "k"),
    ),
    *(("bps", "bit per second", "-kMGT"), ("m3", "cubic meter", "")),
)
_SAME = {  # singular and plural
    "%": "percent",
    "Hz": "hertz",
    "kHz": "kilohertz",
    "MHz": "megahertz",
    "GHz": "gigahertz",
    "THz": "terahertz",
    "‰": "per thousand",
    "ppm": "parts per million",
    "lx": "lux",
    "ppb": "parts per billion",
    "ppt": "parts per trillion",
    "hp": "horsepower",
    "K": "kelvin",
    "mmHg": "millimeters of mercury",
}
_OTHERS = {
    "mi": "mile",
    "yd": "yard",
    "lb": "pound",
    "oz": "ounce",
    "nmi": "nautical mile",
    "gal": "gallon",
    "ha": "hectare",
    "mcg": "microgram",
    "IU": "international unit",
    "min": "minute",
    "sec": "second",
    "h": "hour",
    "hr": "hour",
    "yr": "year",
    "wk": "week",
    "mo": "month",
    "°C": "degree Celsius",
    "°F": "degree Fahrenheit",
    "°": "degree",
    "dB": "decibel",
    "px": "pixel",
    "MP": "megapixel",
    "tsp": "teaspoon",
    "tbsp": "tablespoon",
    "kn": "knot",
    "fl oz": "fluid ounce",
    "lm": "lumen",
    "ly": "light year",
    "atm": "atmosphere",
    "cc": "cubic centimeter",
    "KiB": "kibibyte",
    "MiB": "mebibyte",
    "GiB": "gibibyte",
    "TiB": "tebibyte",
}
_IRREGULAR = {
    "kohm": ("kilohm", "kilohms"),
    "Mohm": ("megohm", "megohms"),
    "ft": ("foot", "feet"),
    "in": ("inch", "inches"),
    "mph": ("mile per hour", "miles per hour"),
    "mpg": ("mile per gallon", "miles per gallon"),
    "kph": ("kilometer per hour", "kilometers per hour"),
    "bpm": ("beat per minute", "beats per minute"),
    "rpm": ("revolution per minute", "revolutions per minute"),
    "fps": ("frame per second", "frames per second"),
    "dpi": ("dot per inch", "dots per inch"),
    "psi": ("pound per square inch", "pounds per square inch"),
    "dBA": ("decibel A", "decibels A"),
    "VAC": ("volt A C", "volts A C"),
    "VDC": ("volt D C", "volts D C"),
}
_ALIASES = {
    "lbs": "lb",
    "hrs": "hr",
    "mins": "min",
    "secs": "sec",
    "yrs": "yr",
    "wks": "wk",
    "usec": "us",
    "kgs": "kg",
    "kms": "km",
    "KG": "kg",
    "Kg": "kg",
    "KM": "km",
    "Km": "km",
    "KB": "kB",
    "MPH": "mph",
    "RPM": "rpm",
    "BPM": "bpm",
    "mbps": "Mbps",
    "gbps": "Gbps",
    "KWh": "kWh",
    "kwh": "kWh",
    "gb": "GB",
    "mb": "MB",
    "tb": "TB",
    "khz": "kHz",
    "mhz": "MHz",
    "ghz": "GHz",
}
# Words that are read as they are, after "/" only.
_RATES = frozenset(
    re.findall(
        r"\w+", "second minute hour day night week month year person people capita head user"
    )
)
_LENGTHS = frozenset(("m", "km", "dm", "cm", "mm", "um", "nm", "ft", "in", "mi", "yd"))
_AREAS = {"2": "square", "3": "cubic"}
_POWERS = {"2": "squared", "3": "cubed"}
# After a space these are usually something else: "grade 5 A", "5 in all".
_GLUED = frozenset(("A", "in", "us"))
# After a space and before a name these are directions or initials: "100 W Main Street".
_LETTERS = frozenset(("W", "V", "L"))
_NAME = re.compile(r" [A-Z][a-z]")
# After a space these are units only at an end, or before a word like "of".
_RARE = frozenset(("N", "J", "K", "t"))
_AFTER_RARE = re.compile(
    r"\s*$|[.,;:!?)]|\s(?:and|are|as|at|by|for|force|from|in|is|of|on|or|the|to|was|with|when)\b"
)
_FACTOR = re.compile(r"([°%‰]?[A-Za-z]*?)(\u2010?[123])?$")
_WORD = r"[A-Za-z]{1,6}"
# A possible unit: one, or some with powers between "·", "*" and "/", or a space.
EXPRESSION = (
    r"(?:fl oz\b|(?:sq|cu) (?:ft|in|mi|yd|k?m|cm)\b|"
    rf"(?:[°%‰][CF]?\b|{_WORD})(?:\u2010?[123]\b)?|[%°‰])"
    rf"(?:[·⋅*/](?:\({_WORD}[123]?(?:[·⋅*]{_WORD}[123]?)*\)|{_WORD}(?:\u2010?[123]\b)?)"
    rf"| {_WORD}\u2010[123]\b)*"
)
# Units that are words for the eye only, also without a number.
_BARE = "km|kg|cm|mph|kph|kWh|lbs|hrs|mins|secs|yrs|wks"
_BARE_UNIT = re.compile(
    rf"(?<![\w/.@-])(?:({_BARE})(?:/h)?|((?:km|cm|mm|ft|mi)[23])|per (m[23]))\b(?![./@\w-]\w)"
)
_HAS_BARE = re.compile(rf"{_BARE}|[mti][23]|per m")  # the others have a power
_PER_DISTANCE = re.compile(r"(?<=[A-Za-z])/100 ?km\b")
_PER_AREA = re.compile(r"(?<=[a-z])/([kc]?m[23]|ft2)\b(?![-/.]?\w)")


def _names() -> dict[str, tuple[str, str]]:
    names = {unit: (name, name) for unit, name in _SAME.items()}
    for unit, name, prefixes in _SCALED:
        for prefix in ("" if prefixes[:1] == "-" else "-") + prefixes:
            if prefix != "-":
                names[prefix + unit] = _plural(_PREFIXES[prefix] + name)
        if prefixes[:1] != "-":
            names[unit] = _plural(name)
    names |= {unit: _plural(name) for unit, name in _OTHERS.items()} | _IRREGULAR
    for unit in ("ft", "in", "mi", "yd", "m", "km", "cm"):
        one, many = names[unit]
        names[f"sq {unit}"] = f"square {one}", f"square {many}"
        names[f"cu {unit}"] = f"cubic {one}", f"cubic {many}"
    return names | {alias: names[unit] for alias, unit in _ALIASES.items()}


def _plural(name: str) -> tuple[str, str]:
    first, per, rest = name.partition(" per ")
    if first == "henry":
        return name, "henries"
    if first.startswith("degree"):
        return name, name.replace("degree", "degrees")
    return name, f"{first}s{per}{rest}"


# Singular and plural by unit.
UNITS = _names()


def rate_words(expression: str) -> str | None:
    """Say what follows "per": "kWh" is "kilowatt hour", "month" stays. None if it is no unit."""
    return expression if expression in _RATES else unit_words(expression, is_one=True)


def unit_words(expression: str, *, is_one: bool) -> str | None:
    """Say a unit: "m/s2" is "meters per second squared". None if it is not a unit.

    Args:
        expression: A match of `EXPRESSION`.
        is_one: The number before it is 1.
    """
    if expression in UNITS:
        return UNITS[expression][0 if is_one else 1]
    above: list[str] = []
    below: list[str] = []
    for number, product in enumerate(expression.split("/")):
        for factor in re.split(r"[·⋅* ]", product.strip("()")):
            match = _FACTOR.match(factor)
            is_rate = number > 0 and factor in _RATES
            if not is_rate and (match is None or match[1] not in UNITS):
                return None
            is_below = number > 0 or "\u2010" in factor
            (below if is_below else above).append(factor.replace("\u2010", ""))
    if not above:
        return None
    last = _factor(above[-1], 0 if is_one else 1)
    words = " ".join([*(_factor(factor, 0) for factor in above[:-1]), last])
    return f"{words} per {' '.join(_factor(f, 0) for f in below)}" if below else words


def _factor(factor: str, form: int) -> str:
    """Say one unit with its power, in the singular (0) or plural (1)."""
    if factor in _RATES:
        return factor
    unit, power = (factor[:-1], factor[-1]) if factor[-1] in "123" else (factor, "1")
    name = UNITS[unit][form]
    if power == "1":
        return name
    return f"{_AREAS[power]} {name}" if unit in _LENGTHS else f"{name} {_POWERS[power]}"


def is_unit(expression: str, space: str, after: str) -> bool:
    """Whether what follows a number is a unit.

    Args:
        expression: A match of `EXPRESSION`.
        space: What is between it and the number.
        after: The text after it.
    """
    if space and (expression in _GLUED or (expression in _LETTERS and _NAME.match(after))):
        return False
    if space and expression in _RARE and not _AFTER_RARE.match(after):
        return False
    if expression == "K" and not space:
        return False  # "10K" is ten thousand
    return unit_words(expression, is_one=False) is not None


def say_consumption(text: str) -> str:
    """Write what is used on a distance: "6 L/100 km"."""
    return _PER_DISTANCE.sub(" per one hundred kilometers", text)


def say_bare_units(text: str) -> str:
    """Write units without a number as words."""
    if _HAS_BARE.search(text) is None:
        return text
    text = _PER_AREA.sub(lambda m: f" per {_factor(m[1], 0)}", text)
    return _BARE_UNIT.sub(_bare, text)


def _bare(match: re.Match[str]) -> str:
    if match[3]:
        return f"per {_factor(match[3], 0)}"
    is_per = match.string[: match.start()].endswith("per ")
    return unit_words(match[0], is_one=is_per) or match[0]
