"""Sentences with names of people and places, from WordNet, and with letters that are spelled.

The everyday text of `text.py` has hardly any name, and a talker that has not read a name guesses.
"""

from __future__ import annotations

import argparse
import random
import re
from collections.abc import Iterator
from pathlib import Path

WORDNET = Path("/usr/share/wordnet/data.noun")
_PEOPLE, _PLACES = "18", "15"  # numbers of WordNet's files
_NAME = re.compile(r"[A-Z][a-z]{2,}(?:_[A-Z][a-z]{2,}){0,2}")
_LONGEST = 100  # characters
_FIRST = (
    "Angela Sarah Emma Olivia Sophia Mia Charlotte Amelia Harper Evelyn Abigail Emily Elizabeth "
    "Sofia Avery Ella Scarlett Grace Chloe Victoria Riley Aria Lily Zoe Penelope Hannah Nora "
    "Ingrid Fatima Aisha Mei Yuki Priya Ananya Carmen Lucia Giulia Francesca Katarina Olga "
    "Liam Noah Oliver James Elijah William Henry Lucas Benjamin Theodore Jack Levi Alexander "
    "Jackson Mateo Daniel Michael Mason Sebastian Ethan Logan Owen Samuel Jacob Asher Aiden John "
    "Joseph Wyatt David Leo Luke Julian Hudson Grayson Matthew Ezra Gabriel Carter Isaac Jayden "
    "Luca Anthony Dylan Thomas Svetlana Giuseppe Giovanni Marco Pierre Jean Hans Klaus Dmitri Ivan "
    "Vladimir Mohammed Ahmed Omar Hiroshi Kenji Raj Arjun Carlos Diego Miguel Pablo Angelo Peter "
    "Paul Mark Andrew Steven Kevin Brian George Edward Ronald Timothy Jason Jeffrey Ryan Gary "
    "Mary Patricia Jennifer Linda Barbara Susan Jessica Karen Lisa Nancy Betty Sandra Margaret "
    "Ashley Kimberly Donna Carol Michelle Amanda Melissa Deborah Stephanie Rebecca Sharon Laura"
)
_LAST = (
    "Merkel Thompson Smith Johnson Williams Brown Jones Garcia Miller Davis Rodriguez Martinez "
    "Hernandez Lopez Gonzalez Wilson Anderson Thomas Taylor Moore Jackson Martin Lee Perez White "
    "Harris Sanchez Clark Ramirez Lewis Robinson Walker Young Allen King Wright Scott Torres "
    "Nguyen Hill Flores Green Adams Nelson Baker Hall Rivera Campbell Mitchell Carter Roberts "
    "Phillips Evans Turner Diaz Parker Cruz Edwards Collins Reyes Stewart Morris Morales Murphy "
    "Cook Rogers Gutierrez Ortiz Morgan Cooper Peterson Bailey Reed Kelly Howard Ramos Kim "
    "Ward Richardson Watson Brooks Chavez Wood Bennett Gray Mendoza Ruiz Hughes Price Alvarez "
    "Castillo Sanders Patel Myers Long Ross Foster Jimenez Verdi Rossi Ferrari Schmidt Schneider "
    "Fischer Weber Wagner Becker Hoffmann Dubois Moreau Laurent Petrov Ivanova Kowalski Novak "
    "Tanaka Suzuki Yamamoto Singh Gupta Khan Ali Hassan Cohen Levy Olsen Hansen Larsson Virtanen"
)
_VERBS = "met saw called visited thanked knows married helped followed asked paid"
_ABOUT = (
    "{a} {verb} {b}.|{a} {verb} {b} in {place}.|{a} and {b} live in {place}.|"
    "My name is {a}.|Hello, I am {a}.|This is {a} from {place}.|Is {a} there?|Please call {a}.|"
    "Have you read the book by {a}?|Dear {a}, thank you for your letter.|{a} was born in {place}.|"
    "We flew from {place} to {place}.|{place} is a long way from {place}.|Who is {a}?|"
    "The train to {place} leaves at noon.|It often rains in {place}.|{a} wrote to {b}.|"
    "I asked {a} about {place}.|{a} said that {b} was late.|Good morning, {a}.|"
    "Yesterday {a} came back from {place}.|{a}, {b} and {c} won the prize.|"
    "Tell {a} that I am coming.|{place} and {place} are cities.|{first} is here.|{first}!|"
    "The page is at {spelled} dot {spelled}.|Write it as {spelled}.|Go to W W W dot {word} dot com."
    "|He works for the {spelled}.|It is called {spelled}..|www|This is the www."
    "|{word} dot com.|Ask {first} or {first}."
)
_LETTERS = "A B C D E F G H I J K L M N O P Q R S T U V W X Y Z"


def wordnet_names(path: Path, file: str) -> list[str]:
    """Return the names that are instances in one of WordNet's files, each once."""
    found: dict[str, None] = {}
    for line in path.read_text("latin-1").splitlines():
        fields = line.split(" ")
        if line[:1] == " " or fields[1] != file or " @i " not in line:
            continue
        words = fields[4 : 4 + 2 * int(fields[3], 16) : 2]
        found |= {word.replace("_", " "): None for word in words if _NAME.fullmatch(word)}
    return list(found)


class Names:
    """Names to draw from."""

    def __init__(self, path: Path, seed: int):
        self._dice = random.Random(seed)
        self._first, self._last = _FIRST.split(), _LAST.split()
        self._people = [name for name in wordnet_names(path, _PEOPLE) if len(name) <= 24]
        self._places = [name for name in wordnet_names(path, _PLACES) if len(name) <= 24]

    def _person(self) -> str:
        if self._dice.random() < 0.4:
            return self._dice.choice(self._people)
        return f"{self._dice.choice(self._first)} {self._dice.choice(self._last)}"

    def _fill(self, match: re.Match[str]) -> str:
        dice = self._dice
        match match[1]:
            case "place":
                return dice.choice(self._places)
            case "verb":
                return dice.choice(_VERBS.split())
            case "first":
                return dice.choice(self._first)
            case "word":
                return dice.choice((*self._last, *self._first)).lower()
            case "spelled":
                return " ".join(dice.choices(_LETTERS.split(), k=dice.randint(2, 4)))
            case _:
                return self._person()

    def sentences(self) -> Iterator[str]:
        """Draw sentences without end."""
        while True:
            text = re.sub(r"\{(\w+)\}", self._fill, self._dice.choice(_ABOUT.split("|")))
            if len(text) <= _LONGEST:
                yield text


def main() -> None:
    """Write sentences with names, one a line, each once."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--number", type=int, default=25_000)
    parser.add_argument("--wordnet", type=Path, default=WORDNET)
    parser.add_argument("--seed", type=int, default=34)
    args = parser.parse_args()
    made: dict[str, None] = {}
    for text in Names(args.wordnet, args.seed).sentences():
        made[text] = None
        if len(made) == args.number:
            break
    args.out.write_text("\n".join(made) + "\n", "utf-8")


if __name__ == "__main__":
    main()
