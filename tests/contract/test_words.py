"""Names, help and docs use the words of docs/glossary.md, and none of those that it replaces."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from izwi_api.cli.main import app

ROOT = Path(__file__).parents[2]
FOLDERS = ("izwi", "models", "api", "web", "benchmarks", "tests")
# Texts that are spoken, and how the checkpoints were trained; the page that lists the old words.
LEFT_OUT = ("models/izwi_models/tiny/", "tests/contract/test_words.py")
PAGES_LEFT_OUT = ("docs/glossary.md", "docs/adr/0019-words.md", "CHANGELOG.md", "docs/plan.md")

# In no identifier, as a part of it.
PARTS = (
    "door",
    "doors",
    "lane",
    "lanes",
    "newcomer",
    "newcomers",
    "foretell",
    "foretold",
    "crumbs",
)
RUNS = (
    *(("under", "way"), ("comes", "again"), ("works", "beside"), ("sounds", "beside")),
    *(("first", "sound"), ("has", "sound"), ("with", "sound"), ("num", "sounds")),
)
# No identifier of its own, in the code: each has another name, or would have a second meaning.
NAMES = {
    "Where", "Life", "Coming", "Answerer", "Told", "News", "NarrowWeight", "DescribedBackend",
    "told", "num_told", "held", "coming", "newcomers", "TraceRecorder", "read_trace", "sound",
}  # fmt: skip
# No method's whole name: it says of what, or has the field's term. numpy's `take` is one.
BARE_VERBS = re.compile(r"^    (?:async )?def _?(take|begin|tell|keep|of)\b\(", re.MULTILINE)
BARE_VERBS_LEFT_OUT = ("izwi/ops/core.py", "izwi/backends/torch/ops.py", "izwi/backends/mlx/ops.py")
# In no comment, docstring, message or page.
PROSE = re.compile(
    r"\b(doors?|newcomers?|under way|foretells?|foretold|crumbs|narrow weights?|comes again"
    r"|waits? for company|in (any|whatever) company|who hangs)\b|`lanes?`|--doors|--record-trace",
    re.IGNORECASE,
)


def sources() -> list[Path]:
    found = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    return [p for p in found if not str(p.relative_to(ROOT)).startswith(LEFT_OUT)]


def pages() -> list[Path]:
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted(p for p in found if str(p.relative_to(ROOT)) not in PAGES_LEFT_OUT)


def parts_of(name: str) -> list[str]:
    return [part.lower() for part in re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z0-9]*|[a-z0-9]+", name)]


@cache
def forbidden(name: str) -> bool:
    parts = parts_of(name)
    runs = list(pairwise(parts))
    return name in NAMES or any(part in PARTS for part in parts) or any(run in runs for run in RUNS)


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def sources_with(is_found: Callable[[str], object]) -> list[Path]:
    """Sources with something in their text. Only these are tokenised, which takes long."""
    return [path for path in sources() if is_found(text_of(path))]


def has_forbidden_word(text: str) -> bool:
    return any(map(forbidden, set(re.findall(r"[^\W\d]\w*", text))))


def tokens_of(path: Path) -> list[tokenize.TokenInfo]:
    return list(tokenize.generate_tokens(io.StringIO(text_of(path)).readline))


@pytest.mark.parametrize(
    "name", ["DoorSpec", "num_doors", "_lane", "is_under_way", "told", "Where", "first_sound_s"]
)
def test_an_old_name_is_found(name: str) -> None:
    assert forbidden(name)


@pytest.mark.parametrize(
    "name", ["outdoor", "planet", "understand_way", "told_apart", "where", "soundfile"]
)
def test_a_name_that_contains_letters_of_one_is_not(name: str) -> None:
    assert not forbidden(name)


def test_identifiers() -> None:
    assert len(sources()) > 300
    found = [
        f"{path.relative_to(ROOT)}:{token.start[0]}: {token.string}"
        for path in sources_with(has_forbidden_word)
        for token in tokens_of(path)
        if token.type == tokenize.NAME and forbidden(token.string)
    ]
    assert not found


def test_a_method_says_what_it_does_to_what() -> None:
    places = [path for path in sources() if path.relative_to(ROOT).parts[0] in ("izwi", "api")]
    found = [
        f"{path.relative_to(ROOT)}: {match.group(1)}"
        for path in places
        for match in BARE_VERBS.finditer(text_of(path))
        if not str(path.relative_to(ROOT)).startswith(BARE_VERBS_LEFT_OUT)
    ]
    assert len(places) > 300
    assert not found


def test_modules() -> None:
    assert not [str(path) for path in sources() if forbidden(path.stem)]


def test_comments_and_strings() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{token.start[0]}: {match.group(0)}"
        for path in sources_with(PROSE.search)
        if path.relative_to(ROOT).parts[0] != "tests"
        for token in tokens_of(path)
        if token.type in (tokenize.COMMENT, tokenize.STRING)
        for match in PROSE.finditer(token.string)
    ]
    assert not found


def test_pages() -> None:
    assert len(pages()) > 15
    found = [
        f"{path.relative_to(ROOT)}: {match.group(0)}"
        for path in pages()
        for match in PROSE.finditer(path.read_text(encoding="utf-8"))
    ]
    assert not found


def verbs(command: Any, names: list[str]) -> Iterator[list[str]]:
    yield names
    for name, child in getattr(command, "commands", {}).items():
        yield from verbs(child, [*names, name])


def test_help_of_every_command() -> None:
    lines = list(verbs(get_command(app), []))
    assert ["voices", "export"] in lines
    shown = [CliRunner().invoke(app, [*names, "--help"]).output for names in lines]
    assert all("--help" in text for text in shown)
    words = [" ".join(re.sub(r"[^\w`-]+", " ", text).split()) for text in shown]
    assert not [match.group(0) for text in words for match in PROSE.finditer(text)]
