"""Scripts of the documentation run in this process."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def run_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], str]:
    """Run a script in this process, which has imported torch already; returns what it prints."""
    monkeypatch.setenv("IZWI_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)

    def run(script: str) -> str:
        Path("example.py").write_text(script)
        runpy.run_path("example.py", run_name="__main__")
        return capsys.readouterr().out

    return run
