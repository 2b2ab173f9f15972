"""What holds for every command: closed and full streams, and Ctrl-C while it starts."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from types import ModuleType

import pytest

from izwi_api.cli import run
from izwi_api.usage import keys
from izwi_api.usage.limits import KeyLimits

START = [sys.executable, "-c", "from izwi_api.cli.run import main; main()"]
FULL = "/dev/full"


@pytest.fixture
def commands(monkeypatch):
    """A stand-in for the module with the commands."""
    module = ModuleType("izwi_api.cli.main")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def test_ctrl_c_while_the_commands_are_imported_prints_nothing(commands, capfd):
    def interrupted(name):
        raise KeyboardInterrupt

    commands.__getattr__ = interrupted
    with pytest.raises(SystemExit) as ended:
        run.main()
    assert ended.value.code == run.INTERRUPTED
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["stdin", "stdout", "stderr"])
def test_a_closed_stream_is_empty(commands, monkeypatch, name):
    monkeypatch.setattr(sys, name, None)
    found = []

    def app():
        stream = getattr(sys, name)
        os.fstat(stream.fileno())
        found.append(stream.read() if name == "stdin" else stream.write("text"))

    commands.app = app
    run.main()
    getattr(sys, name).close()
    assert found == ["" if name == "stdin" else len("text")]


@pytest.mark.skipif(not os.path.exists(FULL), reason="needs /dev/full")  # noqa: PTH110
def test_commands_start_without_what_only_servers_need():
    named = "import sys, izwi_api.cli.main; print(*{'av', 'llguidance', 'torch'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", named], check=True, capture_output=True, text=True)
    assert done.stdout == "\n"


def test_a_full_disk_behind_stdout_is_one_line():
    with open(FULL, "wb") as full:  # noqa: PTH123
        done = subprocess.run(
            [*START, "--version"], check=False, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr) == (1, "izwi: No space left on device\n")


@pytest.fixture
def largest_file():
    """Sets the size in bytes beyond which a write fails, as on a full disk."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, most))
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def test_a_keys_file_stays_whole_when_the_disk_is_full(tmp_path, largest_file):
    path = tmp_path / "keys.toml"
    keys.add_key(path, "first", KeyLimits())
    before = path.read_bytes()
    largest_file(len(before) + 9)
    with pytest.raises(OSError, match="too large") as failed:
        keys.add_key(path, "second", KeyLimits())
    assert failed.value.filename == str(path)
    assert path.read_bytes() == before


def test_no_part_of_an_exported_voice_is_left_when_the_disk_is_full(cli, tone_wav, largest_file):
    cli.voices.create("me", tone_wav(1.0), "la", consent="yes")
    path = cli.folder / "me.zip"
    path.write_bytes(b"the former file")
    largest_file(1000)
    result = cli("voices", "export", "me", "--out", "me.zip", code=1)
    assert result.stderr == "izwi: me.zip: File too large\n"
    assert path.read_bytes() == b"the former file"
    assert [file.name for file in cli.folder.iterdir()] == [path.name]
