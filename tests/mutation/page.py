"""docs/mutants.md: how many of the planted faults were noticed, and why the others were not."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from tests.mutation.areas import AREAS
from tests.mutation.mutants import ROOT
from tests.mutation.results import Results
from tests.mutation.trials import UNREACHED

PAGE = ROOT / "docs" / "mutants.md"
HEAD = Path(__file__).with_name("head.md")
REASONS = Path(__file__).with_name("survivors.toml")


def write_page(results: Results) -> None:
    """Write the page."""
    PAGE.write_text(_page(results.modules), encoding="utf-8")


def justified(module: str, survivor: dict[str, Any]) -> bool:
    """Whether survivors.toml has a reason for a survivor."""
    return bool(_reason(module, survivor))


@cache
def _reasons() -> dict[str, list[dict[str, Any]]]:
    return tomllib.loads(REASONS.read_text(encoding="utf-8"))


def _reason(module: str, survivor: dict[str, Any]) -> dict[str, Any]:
    change = (survivor["was"], survivor["became"])
    for reason in _reasons().get(module, []):
        if (_plain(reason["was"]), _plain(reason["became"])) == change:
            return reason
    return {}


def _plain(line: str) -> str:
    return " ".join(line.split())


def _page(modules: dict[str, dict[str, Any]]) -> str:
    lines = [
        HEAD.read_text(encoding="utf-8"),
        "| module | faults | tried | noticed | equivalent | score |",
        "|---|---|---|---|---|---|",
    ]
    explained: list[str] = []
    tried = [module for module in AREAS if _num_tried(modules.get(module, {}))]
    for module in tried:
        found = modules[module]
        survivors = found["survivors"]
        equivalent = sum(bool(_reason(module, s).get("equivalent")) for s in survivors)
        num_tried = _num_tried(found)
        noticed = num_tried - len(survivors)
        counted = num_tried - equivalent
        score = f"{100 * noticed / counted:.0f} %" if counted else ""
        cells = (module, found["mutants"], num_tried, noticed, equivalent, score)
        lines.append(f"| {' | '.join(map(str, cells))} |")
        if survivors:
            explained += ["", f"### {module}", "", *_lines(module, survivors)]
    rest = [module for module in AREAS if module not in tried]
    if rest:
        lines += ["", "Not tried yet: " + ", ".join(f"`{module}`" for module in rest) + "."]
    return "\n".join([*lines, "", "## What was not noticed, and why", *explained]) + "\n"


def _num_tried(found: dict[str, Any]) -> int:
    return len(found["outcomes"]) if "outcomes" in found else int(found.get("tried", 0))


def _lines(module: str, survivors: list[dict[str, Any]]) -> Iterator[str]:
    for survivor in survivors:
        reason = _reason(module, survivor)
        kind = "equivalent: " if reason.get("equivalent") else ""
        reached = "no test reaches it; " if survivor.get("outcome") == UNREACHED else ""
        why = reason.get("why", "no reason yet")
        became = survivor["became"] or "(gone)"
        yield f"* `{survivor['was']}` as `{became}`: {kind}{reached}{why}"
