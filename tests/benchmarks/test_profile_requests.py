"""`make profile` writes a trace for each kind of request, and says what opens them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from benchmarks.profile_requests import main

KINDS = ("speech", "transcription", "alignment", "chat", "conversation")


@pytest.mark.slow
def test_a_trace_of_each_kind_has_steps_and_operations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--folder", str(tmp_path), "--rows", "2"])
    assert "ui.perfetto.dev" in capsys.readouterr().out
    for kind in KINDS:
        with gzip.open(tmp_path / f"{kind}.json.gz", "rt") as trace:
            names = {event.get("name", "") for event in json.load(trace)["traceEvents"]}
        assert any(name.startswith("aten::") for name in names), kind
        assert any("engine.py" in name and name.endswith(": step") for name in names), kind
