"""Adding a model is one folder and one line: nothing outside `models/` names a family."""

from __future__ import annotations

import re
import tokenize
from pathlib import Path

import izwi_models
from izwi_models import FAMILIES

ROOT = Path(__file__).parents[2]
FOLDER = Path(izwi_models.__file__).parent


def family_folders() -> list[str]:
    found = sorted(FOLDER.glob("*/*.py"))
    return sorted({p.parent.name for p in found if re.search(r"^FAMILY = ", p.read_text(), re.M)})


def test_each_family_is_one_folder_and_one_line() -> None:
    folders = family_folders()
    assert len(folders) == len(FAMILIES) >= 5
    lines = (FOLDER / "__init__.py").read_text().splitlines()
    for name in folders:
        assert lines.count(f"    {name}.FAMILY,") == 1


def test_the_engine_and_the_api_servers_name_no_family() -> None:
    word = re.compile("|".join(re.sub("_.*", "", name) for name in family_folders()), re.I)
    assert word.pattern == "borrowed|lfm2|qwen3|qwen3|qwen3|qwen3|qwen3"
    found = []
    for room in ("izwi", "api"):
        for path in sorted((ROOT / room).rglob("*.py")):
            if not word.search(path.read_text(encoding="utf-8")):
                continue  # tokenising all takes long
            with path.open("rb") as file:
                names = [t for t in tokenize.tokenize(file.readline) if t.type == tokenize.NAME]
            found += [f"{path}:{t.start[0]}: {t.string}" for t in names if word.search(t.string)]
    assert not found
