"""Benchmarks that break down latency watch functions that exist."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_WATCH = """
from benchmarks.serving import timeline
class Registry:
    def names(self):
        return []
timeline.engine_timeline()
timeline.api_server_timeline(Registry())
from izwi_api.services.speech import request
request.decode_base64_audio("data:audio/wav;base64,AAAA", 100, "ref_audio")
"""


@pytest.mark.slow
def test_everything_that_is_watched_exists(tmp_path: Path) -> None:
    # what is watched stays watched, so it takes a process of its own
    done = subprocess.run(
        [sys.executable, "-c", _WATCH],
        env={**os.environ, "BENCHMARK_TIMELINE": str(tmp_path)},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    lines = "".join(file.read_text() for file in tmp_path.glob("*.jsonl"))
    assert "decode_base64_audio" in lines
