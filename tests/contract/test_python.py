"""The examples of docs/python.md run as printed, one after the other.

That of a server runs in test_readme.py, which has one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np

from izwi_api.client import Audio
from tests.models.tiny_asr import waveform
from tests.models.tiny_chat import UNTIED, write_tiny_chat
from tests.models.tiny_lfm2_audio import CALM, write_tiny_lfm2_audio

PAGE = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
RunScript = Callable[[str], str]
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
# Those of one client, which need no server; each of the others stands alone.
FIRST = 5


def test_one_client_in_this_process(run_script: RunScript, tmp_path: Path) -> None:
    out = run_script("\n".join(BLOCKS[:FIRST]))
    assert out.startswith("24000 (")
    assert "the train leaves at seven in the morning" in out.lower()
    assert {"train.wav", "mine.wav"} <= {path.name for path in tmp_path.iterdir()}


def test_chat(run_script: RunScript, tmp_path: Path) -> None:
    """The published checkpoint is a gigabyte: a tiny one of random weights stands in for it."""
    (example,) = [block for block in BLOCKS if "Qwen3-0.6B" in block]
    folder = write_tiny_chat(tmp_path / "Qwen3-0.6B", UNTIED)
    imported = "from izwi_api.client import Client\n"
    short = example.replace("Qwen/Qwen3-0.6B", str(folder)).replace(
        'vocoder?"}]', 'vocoder?"}], max_completion_tokens=40'
    )
    assert short.count("max_completion_tokens=40") == 2
    out = run_script(imported + short)
    assert re.match(r"(length \d+|stop \d+)\n", out)


def test_talk(run_script: RunScript, tmp_path: Path) -> None:
    (example,) = [block for block in BLOCKS if "LFM2-Audio" in block]
    folder = write_tiny_lfm2_audio(tmp_path / "LFM2-Audio-1.5B", loudness=CALM)
    samples = np.asarray(waveform(0.7), np.float32)
    Audio(samples, 16_000).save(tmp_path / "question.wav")
    imported = "from izwi_api.client import Client\n"
    short = example.replace("LiquidAI/LFM2-Audio-1.5B", str(folder)).replace(
        "seed=1", "seed=1, max_completion_tokens=40"
    )
    out = run_script(imported + short)
    assert re.search(r" \d\.\d s\n", out)
    assert re.search(r"^ \d+$", out, re.MULTILINE)  # audio without text, in its turn


def test_asyncio_and_errors(run_script: RunScript, tmp_path: Path) -> None:
    asynchronous, errors = BLOCKS[-2:]
    imported = "from izwi_api.client import Client\n"
    out = run_script(asynchronous + imported + errors)
    assert "has no voice 'nobody'" in out


def test_no_example_is_left_out() -> None:
    assert len(BLOCKS) == FIRST + 5
