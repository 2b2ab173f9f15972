"""Back up, wipe, restore: voices and keys come back; codes of refusals are documented."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from izwi import errors
from izwi_api.http.errors import STATUS
from izwi_api.usage.keys import KeyRing, add_key
from izwi_api.usage.limits import KeyLimits
from izwi_api.voices.store import VoiceStore
from tests.api.voices.test_store import CLIP, PROMPT

OPERATIONS = Path(__file__).parents[3] / "docs" / "operations.md"
REFUSALS = (429, 503, 504, 507)


def test_a_restored_backup_has_voices_and_keys(tmp_path: Path) -> None:
    home, backup = tmp_path / "home", tmp_path / "backup"
    made = VoiceStore(home / "voices").create(
        "Ann", CLIP, "words", consent="yes", encoded={"org/model": PROMPT}
    )
    key = add_key(home / "keys.toml", "caller", KeyLimits(requests_per_minute=7))
    backup.mkdir()
    for name in ("voices", "keys.toml"):  # as docs/operations.md lists them
        source = home / name
        (shutil.copytree if source.is_dir() else shutil.copy2)(source, backup / name)
    shutil.rmtree(home)
    shutil.copytree(backup, home)
    store = VoiceStore(home / "voices")
    assert store.get("Ann") == made
    assert store.get(made.id).sample() == CLIP
    restored = store.load_prompt(store.get("Ann"), "org/model")
    assert restored is not None
    np.testing.assert_array_equal(restored.codes, PROMPT.codes)
    found = KeyRing(home / "keys.toml").find(key)
    assert found is not None
    assert found.limits.requests_per_minute == 7


def status_of(kind: type[errors.IzwiError]) -> int:
    return next(STATUS[base] for base in kind.__mro__ if base in STATUS)


def test_each_code_of_a_refusal_has_a_row() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    codes = {
        f"{status_of(kind)} `{kind.code}`"
        for kind in kinds
        if issubclass(kind, errors.IzwiError) and status_of(kind) in REFUSALS
    }
    assert len(codes) >= 7
    page = OPERATIONS.read_text(encoding="utf-8")
    assert {code for code in codes if f"| {code} |" not in page} == set()
