"""What became of the mutants that were tried, kept by mutant so that runs add up."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.mutation.mutants import ROOT, Mutant
from tests.mutation.trials import NOTICED

RESULTS = ROOT / "benchmarks" / "results" / "mutants.json"


class Results:
    """Outcomes of mutants, by module, in a JSON file."""

    def __init__(self, path: Path = RESULTS):
        self._path = path
        text = path.read_text(encoding="utf-8") if path.exists() else "{}"
        self.modules: dict[str, dict[str, Any]] = json.loads(text)

    def store_ids(self, module: str, ids: Iterable[str]) -> None:
        """Forget what was found of mutants that are not there any more."""
        known = set(ids)
        found = self.modules.get(module)
        if found is None or "outcomes" not in found:
            found = self.modules[module] = {"outcomes": {}, "survivors": []}
        found["mutants"] = len(known)
        found["outcomes"] = {i: out for i, out in sorted(found["outcomes"].items()) if i in known}
        found["survivors"] = [s for s in found["survivors"] if s["id"] in known]

    def add(self, mutant: Mutant, outcome: str, num_tests: int) -> None:
        """Write down what became of one."""
        found = self.modules[mutant.module]
        found["outcomes"][mutant.id] = outcome
        found["survivors"] = [s for s in found["survivors"] if s["id"] != mutant.id]
        if outcome != NOTICED:
            was, became = mutant.first
            survivor = {"id": mutant.id, "line": mutant.line, "was": was, "became": became}
            found["survivors"].append({**survivor, "outcome": outcome, "num_tests": num_tests})
            found["survivors"].sort(key=lambda s: (s["line"], s["became"]))

    def merge(self, path: Path) -> None:
        """Add what another run has found; where both tried a mutant, the other's word counts."""
        for module, other in json.loads(path.read_text(encoding="utf-8")).items():
            if not other.get("outcomes"):
                continue
            found = self.modules.get(module)
            if found is None or "outcomes" not in found:
                found = self.modules[module] = {"outcomes": {}, "survivors": []}
            found["mutants"] = other["mutants"]
            found["outcomes"] |= other["outcomes"]
            rest = [s for s in found["survivors"] if s["id"] not in other["outcomes"]]
            found["survivors"] = sorted([*rest, *other["survivors"]], key=lambda s: s["line"])

    def write(self) -> None:
        """Write the file."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        modules = {name: found for name, found in self.modules.items() if found.get("outcomes", 1)}
        self._path.write_text(json.dumps(modules, indent=1) + "\n", encoding="utf-8")
