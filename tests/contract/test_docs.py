"""The documents quote the code as it is, and name files that exist."""

from __future__ import annotations

import inspect
import pkgutil
import re
import textwrap
import tomllib
from pathlib import Path

import pytest

from izwi.engine.engine import Engine

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["README.md", "ARCHITECTURE.md"])
def test_the_quoted_loop_is_the_loop(page: str) -> None:
    quoted = (ROOT / page).read_text(encoding="utf-8")
    assert textwrap.dedent(inspect.getsource(Engine.step)).strip() in quoted


def test_the_loop_is_the_first_method_of_the_engine() -> None:
    methods = [name for name, value in vars(Engine).items() if inspect.isfunction(value)]
    assert methods[0] == "step"


def test_architecture_names_every_file_of_izwi_and_every_folder_of_the_api() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    rooms = [path for path in (ROOT / "izwi").iterdir() if path.name != "audio"]
    files = [path.name for path in (ROOT / "izwi").glob("*.py")]
    files += [path.name for room in rooms for path in room.glob("*.py")]
    folders = [
        f"{path.name}/"
        for room in ("izwi", "api/izwi_api")
        for path in (ROOT / room).iterdir()
        if (path / "__init__.py").is_file()
    ]
    names = set(files + folders) - {"__init__.py"}
    assert len(names) > 40
    missing = sorted(name for name in names if name not in page)
    assert not missing, "name them in a table of ARCHITECTURE.md"


PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "benchmarks" / "NOTES.md"]
GUIDES = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")
# A file, or a folder in back quotes; not a part of a URL.
PATH = re.compile(
    r"(?<![\w/.:-])((?:[\w*-]+/)*[\w*-]+\.(?:py|md|toml|txt)|(?<=`)(?:[\w*-]+/)+(?=`))"
)
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
# Names are relative to one of these, or to a folder that the same section names before.
BASES = ("", "izwi", "api/izwi_api", "models/izwi_models")
LINK = re.compile(r"\]\((?!https?:)([^)#]*[./][^)#]*)(?:#[^)]*)?\)")


def stale_paths(page: str) -> list[str]:
    """Return the paths in a page's text that do not exist."""
    stale = []
    for section in re.split(r"^#+ |^\*\*", FENCE.sub("", page), flags=re.MULTILINE):
        folders = {ROOT / base for base in BASES}
        for name in PATH.findall(section):
            found = [path for folder in folders for path in folder.glob(name)]
            if not found:
                stale.append(name)
            folders.update(path if path.is_dir() else path.parent for path in found)
    return stale


@pytest.mark.parametrize("page", GUIDES)
def test_every_path_in_a_guide_exists(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert len(PATH.findall(FENCE.sub("", text))) > 20
    assert not stale_paths(text)


@pytest.mark.parametrize(
    ("text", "stale"),
    [
        ("`scheduler/deadline.py`, `ordered.py`, `cache/`", []),
        ("`scheduler/deadline.py`, `radix.py`, `doors/`", ["radix.py", "doors/"]),
        ("`cache/radix.py`\n## Next\n`tiers.py`", ["tiers.py"]),
        ("docs/glossary.md and docs/words.md", ["docs/words.md"]),
        ("`tests/golden/make_*.py`, `tests/golden/made_*.py`", ["tests/golden/made_*.py"]),
        ("http://127.0.0.1:8000/none.md, `/v1/models/`\n```\nnone.py\n```", []),
    ],
)
def test_a_path_that_does_not_exist_is_found(text: str, stale: list[str]) -> None:
    assert stale_paths(text) == stale


@pytest.mark.parametrize("page", GUIDES)
def test_every_name_of_ours_in_a_guide_can_be_imported(page: str) -> None:
    text = FENCE.sub("", (ROOT / page).read_text(encoding="utf-8"))
    for name in re.findall(r"`(izwi(?:_\w+)?(?:\.\w+)+)`", text):
        pkgutil.resolve_name(name)


@pytest.mark.parametrize("page", sorted(str(p.relative_to(ROOT)) for p in PAGES))
def test_every_link_of_a_page_leads_to_a_file(page: str) -> None:
    path = ROOT / page
    text = re.sub(r"`[^`]*`", "", FENCE.sub("", path.read_text(encoding="utf-8")))
    assert [link for link in LINK.findall(text) if not (path.parent / link).exists()] == []


def test_the_index_lists_every_decision_with_its_title_and_status() -> None:
    folder = ROOT / "docs" / "adr"
    rows = []
    for path in sorted(folder.glob("[0-9]*.md")):
        title, _, status = path.read_text(encoding="utf-8").splitlines()[:3]
        number, name = re.fullmatch(r"# (\d+)\. (.+)", title).groups()
        state = re.fullmatch(
            r"Status: ((?:accepted|replaced by \d+), \d{4}-\d\d-\d\d)", status
        ).group(1)
        assert path.name.startswith(f"{int(number):04}-")
        rows.append(f"| {number} | [{name}]({path.name}) | {state} |")
    index = (folder / "README.md").read_text(encoding="utf-8")
    assert [line for line in index.splitlines() if re.match(r"\| \d", line)] == rows


def test_changelog_has_versions_and_kinds_of_changes() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## (.+)$", text, re.M)
    assert versions[0] == "Unreleased"
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ - \d{4}-\d\d-\d\d", one) for one in versions[1:])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert versions[1].startswith(f"{project['version']} - ")
    kinds = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"]
    for section in re.split(r"^## ", text, flags=re.M)[1:]:
        found = re.findall(r"^### (.+)$", section, re.M)
        assert found == [kind for kind in kinds if kind in found]
