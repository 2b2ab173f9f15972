"""The README's examples, and those of docs/ with a server, run as printed; figures are results."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import string
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from izwi_api.cli.main import app
from izwi_api.client import Client
from izwi_api.settings import DEFAULT_MODELS
from izwi_models.tiny.recipes.voices import NAMED
from tests.contract.test_python import BLOCKS
from tests.models.tiny_chat import UNTIED, write_tiny_chat

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
HTTP = (ROOT / "docs" / "http.md").read_text(encoding="utf-8")
COMMANDS = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
BIN = Path(sys.executable).parent


def blocks(kind: str, page: str = README) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", page, flags=re.DOTALL)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def environment(home: Path) -> dict[str, str]:
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "IZWI_HOME": str(home / "izwi")}


@pytest.fixture(scope="module")
def port(environment: dict[str, str], home: Path) -> Iterator[int]:
    """A server of the embedded models, and of one that stands in for Qwen/Qwen3-0.6B."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = probe.getsockname()[1]
    models = (*DEFAULT_MODELS, str(write_talkative(home / "models" / "Qwen3-0.6B")))
    command = ["izwi", "serve", "--port", str(free)]
    command += [word for model in models for word in ("--model", model)]
    server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    try:
        for _ in range(1800):
            try:
                with urllib.request.urlopen(
                    f"http://127.0.0.1:{free}/readyz", timeout=60
                ) as answer:
                    assert answer.status == 200
                    break
            except OSError:
                assert server.poll() is None, "the server died"
                time.sleep(0.1)
        yield free
    finally:
        server.terminate()
        assert server.wait(60) == 0, "the server did not leave cleanly"


def write_talkative(folder: Path) -> Path:
    """Write a tiny checkpoint of random weights: the published one is a gigabyte.

    It says letters alone, so that what it says can be spoken.
    """
    write_tiny_chat(folder, UNTIED)
    weights = load_file(folder / "model.safetensors")
    said = np.zeros((512, 1), np.float32)
    said[[*map(ord, string.ascii_lowercase + " ")]] = 20.0
    weights["lm_head.weight"] *= said
    save_file(weights, folder / "model.safetensors")
    return folder


def run(script: str, port: int, environment: dict[str, str], folder: Path) -> str:
    """Run a block in a shell that stops at the first failure."""
    script = script.replace("127.0.0.1:8000", f"127.0.0.1:{port}").replace("curl -s", "curl -sf")
    command = ["bash", "-euo", "pipefail", "-c", script]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_curl_examples(port: int, environment: dict[str, str], home: Path) -> None:
    examples = [block for block in blocks("bash", HTTP) if block.startswith("curl")]
    assert len(examples) == 3
    speak, transcribe, rest = (run(block, port, environment, home) for block in examples)
    assert speak == ""
    assert soundfile.info(home / "speech.wav").samplerate == 24000
    assert '"text"' in transcribe
    assert "izwi-tiny-tts" in rest


def test_chat_example(port: int, environment: dict[str, str], home: Path) -> None:
    speaks = {**environment, "IZWI_SERVER": f"http://127.0.0.1:{port}"}
    (example,) = blocks("sh", HTTP)
    assert "`izwi serve --model Qwen/Qwen3-0.6B`" in HTTP
    out = run(example.replace('"Qwen/', '"'), port, speaks, home)
    message = json.loads(out)["choices"][0]["message"]
    assert set(message["content"]) <= {*string.ascii_lowercase, " "}
    assert soundfile.info(home / "sea.wav").duration > 0.3


def test_sdk_example(port: int, run_script: Callable[[str], str]) -> None:
    (example,) = [block for block in blocks("python") if "audio.speech" in block]
    assert run_script(example.replace(":8000", f":{port}")).strip()


def test_realtime_example(port: int, run_script: Callable[[str], str]) -> None:
    (example,) = [block for block in blocks("python") if "realtime" in block]
    out = run_script(example.replace(":8000", f":{port}"))
    assert out.strip() == "The capital of France is Paris."


def test_python_example(run_script: Callable[[str], str]) -> None:
    (example,) = [block for block in blocks("python") if "izwi_api.client" in block]
    assert "24000" in run_script(example)


def test_a_server_from_python(port: int, run_script: Callable[[str], str]) -> None:
    (example,) = [block for block in BLOCKS if "127.0.0.1:8000" in block]
    imported = "from izwi_api.client import Client\n"
    out = run_script(imported + example.replace(":8000", f":{port}"))
    assert "izwi-tiny-tts" in out


