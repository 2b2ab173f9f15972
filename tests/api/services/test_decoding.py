"""Files are decoded in separate processes: a crash of one fails one request."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from izwi.audio.decode import decode_audio
from izwi.audio.limits import DecodeLimits
from izwi.errors import InvalidAudio, Overloaded, TooLarge
from izwi.fairness.callers import current_caller
from izwi.sandbox import client as limited_client
from izwi_api.services import decoding
from izwi_api.services.decoding import DecoderPool, InProcess
from tests.api.bad_audio import forged_flac, opus_bomb
from tests.api.conftest import wait_for

LIMITS = DecodeLimits(60.0, 1 << 28)
ENDLESS = DecodeLimits(1e9, 1 << 40)


@pytest.fixture(scope="module")
def bomb():
    return opus_bomb(4 << 20)


@pytest.fixture
def pool():
    with_limits = DecoderPool(2, time_limit_s=60.0)
    yield with_limits
    with_limits.stop()


def workers(pool):
    return pool._queue.pool.processes


async def until_busy(pool):
    await asyncio.to_thread(wait_for, lambda: pool._queue.pool._busy)
    await asyncio.sleep(0.2)


async def test_files_of_several_callers_are_decoded_in_turn(pool, tone_wav):
    """A full queue is full for the caller who filled it."""
    few = DecoderPool(1)
    decoded = []

    async def decode(caller, number):
        current_caller.set(caller)
        await few.decode(tone_wav(1.0), 16_000, LIMITS)
        decoded.append((caller, number))

    most = 1 + decoding.MAX_WAITING
    tasks = [asyncio.create_task(decode("heavy", number)) for number in range(most)]
    await asyncio.sleep(0)  # all are waiting, and the first one is decoded
    with pytest.raises(Overloaded):
        await decode("heavy", most)
    light = asyncio.create_task(decode("light", 0))
    await asyncio.gather(light, *tasks)
    few.stop()
    assert [number for caller, number in decoded if caller == "heavy"] == list(range(most))
    # the one that was decoded, and one more of the other caller
    assert decoded.index(("light", 0)) <= 2
    assert not few._queue._num_jobs


def test_the_worker_imports_no_torch():
    code = "import sys, izwi.sandbox.decode_worker; print({'torch', 'mlx'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


async def test_it_decodes_as_in_process(pool, tone_wav):
    pool.start()
    for rate in (16_000, 24_000):
        content = tone_wav(3.0, 22_050)
        expected = decode_audio(content, rate)
        here = await InProcess().decode(content, rate, LIMITS)
        there = await pool.decode(content, rate, LIMITS)
        assert there.dtype == np.float32
        np.testing.assert_array_equal(there, expected)
        np.testing.assert_array_equal(here, expected)


async def test_refusals_come_through_and_keep_the_process(pool, bomb, tone_wav):
    await pool.decode(tone_wav(1.0), 16_000, LIMITS)
    (worker,) = workers(pool)
    with pytest.raises(TooLarge, match="60 s"):
        await pool.decode(bomb, 16_000, LIMITS)
    with pytest.raises(InvalidAudio, match="header"):
        await pool.decode(forged_flac(), 16_000, LIMITS)
    with pytest.raises(InvalidAudio, match="empty"):
        await pool.decode(b"", 16_000, LIMITS)
    assert workers(pool) == [worker]


async def test_a_killed_process_costs_the_file_that_it_had(pool, bomb, tone_wav):
    await pool.decode(tone_wav(1.0), 16_000, LIMITS)
    lost = asyncio.create_task(pool.decode(bomb, 16_000, ENDLESS))
    await until_busy(pool)
    (worker,) = pool._queue.pool._busy
    other = pool.decode(tone_wav(1.0), 16_000, LIMITS)
    os.kill(worker.pid, signal.SIGSEGV)
    with pytest.raises(InvalidAudio, match="crashed the decoder"):
        await lost
    assert len(await other) == 16_000
    assert len(await pool.decode(tone_wav(1.0), 16_000, LIMITS)) == 16_000


async def test_a_process_that_ended_idle_costs_nothing(pool, tone_wav):
    await pool.decode(tone_wav(1.0), 16_000, LIMITS)
    (worker,) = workers(pool)
    worker._process.kill()
    worker._process.wait()
    assert len(await pool.decode(tone_wav(1.0), 16_000, LIMITS)) == 16_000


async def test_a_file_that_takes_too_long(bomb, tone_wav):
    pool = DecoderPool(1, time_limit_s=1.0)
    try:
        with pytest.raises(InvalidAudio, match="more time"):
            await pool.decode(bomb, 16_000, ENDLESS)
        pool._time_limit_s = 60.0  # a new process starts slowly on a busy machine
        assert len(await pool.decode(tone_wav(1.0), 16_000, LIMITS)) == 16_000
    finally:
        pool.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not hold a process to it")
async def test_a_file_that_takes_too_much_memory(bomb, tone_wav):
    pool = DecoderPool(1, memory_bytes=6 << 20)
    try:
        assert len(await pool.decode(tone_wav(1.0), 16_000, LIMITS)) == 16_000
        with pytest.raises(InvalidAudio, match="memory"):
            await pool.decode(bomb, 16_000, ENDLESS)
    finally:
        pool.stop()


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
async def test_a_process_may_do_nothing_but_decode(pool, tone_wav):
    os.environ["IZWI_API_KEY"] = "a-secret"
    try:
        await pool.decode(tone_wav(1.0), 16_000, LIMITS)
    finally:
        del os.environ["IZWI_API_KEY"]
    (worker,) = workers(pool)
    folder = Path(f"/proc/{worker.pid}")
    lines = (folder / "limits").read_text().splitlines()
    limits = {line[:26].strip(): line[26:].split()[0] for line in lines}
    assert limits["Max open files"] == "3"
    assert limits["Max file size"] == limits["Max core file size"] == "0"
    assert int(limits["Max address space"]) < 1 << 30
    assert limits["Max cpu time"] != "unlimited"
    assert "a-secret" not in (folder / "environ").read_text()
    assert len(list((folder / "fd").iterdir())) == 3


async def test_disconnect_frees_the_decoder_process(pool, bomb):
    task = asyncio.create_task(pool.decode(bomb, 16_000, ENDLESS))
    await until_busy(pool)
    task.cancel()
    await asyncio.to_thread(wait_for, lambda: not pool._queue.pool._busy)


async def test_the_line_has_an_end(monkeypatch, bomb):
    monkeypatch.setattr(decoding, "MAX_WAITING", 1)
    pool = DecoderPool(1)
    try:
        tasks = [asyncio.create_task(pool.decode(bomb, 16_000, ENDLESS)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await pool.decode(bomb, 16_000, ENDLESS)
    finally:
        pool.stop()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("answer", [
    b"B\4\0\0\0" + np.float32("nan").tobytes() + b"E\0\0\0\0",
    b"B" + b"\xff" * 4,
    b"E\0\0\0\0",
    b"E\1\0\0\0x",
    b"Z\0\0\0\0E\0\0\0\0",
    b"B\3\0\0\0abcE\0\0\0\0",
    b"X\2\0\0\0{}E\0\0\0\0",
])  # fmt: skip
async def test_what_a_broken_process_says_is_not_believed(tone_wav, monkeypatch, answer):
    sockets = []

    def start_broken(*_):
        ours, theirs = socket.socketpair()
        theirs.sendall(b"R\0\0\0\0A\0\0\0\0" + answer)
        theirs.shutdown(socket.SHUT_WR)
        sockets.append(theirs)  # it goes on to be sent jobs
        return ours, subprocess.Popen(["true"])

    monkeypatch.setattr(limited_client, "start_process", start_broken)
    pool = DecoderPool(1)
    with pytest.raises(InvalidAudio, match="crashed the decoder"):
        await pool.decode(tone_wav(0.1), 16_000, LIMITS)
    pool.stop()
    for theirs in sockets:
        theirs.close()
