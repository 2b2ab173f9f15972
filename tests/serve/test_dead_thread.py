"""A server whose stepping thread dies: nothing hangs, and the engine is replaced at once."""

from __future__ import annotations

import os
from contextlib import contextmanager

import httpx
import pytest

from tests.api.conftest import wait_for
from tests.api.served import served
from tests.serve.test_processes import SHORT, SPEECH, Listener, is_ready, say

# Runs in every process of the server before its program does. The file that BREAKS names says what
# is to fail in the engine, from then on; the test empties it for the engine that follows.
FAULTS = """
import os, sys
from pathlib import Path

if os.environ.get("BREAKS_HERE") or "izwi_api.serve.engine_process" in sys.orig_argv:
    import threading
    from izwi.engine.engine import Engine
    from izwi.engine.step_thread import SteppingThread
    from izwi_api.serve import wire

    order = Path(os.environ["BREAKS"])

    def failing(owner, name, *words):
        real = getattr(owner, name)
        failed = []

        def run(*arguments, **named):
            if threading.current_thread().name == "izwi-engine":
                word = order.read_text() if order.exists() else ""
                if failed or word in words:
                    failed.append(word)
                    raise RuntimeError(f"a bug in {name}")
            return real(*arguments, **named)

        setattr(owner, name, run)

    failing(Engine, "step", "abort")
    failing(Engine, "abort", "abort")
    failing(SteppingThread, "_settle_changes", "_settle_changes")
    failing(wire, "encode_chunks", "encode_chunks")
"""


@contextmanager
def breakable(folder, *options, **environ):
    """A server, and the file that says what fails in it."""
    faults = folder / "faults"
    faults.mkdir()
    (faults / "sitecustomize.py").write_text(FAULTS)
    path = os.pathsep.join([str(faults), os.environ.get("PYTHONPATH", "")])
    order = folder / "order"
    order.write_text("")
    with served(folder, *options, PYTHONPATH=path, BREAKS=str(order), **environ) as server:
        yield server, order


@pytest.mark.parametrize(
    "words",
    [("_settle_changes",), ("abort", "encode_chunks")],
    ids=" ".join,
)
@pytest.mark.slow  # tests/engine/test_dead_thread.py has its parts
def test_an_engine_whose_thread_dies_is_replaced_at_once(tmp_path, words):
    with breakable(tmp_path) as (server, order):
        said = say(server)
        undisturbed = Listener(server)
        undisturbed.join()
        for word in words:
            (engine,) = server.processes("engine")
            listener = Listener(server)
            order.write_text(word)
            wait_for(lambda dead=engine: dead not in server.processes("engine"))
            order.write_text("")
            listener.join()
            assert listener.is_whole, word  # it goes on with the next engine
            assert listener.audio.digest() == undisturbed.audio.digest()
            wait_for(lambda: is_ready(server))
            assert say(server) == said


@pytest.mark.slow  # tests/engine/test_dead_thread.py has its parts
@pytest.mark.parametrize("word", ["abort", "_settle_changes"])
def test_in_process_its_requests_fail_and_it_is_not_ready(tmp_path, word):
    with breakable(tmp_path, "--in-process", BREAKS_HERE="1") as (server, order):
        listener = Listener(server)
        order.write_text(word)
        listener.join()
        assert not listener.is_whole
        wait_for(lambda: not is_ready(server))
        answer = httpx.post(server.url + SPEECH, json=SHORT, timeout=60)
        assert answer.status_code == 503
