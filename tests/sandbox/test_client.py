"""Limited processes may end at any time; only their own jobs pay for it."""

from __future__ import annotations

import os
import select
import signal
import threading

import msgspec
import pytest

from izwi.audio.encode import wav_header
from izwi.errors import EngineStopped, IzwiError
from izwi.sandbox import decode_worker
from izwi.sandbox.client import Call, JobStopped, LimitedJob, LimitedPool, ProcessKind, only_frame
from tests.api.conftest import wait_for

DECODERS = ProcessKind("izwi.sandbox.decode_worker", "decodes files", 1 << 29)


@pytest.fixture
def pool():
    made = LimitedPool(DECODERS)
    yield made
    made.stop()


def wav(seconds):
    silence = bytes(int(seconds * 32_000))
    return wav_header(16_000, len(silence)) + silence


def job(content):
    head = decode_worker.DecodeJob(len(content), 16_000, 600.0, 1 << 28, 60)
    return LimitedJob(msgspec.json.encode(head), 60.0, content, 4 << 20)


def kinds_of(frames):
    return [kind for kind, _ in frames]


def kill_idle(process):
    """Kill a process and wait until it has ended, without telling its owner."""
    os.kill(process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def test_processes_that_ended_while_idle_are_skipped(pool):
    content = wav(0.1)
    both = threading.Barrier(2)

    def read(frames):
        both.wait(60)  # so that there are two processes
        return kinds_of(frames)

    threads = [threading.Thread(target=pool.run, args=(job(content), read)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    dead = pool.processes
    assert len(dead) == 2
    for process in dead:
        kill_idle(process)
    assert pool.run(job(content), kinds_of) == [decode_worker.BLOCK]
    assert not {*pool.processes} & {*dead}


def test_a_process_that_is_killed_while_it_starts_is_replaced(pool):
    pool.start()
    kill_idle(pool.processes[0])
    assert pool.run(job(wav(0.1)), kinds_of) == [decode_worker.BLOCK]


def test_a_process_that_ended_before_its_first_job_is_replaced(pool):
    pool.start()
    (process,) = pool.processes
    select.select([process._stream], [], [], 60)  # it is ready
    kill_idle(process)
    assert pool.run(job(wav(0.1)), kinds_of) == [decode_worker.BLOCK]


def read_until_killed(pool, how, times):
    """Return a reader that sends a signal to its process at the first block, so often."""
    seen = []

    def read(frames):
        next(frames)
        seen.append(pool.processes[0].pid)
        if len(seen) <= times:
            os.kill(seen[-1], how)
        return len(seen), kinds_of(frames)

    return read


def test_a_job_whose_process_is_killed_from_outside_is_done_again(pool):
    """The system kills processes when it is out of memory; a job's own limits end it otherwise."""
    content = wav(120.0)  # more than the socket holds, so the process is not done
    num_reads, kinds = pool.run(job(content), read_until_killed(pool, signal.SIGKILL, 1))
    assert num_reads == 2
    assert {*kinds} == {decode_worker.BLOCK}
    with pytest.raises(JobStopped):
        pool.run(job(content), read_until_killed(pool, signal.SIGKILL, 2))


@pytest.mark.parametrize("how", [signal.SIGSEGV, signal.SIGABRT, signal.SIGXCPU])
def test_a_job_that_crashes_its_process_is_not_done_again(pool, how):
    with pytest.raises(JobStopped):
        pool.run(job(wav(120.0)), read_until_killed(pool, how, 1))
    assert pool.run(job(wav(0.1)), kinds_of) == [decode_worker.BLOCK]


def test_a_job_whose_caller_leaves_is_stopped(pool):
    call = Call()
    begun = threading.Event()

    def read(frames):
        next(frames)
        begun.set()
        return kinds_of(frames)

    def leave():
        begun.wait(60)
        pool.leave(call)

    leaver = threading.Thread(target=leave)
    leaver.start()
    with pytest.raises(JobStopped):
        pool.run(job(wav(600.0)), read, call)
    leaver.join()
    with pytest.raises(JobStopped, match="left"):
        pool.run(job(wav(0.1)), read, call)


def test_an_answer_that_was_not_read_to_its_end_costs_the_process(pool):
    def read(frames):
        next(frames)
        raise IzwiError("the disk is full")

    with pytest.raises(IzwiError, match="disk"):
        pool.run(job(wav(120.0)), read)
    assert pool.run(job(wav(0.1)), kinds_of) == [decode_worker.BLOCK]
    with pytest.raises(JobStopped, match="one frame"):
        pool.run(job(wav(120.0)), only_frame)


def test_a_process_that_dies_of_a_job_before_it_begins_does_not_die_forever():
    """Reading this file takes more memory than it may have."""
    pool = LimitedPool(ProcessKind(DECODERS.module, DECODERS.purpose, 4 << 20))
    with pytest.raises(JobStopped, match="begin"):
        pool.run(job(bytes(32 << 20)), kinds_of)
    pool.stop()


def test_a_process_that_ended_while_idle_is_no_zombie_for_long(pool):
    other = LimitedPool(DECODERS)
    pool.start()
    kill_idle(pool.processes[0])
    other.start()  # of any kind
    with pytest.raises(ProcessLookupError):
        os.kill(pool.processes[0].pid, 0)
    other.stop()


def test_a_process_that_never_starts_is_reported():
    pool = LimitedPool(ProcessKind("izwi.no_such_module", "does nothing", 1 << 29))
    with pytest.raises(IzwiError, match="does nothing does not start"):
        pool.run(LimitedJob(b"{}", 60.0), kinds_of)
    pool.stop()


def test_a_process_does_only_so_many_jobs():
    pool = LimitedPool(ProcessKind(DECODERS.module, DECODERS.purpose, 1 << 29, max_jobs=2))

    def do_job():
        return pool.run(job(wav(0.1)), lambda frames: [*frames] and pool.processes[0].pid)

    pids = [do_job() for _ in range(4)]
    assert pids[0] == pids[1] != pids[2] == pids[3]
    pool.stop()
    wait_for(lambda: not pool.processes)
    with pytest.raises(EngineStopped):
        pool.run(job(wav(0.1)), kinds_of)
