"""docs/mutants.md: how many of the planted faults were noticed, and why the others were not."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import TestOutcome, WorkerOutcome

from tests.mutation.areas import AREAS
from tests.mutation.sessions import ROOT, read_digest, session_path

PAGE = ROOT / "docs" / "mutants.md"
RESULTS = ROOT / "benchmarks" / "results" / "mutants.json"
HEAD = Path(__file__).with_name("head.md")
REASONS = Path(__file__).with_name("survivors.toml")


@dataclass(frozen=True, slots=True)
class Change:
    """One line, and what became of it."""

    was: str
    became: str


@dataclass(frozen=True, slots=True)
class Survivor:
    """A fault that was not noticed, and why."""

    change: Change
    equivalent: bool
    why: str


def write_page() -> None:
    """Bring the results up to date with the sessions that are there, and write the page."""
    results = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for module in AREAS:
        if session_path(module).exists() and (found := _result(module)):
            results[module] = found
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(_page(results), encoding="utf-8")


def _result(module: str) -> dict[str, Any] | None:
    """What a session has come to; None if nothing was tried yet."""
    digest = read_digest(module)
    assert digest is not None
    with use_db(session_path(module), WorkDB.Mode.open) as session:
        outcomes = [result for _, result in session.results]
        num_pending = len(session.pending_work_items)
    tried = [result for result in outcomes if result.worker_outcome is WorkerOutcome.NORMAL]
    survived = [result for result in tried if result.test_outcome is TestOutcome.SURVIVED]
    changes = sorted(_changed(result.diff or "") for result in survived)
    return (
        {
            "source": digest.source,
            "mutants": len(tried) + num_pending,
            "tried": len(tried),
            "noticed": len(tried) - len(survived),
            "survivors": [asdict(Change(was, became)) for _, was, became in changes],
        }
        if tried
        else None
    )


def _changed(diff: str) -> tuple[int, str, str]:
    line, was, became = [*diff.split("\n"), "", "", ""][:3]
    return int(line or 0), _plain(was), _plain(became)


def _plain(line: str) -> str:
    return " ".join(line.split())


def _page(results: dict[str, Any]) -> str:
    reasons = tomllib.loads(REASONS.read_text(encoding="utf-8"))
    lines = [
        HEAD.read_text(encoding="utf-8"),
        "| module | faults | tried | noticed | equivalent | score |",
        "|---|---|---|---|---|---|",
    ]
    explained: list[str] = []
    for module in AREAS:
        if module in results:
            result = results[module]
            survivors = list(_survivors(result["survivors"], reasons.get(module, [])))
            equivalent = sum(survivor.equivalent for survivor in survivors)
            counted = result["tried"] - equivalent
            score = f"{100 * result['noticed'] / counted:.0f} %" if counted else ""
            cells = (
                module,
                result["mutants"],
                result["tried"],
                result["noticed"],
                equivalent,
                score,
            )
            lines.append(f"| {' | '.join(map(str, cells))} |")
            if survivors:
                explained += ["", f"### {module}", "", *map(_line, survivors)]
    rest = [module for module in AREAS if module not in results]
    lines += (
        ["", "Not tried yet: " + ", ".join(f"`{module}`" for module in rest) + "."] if rest else []
    )
    return "\n".join([*lines, "", "## What was not noticed, and why", *explained]) + "\n"


def _survivors(changes: list[dict[str, str]], known: list[dict[str, Any]]) -> Iterator[Survivor]:
    for fields in changes:
        change = Change(**fields)
        same = [r for r in known if Change(_plain(r["was"]), _plain(r["became"])) == change]
        reason = same[0] if same else {}
        yield Survivor(
            change, bool(reason.get("equivalent")), str(reason.get("why", "no reason yet"))
        )


def _line(survivor: Survivor) -> str:
    kind = "equivalent: " if survivor.equivalent else ""
    return (
        f"* `{survivor.change.was}` as `{survivor.change.became or '(gone)'}`: {kind}{survivor.why}"
    )
