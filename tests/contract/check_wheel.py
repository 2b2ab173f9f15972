"""Run where the wheel was installed and nothing else: does it speak, listen, time words and answer?

Not a pytest module: pytest is not there. `make wheel` runs it.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from typer.testing import CliRunner

from izwi_api.cli.main import app

BIN = Path(sys.executable).parent


def izwi(*words: str) -> str:
    """Run a command in this process: in one of its own, most of the time is torch's start."""
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 0, done.output
    return done.stdout


def installed(*words: str) -> str:
    """Run the installed command."""
    command = [str(BIN / "izwi"), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main() -> None:
    for room in ("models", "api", "web", "tests"):
        assert importlib.util.find_spec(room) is None, f"{room} was installed as a package"
    assert "serve" in izwi("--help")
    with tempfile.TemporaryDirectory() as folder:
        said = str(Path(folder) / "said.wav")
        installed("say", "The house is near the river.", "--out", said, "--seed", "1")
        heard = json.loads(izwi("transcribe", said, "--json"))
        assert heard["text"].strip(), "said nothing that could be transcribed"
        timed = izwi("align", said, "--text", heard["text"]).splitlines()
    assert izwi("chat", "What is 12 times 7?") == "12 times 7 is 84.\n"
    assert {"text", "language", "token_ids"} <= set(heard)
    assert len(timed) == len(heard["text"].split()), "not every word has its times"
    print("the wheel speaks, listens, answers and times words:", *timed, sep="\n")


main()
