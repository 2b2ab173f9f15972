"""Sums, differences, products and quotients, and follow-up questions about the last result."""

from __future__ import annotations

from collections.abc import Callable

from izwi_models.tiny.recipes.chat.turns import Turn
from izwi_models.tiny.recipes.chat.wording import Draw

LARGEST = 9999

_WHAT = (
    "(what is|what's|how much is|how much are|tell me|calculate|compute|work out|give me|"
    "can you tell me|do you know|I need to know|could you work out)"
)
_PLUS = (
    f"{_WHAT} {{a}} (plus|and|added to) {{b}}",
    "[can you|could you|will you] add {a} (and|to|with) {b}",
    "(what is|what's|give me|tell me) the sum of {a} and {b}",
    "{a} plus {b}",
    "{a} + {b}",
    "(what is|what's|calculate) {a} + {b}",
    "what do you get (if|when) you add {a} (and|to) {b}",
    "what (does|do) {a} plus {b} (make|give)",
    "if I have {a} and get {b} more, how many do I have",
)
_MINUS = (
    f"{_WHAT} {{a}} (minus|less) {{b}}",
    "[can you|could you|will you] (subtract|take) {b} from {a}",
    "(what is|what's|give me|tell me) the difference (of|between) {a} and {b}",
    "{a} minus {b}",
    "{a} - {b}",
    "(what is|what's|calculate) {a} - {b}",
    "what is left (if|when) you take {b} from {a}",
    "if I have {a} and (lose|give away|spend) {b}, how many (do I have|are left)",
)
_TIMES = (
    f"{_WHAT} {{a}} (times|multiplied by) {{b}}",
    "[can you|could you|will you] multiply {a} (by|with|and) {b}",
    "(what is|what's|give me|tell me) the product of {a} and {b}",
    "{a} times {b}",
    "{a} * {b}",
    "{a} x {b}",
    "(what is|what's|calculate) {a} (*|x) {b}",
    "what do you get (if|when) you multiply {a} (by|and) {b}",
)
_DIVIDED = (
    f"{_WHAT} {{a}} (divided by|over) {{b}}",
    "[can you|could you|will you] divide {a} by {b}",
    "how (often|many times) does {b} go into {a}",
    "{a} divided by {b}",
    "{a} / {b}",
    "(what is|what's|calculate) {a} / {b}",
    "what do you get (if|when) you divide {a} by {b}",
)
_SQUARED = (
    f"{_WHAT} {{a}} squared",
    "(what is|what's|give me|tell me) the square of {a}",
    "{a} squared",
    "square {a}",
)
_DOUBLED = (
    f"{_WHAT} (twice|double|two times) {{a}}",
    "[can you|could you|will you] (double|take twice) {a}",
    "(what is|what's|tell me|give me) the double of {a}",
)
_HALVED = (
    f"{_WHAT} [the|one] half of {{a}}",
    "(what is|what's|how much is) {a} (halved|cut in half)",
    "[can you|could you|will you] (halve {a}|cut {a} in half|take half of {a})",
)

_AND = "(and|and what is|and what's|now|okay, and|what about|what is)"
_THAT = "(that|it|this)"
_MORE_PLUS = (
    f"{_AND} {_THAT} plus {{b}}",
    f"[now|then|and] add {{b}} [to {_THAT}]",
    "plus {b}",
    "and plus {b}",
)
_MORE_MINUS = (
    f"{_AND} {_THAT} minus {{b}}",
    f"[now|then|and] (take away|subtract) {{b}} [from {_THAT}]",
    "minus {b}",
    "and minus {b}",
)
_MORE_TWICE = (
    f"{_AND} (twice|double|two times) {_THAT}",
    f"[now|then|and] double {_THAT}",
    "[and|now|then|okay, and] times two",
    "(and|and what is|now|okay, and|what is) twice as much",
    f"[now|then|and] multiply {_THAT} (by|with) two",
)
_MORE_HALF = (
    f"{_AND} half of {_THAT}",
    f"[now|then|and] halve {_THAT}",
    "[and|now|then|okay, and] divided by two",
    "(and|and what is|now|okay, and|what is) half as much",
    f"[now|then|and] divide {_THAT} by two",
    f"[now|then|and] (cut {_THAT} in half|take half of {_THAT})",
)


