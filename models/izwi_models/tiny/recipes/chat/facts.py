"""The list of facts (facts.tsv), and wordings of questions about them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from izwi_models.tiny.recipes.chat.turns import Turn
from izwi_models.tiny.recipes.chat.wording import Draw

_LIST = Path(__file__).with_name("facts.tsv")
_TELL = "(tell me|do you know|can you tell me|could you tell me|I want to know|please tell me)"


@dataclass(frozen=True, slots=True)
class Relation:
    """Wordings of questions and answers for one kind of fact.

    Attributes:
        asked: Patterns with the slot {x}, the subject.
        said: The answer with {x} and {y}.
        again: Follow-up questions after another of the same kind: "and of Spain?"; may be empty.
        backwards: Patterns with {y} and their answer, if {y} determines the subject.
    """

    asked: tuple[str, ...]
    said: str
    again: tuple[str, ...] = ()
    backwards: tuple[tuple[str, ...], str] | None = None


_AGAIN = ("(and|what about|how about|and what about|and how about|now|then|okay, and) {x}",)
RELATIONS = {
    "capital": Relation(
        (
            "(what is|what's|name) the capital [city] of {x}",
            f"{_TELL} the capital [city] of {{x}}",
            f"{_TELL} what the capital [city] of {{x}} is",
            "(what|which) city is the capital of {x}",
            "{x}'s capital [city] is what",
            "what is {x}'s capital [city]",
        ),
        "The capital of {x} is {y}.",
        (*_AGAIN, "and (of|the capital of) {x}"),
        (
            (
                "{y} is the capital of (which|what) country",
                "(which|what) country has the capital {y}",
            ),
            "{y} is the capital of {x}.",
        ),
    ),
    "continent": Relation(
        (
            "(which|what) continent is {x} (in|on)",
            "(on|in) (which|what) continent is {x}",
            f"{_TELL} (which|what) continent {{x}} is (in|on)",
        ),
        "{x} is in {y}.",
        _AGAIN,
    ),
    "currency": Relation(
        (
            "(what is|what's) the (currency|money) (of|in) {x}",
            "(which|what) (currency|money) (do they|do people) (use|have|pay with) in {x}",
            f"{_TELL} the currency of {{x}}",
        ),
        "The currency of {x} is the {y}.",
        _AGAIN,
    ),
    "language": Relation(
        (
            "(which|what) language (do they|do people|is) (speak|spoken) in {x}",
            "(what is|what's) the language of {x}",
            f"{_TELL} (which|what) language they speak in {{x}}",
        ),
        "In {x} people speak {y}.",
        _AGAIN,
    ),
    "symbol": Relation(
        (
            "(what is|what's) the [chemical] symbol (of|for) {x}",
            f"{_TELL} the [chemical] symbol (of|for) {{x}}",
            "(which|what) [chemical] symbol does {x} have",
        ),
        "The symbol of {x} is {y}.",
        _AGAIN,
    ),
    "number": Relation(
        (
            "(what is|what's) the atomic number of {x}",
            f"{_TELL} the atomic number of {{x}}",
            "(which|what) atomic number does {x} have",
        ),
        "The atomic number of {x} is {y}.",
        _AGAIN,
    ),
    "planet": Relation(
        (
            "(which|what) number is the planet {x}",
            "(which|what) planet from the sun is {x}",
            "(where|at which place) is {x} among the planets",
        ),
        "{x} is the {y} planet from the sun.",
        _AGAIN,
        (
            ("(which|what) is the {y} planet [from the sun]", "name the {y} planet [from the sun]"),
            "{x} is the {y} planet from the sun.",
        ),
    ),
    "young": Relation(
        (
            "(what is|what's) a (baby|young) {x} called",
            "(what do you call|what do we call) a (baby|young) {x}",
            "(what is|what's) the (name of a|name for a|word for a) (baby|young) {x}",
        ),
        "A young {x} is called a {y}.",
        ("(and|what about|and what about) a {x}",),
    ),
    "sound": Relation(
        (
            "(what|which) sound does a {x} make",
            "what noise does a {x} make",
            f"{_TELL} what sound a {{x}} makes",
        ),
        "A {x} {y}.",
        ("(and|what about|and what about) a {x}",),
    ),
    "legs": Relation(
        (
            "how many legs does a {x} have",
            "how many legs has a {x}",
            f"{_TELL} how many legs a {{x}} has",
        ),
        "A {x} has {y} legs.",
        ("(and|what about|and what about) a {x}",),
    ),
    "opposite": Relation(
        (
            "(what is|what's|name) the opposite of {x}",
            f"{_TELL} the opposite of {{x}}",
            "what is opposite to {x}",
        ),
        "The opposite of {x} is {y}.",
        _AGAIN,
    ),
    "plural": Relation(
        ("(what is|what's) the plural of {x}", f"{_TELL} the plural of {{x}}", "one {x}, two what"),
        "The plural of {x} is {y}.",
        _AGAIN,
    ),
    "past": Relation(
        ("(what is|what's) the past [tense] of {x}", f"{_TELL} the past [tense] of {{x}}"),
        "The past tense of {x} is {y}.",
        _AGAIN,
    ),
    "author": Relation(
        (
            "who wrote {x}",
            "who is the (author|writer) of {x}",
            f"{_TELL} who wrote {{x}}",
            "by whom is {x}",
        ),
        "{y} wrote {x}.",
        _AGAIN,
    ),
    "inventor": Relation(
        (
            "who invented the {x}",
            "who is the inventor of the {x}",
            f"{_TELL} who invented the {{x}}",
        ),
        "{y} invented the {x}.",
        ("(and|what about|and what about) the {x}",),
    ),
    "painter": Relation(
        ("who painted {x}", "who is the painter of {x}", f"{_TELL} who painted {{x}}"),
        "{y} painted {x}.",
        _AGAIN,
    ),
    "composer": Relation(
        ("who composed {x}", "who is the composer of {x}", f"{_TELL} who composed {{x}}"),
        "{y} composed {x}.",
        _AGAIN,
    ),
    "colour": Relation(
        (
            "(what|which) (color|colour) is {x}",
            "what is the (color|colour) of {x}",
            f"{_TELL} what (color|colour) {{x}} is",
        ),
        "The color of {x} is {y}.",
        _AGAIN,
    ),
    "mix": Relation(
        (
            "(what|which) (color|colour) do {x} make",
            "what do you get (if|when) you mix {x}",
            "what do {x} make [together]",
        ),
        "{x} make {y}.",
        _AGAIN,
    ),
    "made": Relation(
        (
            "what is {x} made (of|from)",
            "what do (you|people) make {x} (of|from|out of)",
            f"{_TELL} what {{x}} is made of",
        ),
        "It is made from {y}.",
        _AGAIN,
    ),
    "best": Relation(
        ("(what is|what's|which is|name) {x}", f"{_TELL} (what {{x}} is|{{x}})", "{x} is what"),
        "It is {y}.",
        _AGAIN,
    ),
    "year": Relation(
        (
            "(when was|what year was|in which year was|in what year was) {x}",
            f"{_TELL} (when|in which year) {{x}} was",
            "{x} was (when|in which year)",
        ),
        "That was in {y}.",
        _AGAIN,
    ),
    "count": Relation(
        (
            "how many {x} are there",
            "(what is|what's) the number of {x}",
            f"{_TELL} (the number of {{x}}|how many {{x}} there are)",
        ),
        "There are {y} {x}.",
        _AGAIN,
    ),
}


def read_facts() -> dict[str, dict[str, str]]:
    """Read the list: for each relation, the answer of each subject."""
    facts: dict[str, dict[str, str]] = {}
    for line in _LIST.read_text().splitlines()[1:]:
        relation, subject, answer = line.split("\t")
        facts.setdefault(relation, {})[subject] = answer
    return facts


FACTS = read_facts()
_EVERY = tuple((relation, subject) for relation, known in FACTS.items() for subject in known)


def facts(draw: Draw) -> list[Turn]:
    """Draw one fact, sometimes followed by another of its kind; all facts are equally frequent."""
    name, subject = draw.choice(_EVERY)
    relation, known = RELATIONS[name], FACTS[name]
    answer = known[subject]
    if relation.backwards and draw.random.random() < 0.25:
        asked, said = relation.backwards
        return [Turn(draw.ask(asked, y=answer), _said(said, subject, answer))]
    turns = [Turn(draw.ask(relation.asked, x=subject), _said(relation.said, subject, answer))]
    while relation.again and len(turns) < 3 and draw.random.random() < 0.2:
        subject = draw.choice(list(known))
        asked_again = draw.ask(relation.again, x=subject)
        turns.append(Turn(asked_again, _said(relation.said, subject, known[subject])))
    return turns


def _said(pattern: str, subject: str, answer: str) -> str:
    said = pattern.format(x=subject, y=answer)
    return said[0].upper() + said[1:]
