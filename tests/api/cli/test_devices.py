"""Devices are no audio files: they may never end."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from izwi.audio.file import read_audio_file

COMMANDS = {
    "transcribe": ("transcribe", "/dev/zero"),
    "align": ("align", "/dev/zero", "--text", "hello"),
    "talk": ("talk", "/dev/zero"),
    "clone": ("clone", "/dev/zero", "--name", "mine", "--yes"),
    "say": ("say", "hello", "--ref-audio", "/dev/zero", "--x-vector-only"),
}


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="needs /dev/zero")  # noqa: PTH110
@pytest.mark.parametrize("command", COMMANDS)
def test_a_device_is_refused(cli, command):
    result = cli(*COMMANDS[command], code=2)
    assert "cannot read /dev/zero: it is a device, not a file" in result.output
    assert cli.engine.live == {}


def test_a_named_pipe_is_read_to_its_end(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(b"sound" * 50_000,))
    writer.start()
    assert read_audio_file(Path(path)) == b"sound" * 50_000
    writer.join()
