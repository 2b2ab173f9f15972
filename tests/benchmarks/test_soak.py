"""What the soak sends is the same at any time of day, and what it counts are leaks."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from websockets.asyncio.server import serve

from benchmarks.live.memory import session
from benchmarks.serving.soak import Run, judge, parser, record, recorded
from benchmarks.serving.soak_callers import Asked, End, _said, question
from benchmarks.serving.soak_processes import (
    Sample,
    Usage,
    cached_bytes_of,
    children_of,
    trends,
    usage_of,
)
from izwi_api.http.metrics import EngineFigures
from tests.api.conftest import FakeEngine

_MIB = 1 << 20


async def test_live_sessions_have_a_seed_and_instructions() -> None:
    settings = []

    async def answer(connection):
        settings.append(json.loads(await connection.recv())["session"])
        await connection.send('{"type": "session.updated"}')
        await connection.wait_closed()

    async with serve(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        for seed in (1, 1, 2):
            async with session(f"http://127.0.0.1:{port}", seed):
                pass
    assert settings[0] == settings[1]
    assert [one["seed"] for one in settings] == [1, 1, 2]
    # without them a template may say what time it is
    assert settings[0]["instructions"]


def test_chats_have_a_system_message_and_a_seed() -> None:
    body = question(3)
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert body["seed"] == 3


def test_what_was_heard_is_compared_too() -> None:
    def said(heard: str) -> bytes:
        message = {"content": [{"transcript": "At seven."}]}
        return _said(
            [
                {
                    "type": "conversation.item.input_audio_transcription.completed",
                    "transcript": heard,
                },
                {"type": "response.output_audio.delta"},
                {"type": "response.done", "response": {"output": [message]}},
            ]
        )

    assert said("When?") == said("When?") != said("Then?")


def test_connections_count_once_their_callers_have_left() -> None:
    def handles() -> int:
        return usage_of(os.getpid(), port).handles

    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        before = handles()
        client = socket.create_connection(("127.0.0.1", port))
        connection, _ = listening.accept()
        # both ends are in this process, and only one is the server's
        assert handles() == before + 1
        client.close()
        until_s = time.monotonic() + 30.0
        while handles() < before + 1 and time.monotonic() < until_s:
            time.sleep(0.01)
        assert handles() == before + 1, "the server's end is a leak now, the client's is gone"
        connection.close()
        assert handles() == before


def test_all_that_bounded_caches_hold_is_counted() -> None:
    def lines(name: str, *values: float) -> str:
        labels = ('model="a",replica="0"', 'model="b",replica="0"', 'model="a",replica="1"')
        return "".join(
            f"izwi_engine_{name}{{{label}}} {value}\n"
            for label, value in zip(labels, values, strict=True)
        )

    text = lines("pages", 10, 20, 10) + lines("free_pages", 4, 19, 10)
    text += lines("host_pages", 0, 2, 0) + lines("page_bytes", 100, 1000, 100)
    text += lines("encoded_bytes", 7, 0, 50) + lines("saved_state_bytes", 0, 11, 5)
    assert cached_bytes_of(text) == {"engine 0": 6 * 100 + 7 + 3 * 1000 + 11, "engine 1": 55}


def test_a_server_shows_each_figure_of_its_caches() -> None:
    figures = FakeEngine(alive=True)
    registry = CollectorRegistry()
    registry.register(EngineFigures(figures))
    text = generate_latest(registry).decode()
    assert cached_bytes_of(text) == {"engine 0": 7 * 7 + 7 + 7}


@pytest.mark.parametrize(
    ("cached_mib", "leak_mib", "has_grown"), [(20, 0, False), (20, 5, True), (0, 5, True)]
)
def test_caches_that_fill_up_are_no_leak(cached_mib: int, leak_mib: int, has_grown: bool) -> None:
    # the pages are used in turn, and those that are free again stay touched
    samples = []
    for place in range(40):
        touched = cached_mib * _MIB * place // 40
        cached = touched if place % 2 == 0 else 0
        pss = 100 * _MIB + touched + leak_mib * _MIB * place // 40
        used = {("engine 0", 7): Usage(pss, pss, 24, 9, 0.0, cached)}
        samples.append(Sample(60.0 * place, True, used, 0.0))
    (trend,) = trends(samples, 600.0)
    assert trend.has_grown(1.0) is has_grown


# in steps, each when a line comes; a process of its own, so that nothing else changes its memory
_MAPPER = """
import mmap, sys
print(flush=True); input()
with open(sys.argv[1], "rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
assert sum(mapped[place] for place in range(0, len(mapped), 4096)) == 0
print(flush=True); input()
filled = bytearray(b"1") * len(mapped)
print(flush=True); input()
"""


def test_memory_of_files_is_no_leak(tmp_path: Path) -> None:
    path = tmp_path / "library"
    path.write_bytes(bytes(32 * _MIB))
    used = []
    command = [sys.executable, "-c", _MAPPER, str(path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as mapper:
        assert mapper.stdin is not None
        assert mapper.stdout is not None
        for _ in range(3):
            assert mapper.stdout.readline() == b"\n"
            used.append(usage_of(mapper.pid, 0))
            mapper.stdin.write(b"\n")
            mapper.stdin.flush()
    before, read, made = used
    assert read.pss_bytes - before.pss_bytes > 24 * _MIB
    assert abs(read.anonymous_bytes - before.anonymous_bytes) < 8 * _MIB
    assert made.anonymous_bytes - before.anonymous_bytes > 24 * _MIB


def test_children_are_found_on_any_kernel() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert child.pid in children_of(os.getpid())
        assert children_of(child.pid) == []
        child.communicate(b"\n")
    assert child.pid not in children_of(os.getpid())


def test_a_recorded_run_is_judged_as_the_run_itself(tmp_path: Path) -> None:
    used = {("engine 0", 7): Usage(_MIB, _MIB, 24, 9, 1.5, 3)}
    samples = [Sample(60.0 * place, True, used, 2.0 * place) for place in range(40)]
    ends: tuple[End, ...] = ("equal", "equal", "wrong", "left")
    asked = [
        Asked("speech", 50.0 * place, 0.1, 1.0 + place / 40, ends[place % 4]) for place in range(40)
    ]
    run = Run(asked, samples, [800.0], Counter(removed=2))
    options = parser().parse_args(
        ["--record", str(tmp_path / "record.json"), "--warm-up-minutes", "5", "--rate", "2"]
    )
    record(options, run)
    fixed, again = recorded(tmp_path / "record.json")
    assert again == run
    assert (fixed["rate"], fixed["warm_up_minutes"]) == (2.0, 5.0)
    assert judge(options, again) == judge(options, run)
    assert judge(options, again)[1]["answers"] is False
