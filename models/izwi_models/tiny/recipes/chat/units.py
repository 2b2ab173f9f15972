"""Converting one unit to another, exactly or to one decimal."""

from __future__ import annotations

from dataclasses import dataclass

from izwi_models.tiny.recipes.chat.turns import Turn
from izwi_models.tiny.recipes.chat.wording import Draw, say_number


@dataclass(frozen=True, slots=True)
class Conversion:
    """The factor between two units, and the range of amounts in questions."""

    unit: str
    other: str
    factor: float
    largest: int
    offset: float = 0.0


_BOTH_WAYS = (
    Conversion("hour", "minute", 60, 48),
    Conversion("minute", "second", 60, 90),
    Conversion("day", "hour", 24, 31),
    Conversion("week", "day", 7, 52),
    Conversion("year", "month", 12, 40),
    Conversion("dozen", "piece", 12, 40),
    Conversion("meter", "centimeter", 100, 99),
    Conversion("kilometer", "meter", 1000, 99),
    Conversion("kilogram", "gram", 1000, 99),
    Conversion("liter", "milliliter", 1000, 20),
    Conversion("foot", "inch", 12, 99),
    Conversion("yard", "foot", 3, 200),
    Conversion("pound", "ounce", 16, 60),
    Conversion("gallon", "quart", 4, 200),
)
_ABOUT = (
    Conversion("mile", "kilometer", 1.609344, 100),
    Conversion("kilometer", "mile", 1 / 1.609344, 100),
    Conversion("inch", "centimeter", 2.54, 100),
    Conversion("centimeter", "inch", 1 / 2.54, 100),
    Conversion("pound", "kilogram", 0.45359237, 100),
    Conversion("kilogram", "pound", 1 / 0.45359237, 100),
    Conversion("meter", "foot", 1 / 0.3048, 100),
    Conversion("foot", "meter", 0.3048, 100),
    Conversion("gallon", "liter", 3.785411784, 50),
    Conversion("degree Celsius", "degree Fahrenheit", 1.8, 100, 32),
    Conversion("degree Fahrenheit", "degree Celsius", 1 / 1.8, 212, -32 / 1.8),
)
CONVERSIONS = (
    *_BOTH_WAYS,
    *(Conversion(c.other, c.unit, 1 / c.factor, c.largest) for c in _BOTH_WAYS),
    *_ABOUT,
)
# Training draws hard conversions more often, and with larger amounts: a model memorizes a few
# amounts, but must learn to calculate for many.
_TRAINED = (*CONVERSIONS, *_ABOUT, *_ABOUT, *_ABOUT)
_FAR = 0.45  # share of trained amounts that may be ten times as large as tested ones
_EVENLY = 0.9  # share of trained amounts drawn evenly; the others often have few digits
_IRREGULAR = {"foot": "feet", "inch": "inches", "dozen": "dozen"}

_WORDINGS = (
    "how many {others} are (in|there in) {amount}",
    "(what is|what's|how much is|how much are) {amount} [converted|changed] (in|to|into) {others}",
    "[can you|could you|will you|please] (convert|change|turn) {amount} (to|into|in) {others}",
    "{amount} (in|to|into) {others}",
    "how many {others} (is|are|make|do I get from|are the same as) {amount}",
    "(tell me|give me|say|show me|I need|I want) {amount} in {others}",
    "[can you|could you|will you|please] (express|write|say|tell me) {amount} in {others}",
)
_THAT = "(that|it|this)"
_IN = (
    "(and|now|and now|okay, and|then|what about|and what about) in {others}",
    f"[and|now|okay, and] (what is|what's|how much is) {_THAT} in {{others}}",
    "[and|now|okay, and] how many {others} (is|are|make|makes) that",
    "[and|now|okay, and] how many {others} (is that|are that|does that make)",
    f"[and|now|then] (convert|change|turn|express) {_THAT} (to|into|in) {{others}}",
)


def units(draw: Draw) -> list[Turn]:
    """Draw one conversion, sometimes followed by the same amount in another unit."""
    conversion = draw.choice(CONVERSIONS if draw.held_out else _TRAINED)
    amount = draw.values(f"{conversion.unit} {conversion.other}", lambda: _amount(draw, conversion))
    spoken = f"{say_number(amount) if draw.spoken else amount} {plural(conversion.unit, amount)}"
    asked = draw.ask(_WORDINGS, amount=spoken, others=plural(conversion.other, 2))
    turns = [Turn(asked, answer(conversion, amount))]
    others = [c for c in CONVERSIONS if c.unit == conversion.unit and c.other != conversion.other]
    others = [c for c in others if _fits(c, amount)]
    if others and draw.random.random() < 0.25:
        second = draw.choice(others)
        turns.append(Turn(draw.ask(_IN, others=plural(second.other, 2)), answer(second, amount)))
    return turns


def answer(conversion: Conversion, amount: int) -> str:
    """Return the answer that converts an amount."""
    exact = amount * conversion.factor + conversion.offset
    rounded = round(exact, 1)
    whole = abs(rounded - round(rounded)) < 1e-6
    value = f"{round(rounded)}" if whole else f"{rounded:.1f}"
    if value.startswith("-"):
        value = "minus " + value[1:]
    verb = "is" if abs(exact - rounded) < 1e-6 else "is about"
    if amount != 1 and "degree" not in conversion.unit:
        verb = verb.replace("is", "are", 1)
    one = whole and abs(round(rounded)) == 1
    unit = plural(conversion.other, 1 if one else 2)
    return f"{amount} {plural(conversion.unit, amount)} {verb} {value} {unit}."


def plural(unit: str, amount: int) -> str:
    """Return the name of a unit after a number, in singular or plural."""
    if amount == 1:
        return unit
    if unit.startswith("degree "):
        return unit.replace("degree", "degrees", 1)
    return _IRREGULAR.get(unit, f"{unit}s")


def _amount(draw: Draw, conversion: Conversion) -> int:
    largest = conversion.largest
    chance = 1.0 if draw.held_out else draw.random.random()
    if chance < _FAR:
        largest *= 10
    if conversion.factor < 1 and conversion in CONVERSIONS[len(_BOTH_WAYS) : -len(_ABOUT)]:
        times = round(1 / conversion.factor)
        return times * draw.random.randint(1, largest)
    return draw.random.randint(1, largest) if chance < _EVENLY else draw.number(1, largest)


def _fits(conversion: Conversion, amount: int) -> bool:
    """Return whether the answer is within the range of trained answers."""
    if conversion in _ABOUT:
        return amount <= conversion.largest
    if conversion.factor > 1:
        return amount <= conversion.largest
    return (
        amount % round(1 / conversion.factor) == 0
        and amount * conversion.factor <= conversion.largest
    )