@pytest.fixture
def run_here(home: Path, port: int, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Run a line of the command line in this process, which has imported torch already."""

    def run_line(line: str) -> str:
        monkeypatch.chdir(home)
        program, *words = shlex.split(line.replace(":8000", f":{port}"), comments=True)
        assert program == "izwi"
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        return done.stdout

    return run_line


@pytest.mark.timeout(900)  # in the slow case a dozen processes that start one after the other
@pytest.mark.parametrize("beside", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_command_line_examples(
    port: int,
    environment: dict[str, str],
    home: Path,
    beside: bool,
    run_here: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Beside a server, commands use it; `make wheel` tests commands that load models themselves.

    There only what needs a shell is run by one.
    """
    examples = blocks("bash") + blocks("bash", COMMANDS)
    assert len(examples) == 2
    if beside:
        environment = {**environment, "IZWI_SERVER": f"http://127.0.0.1:{port}"}
        monkeypatch.setenv("IZWI_SERVER", environment["IZWI_SERVER"])
        monkeypatch.setenv("IZWI_HOME", environment["IZWI_HOME"])
    else:  # the server has a voice of the examples' name by now
        environment = {**environment, "IZWI_HOME": str(tmp_path)}
    out = ""
    for line in "".join(examples).splitlines():
        if beside and not {"|", "*"} & {*line}:
            out += run_here(line)
        else:
            out += run(line, port, environment, home)
    assert "izwi-tiny-asr" in out
    assert "The capital of France is Paris." in out
    assert "12 times 7 is 84." in out
    for name in ("house.wav", "mine.wav", "answer.wav"):
        assert soundfile.info(home / name).duration > 0.3


@pytest.mark.slow
@pytest.mark.parametrize("most", [2, pytest.param(len(NAMED), marks=pytest.mark.slow)])
def test_what_is_said_is_written_down_for_named_voices(most: int) -> None:
    """The example of two commands, with the models kept loaded: they are these calls."""
    (example,) = re.findall(r'^echo "(.*)" \| izwi say - \| izwi transcribe -$', README, re.M)
    with Client() as client:
        voices = [voice.name for voice in NAMED]
        assert {*voices} <= {voice["name"] for voice in client.voices()}
        heard = {}
        for voice in voices[:most]:
            # a short text on stdin is there before the model is, and is said whole
            audio = client.say(f"{example}\n", voice=voice, seed=0)
            heard[voice] = client.transcribe(audio).text
    assert heard == dict.fromkeys(voices[:most], example)


# The words of the README before a figure, and the row of gpu_table.json that has it.
FIGURES = {
    "a frame (80 ms of audio) of one stream": "frame_ms",
    "first audible sample at 1 request a second, median": "ttfa_p50_ms_1rps",
    "at 10 requests a second, 95th percentile": "ttfa_p95_ms_10rps",
    "at 20 requests a second, 95th percentile": "ttfa_p95_ms_20rps",
    "64 listeners at once: seconds of audio a second": "audio_s_per_s_c64",
    "32 clips of 8 s at once: times real time": "asr_x_real_time_c32_http",
}


def stored(name: str) -> dict[str, Any]:
    path = ROOT / "benchmarks" / "results" / f"{name}.json"
    return dict(json.loads(path.read_text(encoding="utf-8")))


def test_figures_are_results() -> None:
    table = {row["row"]: row["value"] for row in stored("gpu_table")["rows"]}
    section = README.split("## Figures")[1].split("\n## ")[0]
    rows = [row.strip("| ").split(" | ") for row in section.splitlines() if row.startswith("| ")]
    assert rows[0][0] == "case"
    assert len(rows) == 1 + len(FIGURES)
    for words, row in FIGURES.items():
        (shown,) = [cells[1] for cells in rows if cells[0].endswith(words)]
        number = shown.removesuffix(" ms").replace(",", "")
        decimals = len(number.partition(".")[2])
        assert number == f"{table[row]:.{decimals}f}", words


def test_the_first_three_numbers_are_results() -> None:
    table = {row["row"]: row["value"] for row in stored("gpu_table")["rows"]}
    (embedded,) = [row for row in stored("first_audio")["rows"] if row["text_mode"] == "full"]
    numbers = re.findall(r"^\* \*\*([\d.]+)", README, re.M)
    assert numbers == [
        f"{table['ttfa_p50_ms_1rps']:.1f}",
        f"{table['audio_s_per_s_c64']:.0f}",
        f"{embedded['first_audio_ms_p50']:.0f}",
    ]
