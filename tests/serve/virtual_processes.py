"""Processes that a supervisor starts, and a clock that jumps to the next event.

Their control sockets are real. What a process does is what a test lets it do.
"""

from __future__ import annotations

import heapq
import os
import selectors
import socket
import subprocess
from itertools import count
from pathlib import Path
from types import SimpleNamespace

from izwi.config import EngineConfig
from izwi_api.runtime_options import RuntimeOptions
from izwi_api.serve import child, supervisor
from izwi_api.serve.control import Alive, Control, EngineSpec, Ready, Restarted
from izwi_api.serve.options import ReplicaOptions, ServeOptions
from izwi_api.serve.supervisor import Supervisor
from izwi_api.settings import Settings


class Process:
    """A process as the supervisor sees it: it ends when asked to, unless it is stubborn.

    Attributes:
        spec: What it is to do.
        heard: What it was told since, without counts of restarts.
        restarted: These.
        asked: What was done to it, and when: "terminate", "kill", "finish" (its control ended).
        stubborn: What it does not end at.
        status: Its exit status, None while it runs.
    """

    def __init__(self, world, pid, stdin, environ):
        self._world, self.pid, self.environ = world, pid, environ
        self._control = Control(socket.socket(fileno=os.dup(stdin)))
        self.begun_s = world.now_s
        self.spec = None
        self.heard, self.asked, self.stubborn = [], [], set()
        self.restarted = []
        self.status = None
        self._has_read_end = False

    @property
    def is_engine(self):
        return isinstance(self.spec, EngineSpec)

    def say(self, message):
        self._control.send(message)

    def beat(self, until_s):
        """Say every second that it works, up to a time."""
        if self._world.now_s <= until_s and self.status is None:
            self.say(Alive())
            self._world.later(1.0, lambda: self.beat(until_s))

    def die(self, status=0):
        if self.status is None:
            self.status = status
            self._control.close()

    def close_control(self):
        """End what the supervisor hears of it, and run on."""
        self._control.finish()

    def listen(self):
        """Take what has come from the supervisor."""
        while self.status is None and not self._has_read_end:
            with selectors.DefaultSelector() as readable:
                readable.register(self._control, selectors.EVENT_READ)
                if not readable.select(0):
                    return
            try:
                messages = self._control.receive()
            except EOFError:
                self._has_read_end = True
                self._asked("finish", 0)
                return
            for message in messages:
                if self.spec is None:
                    self.spec = message
                    self._world.begun(self)
                elif isinstance(message, Restarted):
                    self.restarted.append(message)
                else:
                    self.heard.append(message)

    # -- what the supervisor does with it --------------------------------------------------------
    def terminate(self):
        self._asked("terminate", 0)

    def kill(self):
        self._asked("kill", -9)

    def wait(self, timeout=None):
        if self.status is None:
            assert timeout is not None, "it would wait for ever"
            self._world.now_s += timeout
            raise subprocess.TimeoutExpired("izwi", timeout)
        return self.status

    def _asked(self, how, status):
        self.asked.append((how, self._world.now_s))
        if how not in self.stubborn:
            self.die(status)


class World:
    """A supervisor's surroundings.

    Attributes:
        now_s: The clock.
        engines, api_servers: All that were started, in order.
        on_begin: What a process does when it has read what it is to do; ready at once by default.
        announced: When the server's address was printed.
    """

    def __init__(
        self,
        monkeypatch,
        *,
        num_api_servers=1,
        drain_s=20.0,
        record=None,
        replicas=None,
        operators=False,
        **settings,
    ):
        self.now_s = 1000.0
        self.engines, self.api_servers, self.announced, self.forgotten = [], [], [], []
        self.on_begin = lambda process: process.say(Ready())
        self.models = {}
        self._agenda, self._order, self._pids = [], count(), count(70_001)
        self._processes = []
        self._settings = Settings(**{"hung_after_s": 1e9, **settings})
        self.options = ServeOptions(
            *((), RuntimeOptions("cpu", "float32"), EngineConfig(), self._settings, drain_s),
            *(num_api_servers, record, replicas or ReplicaOptions(), operators),
        )
        fake = {
            "time": SimpleNamespace(monotonic=lambda: self.now_s),
            "subprocess": SimpleNamespace(
                Popen=self._start, TimeoutExpired=subprocess.TimeoutExpired
            ),
            "selectors": SimpleNamespace(
                DefaultSelector=lambda: _Selector(self), EVENT_READ=selectors.EVENT_READ
            ),
            "announce": lambda url: self.announced.append((url, self.now_s)),
            "mark_process_dead": lambda pid, folder: self.forgotten.append((pid, Path(folder))),
        }
        for name, part in fake.items():
            monkeypatch.setattr(supervisor, name, part)
        monkeypatch.setattr(child, "subprocess", fake["subprocess"])

    def run(self):
        """Run a supervisor to its end; its exit code."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.listener = listener
            return Supervisor(self.options, self.models, [listener], "http://here").run()

    def later(self, wait_s, action):
        """Do something after a while."""
        heapq.heappush(self._agenda, (self.now_s + wait_s, next(self._order), action))

    def begun(self, process):
        """Sort a process in that knows what it is to do."""
        (self.engines if process.is_engine else self.api_servers).append(process)
        self.on_begin(process)

    def listen(self):
        for process in self._processes:
            process.listen()

    def advance(self, until_s):
        """Run the next event, or let time pass until then; return whether one ran."""
        if not self._agenda or self._agenda[0][0] > until_s:
            assert until_s < float("inf"), "nothing will ever happen again"
            self.now_s = until_s
            return False
        due_s, _, action = heapq.heappop(self._agenda)
        self.now_s = max(self.now_s, due_s)
        action()
        return True

    def _start(self, command, *, stdin, pass_fds, env, start_new_session):
        assert start_new_session
        process = Process(self, next(self._pids), stdin, env)
        process.command, process.descriptors = command, tuple(pass_fds)
        self._processes.append(process)
        return process


class _Selector(selectors.DefaultSelector):
    def __init__(self, world):
        super().__init__()
        self._world = world

    def select(self, timeout=None):
        until_s = float("inf") if timeout is None else self._world.now_s + timeout
        while True:
            self._world.listen()
            if ready := super().select(0):
                return ready
            if not self._world.advance(until_s):
                return []
