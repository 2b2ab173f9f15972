"""Planted faults as values: what is changed where, so that they can be tried on any machine."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "mutants"


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault: lines of a module, and what is put in their place.

    Attributes:
        module: Path of the module from the repository root.
        id: The same for as long as the text of the function around it is the same.
        line: First line that is replaced, from 1.
        was: The lines that are replaced.
        became: What is put there.
        statement: First and last line of the statement, by which tests that reach it are found.
        first: The first line that differs, as it was and as it became, to be read.
    """

    module: str
    id: str
    line: int
    was: tuple[str, ...]
    became: tuple[str, ...]
    statement: tuple[int, int]

    @property
    def first(self) -> tuple[str, str]:
        """The first line that differs, as it was and as it became."""
        was, became = (
            next((line for line in lines if line.strip()), "") for lines in (self.was, self.became)
        )
        return " ".join(was.split()), " ".join(became.split())

    def found_in(self, text: str) -> Mutant | None:
        """Return this fault where its lines are now; None where they are gone or there twice."""
        lines, size = text.split("\n"), len(self.was)
        starts = [
            start for start in range(len(lines)) if tuple(lines[start : start + size]) == self.was
        ]
        if self.line - 1 in starts:
            return self
        if len(starts) != 1 or not size:
            return None
        moved = starts[0] + 1 - self.line
        first, last = self.statement
        return replace(self, line=self.line + moved, statement=(first + moved, last + moved))

    def planted_in(self, text: str) -> str:
        """Return a module's text, in which this fault was found, with the fault in it."""
        lines = text.split("\n")
        start = self.line - 1
        return "\n".join([*lines[:start], *self.became, *lines[start + len(self.was) :]])


@dataclass(frozen=True, slots=True)
class Plan:
    """What can be tried: all mutants of each module by id, and those that were drawn."""

    ids: dict[str, list[str]]
    drawn: dict[str, list[Mutant]]

    def write(self, path: Path) -> None:
        """Write the plan down, for a machine without cosmic-ray."""
        drawn = {module: [asdict(m) for m in mutants] for module, mutants in self.drawn.items()}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"ids": self.ids, "drawn": drawn}) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Plan:
        """Read a plan."""
        fields = json.loads(path.read_text(encoding="utf-8"))
        drawn = {
            module: [_mutant(mutant) for mutant in mutants]
            for module, mutants in fields["drawn"].items()
        }
        return cls(fields["ids"], drawn)


def _mutant(fields: dict[str, object]) -> Mutant:
    lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    return Mutant(**{**fields, **lists})  # type: ignore[arg-type]
