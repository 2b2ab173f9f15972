"""Heartbeats of an engine that makes progress, and of one that does not."""

from __future__ import annotations

import socket
import threading
import time
from types import SimpleNamespace

import pytest
import zmq

from izwi.engine.step_thread import SteppingThread
from izwi_api.serve import control, engine_process
from izwi_api.serve.control import Alive, Control
from izwi_api.serve.engine_process import pass_on
from izwi_api.serve.sockets import open_socket
from tests.api.conftest import wait_for

BEAT_S = 0.2


@pytest.mark.parametrize(
    ("alive", "busy_s", "reported"),
    [(True, 0.0, True), (True, BEAT_S / 2, True), (True, 3 * BEAT_S, False), (False, 0.0, False)],
)
def test_heartbeats_need_progress(monkeypatch, tmp_path, alive, busy_s, reported):
    for module in (engine_process, control):
        monkeypatch.setattr(module, "BEAT_S", BEAT_S)
    ours, theirs = socket.socketpair()
    ours.settimeout(60 if reported else 5 * BEAT_S)
    commands = open_socket(zmq.Context.instance(), zmq.PULL)
    commands.bind(f"ipc://{tmp_path / 'c'}")
    thread = SimpleNamespace(alive=alive, busy_s=busy_s)
    lines = SimpleNamespace(thread=thread, forget_lost=lambda: None)
    thread = threading.Thread(target=pass_on, args=(Control(theirs), commands, lines, None))
    thread.start()
    try:
        if reported:
            heard = []
            while len(heard) < 2:  # and again
                heard += Control(ours).receive()
            assert heard == [Alive(), Alive()]
        else:
            with pytest.raises(TimeoutError):
                ours.recv(1)
    finally:
        ours.shutdown(socket.SHUT_WR)
        thread.join(60)
        for one in (ours, theirs, commands):
            one.close()
    assert not thread.is_alive()


def test_a_step_that_does_not_end_is_seen():
    gate = threading.Event()
    thread = SteppingThread(SimpleNamespace(), SimpleNamespace())
    assert thread.busy_s == 0
    worker = threading.Thread(target=thread._guarded, args=(gate.wait,))
    worker.start()
    wait_for(lambda: thread.busy_s > 0.05)
    before_s = thread.busy_s
    time.sleep(0.02)
    assert thread.busy_s >= before_s + 0.02
    gate.set()
    worker.join()
    assert thread.busy_s == 0


def test_heartbeats_do_not_block_on_an_unread_pipe(monkeypatch):
    monkeypatch.setattr(control, "BEAT_S", 0.0)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        child, supervisor = Control(theirs), Control(ours)
        for _ in range(5000):  # more than the socket holds: a beat that waited would wait for ever
            child.beat()
        heard = supervisor.receive()
        assert heard
        assert set(heard) == {Alive()}