def arithmetic(draw: Draw) -> list[Turn]:
    """Draw one calculation, sometimes with follow-up questions about its result."""
    ask, result = draw.choice(_FIRST if draw.held_out else _TRAINED)(draw)
    turns = [ask]
    while len(turns) < 4 and draw.random.random() < 0.35:
        following = _go_on(draw, result)
        if following is None:
            break
        turn, result = following
        turns.append(turn)
    return turns


def _plus(draw: Draw) -> tuple[Turn, int]:
    a, b = draw.values("plus", lambda: (draw.number(0, LARGEST), draw.number(0, LARGEST)))
    return Turn(draw.ask(_PLUS, a=a, b=b), f"{a} plus {b} is {a + b}."), a + b


def _minus(draw: Draw) -> tuple[Turn, int]:
    a, b = draw.values("minus", lambda: (draw.number(0, LARGEST), draw.number(0, LARGEST)))
    if a < b and draw.random.random() < 0.8:
        a, b = b, a
    return Turn(draw.ask(_MINUS, a=a, b=b), f"{a} minus {b} is {_signed(a - b)}."), a - b


def _times(draw: Draw) -> tuple[Turn, int]:
    a, b = draw.values("times", lambda: _factors(draw))
    return Turn(draw.ask(_TIMES, a=a, b=b), f"{a} times {b} is {a * b}."), a * b


def _divided(draw: Draw) -> tuple[Turn, int]:
    a, b = draw.values("divided", lambda: _factors(draw, least=1))
    return Turn(draw.ask(_DIVIDED, a=a * b, b=b), f"{a * b} divided by {b} is {a}."), a


def _squared(draw: Draw) -> tuple[Turn, int]:
    a = draw.number(0, 99)
    return Turn(draw.ask(_SQUARED, a=a), f"{a} squared is {a * a}."), a * a


def _doubled(draw: Draw) -> tuple[Turn, int]:
    a = draw.values("doubled", lambda: draw.number(0, LARGEST))
    return Turn(draw.ask(_DOUBLED, a=a), f"Twice {a} is {2 * a}."), 2 * a


def _halved(draw: Draw) -> tuple[Turn, int]:
    a = draw.values("halved", lambda: draw.number(0, LARGEST // 2))
    return Turn(draw.ask(_HALVED, a=2 * a), f"Half of {2 * a} is {a}."), a


def _factors(draw: Draw, least: int = 0) -> tuple[int, int]:
    """Draw two factors: the second has at most two digits, the product at most four."""
    b = draw.number(least, 99)
    a = draw.number(least, LARGEST // max(b, 1) if b < 10 else 99)
    return (a, b) if draw.random.random() < 0.5 or least else (b, a)


_FIRST: tuple[Callable[[Draw], tuple[Turn, int]], ...] = (
    _plus,
    _plus,
    _minus,
    _minus,
    _times,
    _times,
    _divided,
    _squared,
    _doubled,
    _halved,
)
# Training draws questions that are hard to learn more often.
_TRAINED = (*_FIRST, _times, _times, _times, _divided, _divided, _halved)


def _go_on(draw: Draw, last: int) -> tuple[Turn, int] | None:
    """Draw a question about the last result; None if there is no simple one."""
    if not 0 <= last <= LARGEST:
        return None
    kind = draw.random.randrange(4)
    if kind == 0:
        b = draw.number(0, 999)
        return Turn(draw.ask(_MORE_PLUS, b=b), f"{last} plus {b} is {last + b}."), last + b
    if kind == 1:
        b = draw.number(0, min(last, 999))
        return Turn(draw.ask(_MORE_MINUS, b=b), f"{last} minus {b} is {last - b}."), last - b
    if kind == 2:
        return Turn(draw.ask(_MORE_TWICE), f"Twice {last} is {2 * last}."), 2 * last
    if last % 2 == 0:
        return Turn(draw.ask(_MORE_HALF), f"Half of {last} is {last // 2}."), last // 2
    return None


def _signed(value: int) -> str:
    return f"minus {-value}" if value < 0 else str(value)
