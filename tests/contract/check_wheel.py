"""Run in the clean environment that the wheel was installed into: does it speak and listen?

Not a pytest module: pytest is not there. `make wheel` runs it.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path

BIN = Path(sys.executable).parent


def izwi(*words: str) -> str:
    command = [str(BIN / "izwi"), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main() -> None:
    for room in ("models", "api", "web", "tests"):
        assert importlib.util.find_spec(room) is None, f"{room} was installed as a package"
    assert "serve" in izwi("--help")
    with tempfile.TemporaryDirectory() as folder:
        sound = str(Path(folder) / "said.wav")
        izwi("say", "The house is near the river.", "--out", sound, "--seed", "1")
        heard = json.loads(izwi("transcribe", sound, "--json"))
    assert {"text", "language", "token_ids"} <= set(heard)
    assert heard["text"].strip(), "said nothing that could be transcribed"
    print("the wheel speaks and listens:", heard["text"])


main()
