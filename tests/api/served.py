"""`izwi serve` in its own process, and the resources that it uses."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

MIB = 1 << 20


class Served:
    """A running server with the embedded checkpoints."""

    def __init__(self, process, url, log):
        self.process, self.url, self.log = process, url, log
        self.port = int(url.rpartition(":")[2])

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def processes(self, kind=""):
        """Ids of the server's own processes, or of those of a kind: "engine" or "API server"."""
        own = [
            pid for pid, _ in _children([self.process.pid]) if "izwi_api.serve." in _command(pid)
        ]
        if kind:
            return [pid for pid in own if f"{kind}_process" in _command(pid)]
        return [self.process.pid, *own]

    def rss_mib(self):
        """Memory of the server's own processes."""
        pages = sum(int(_proc(pid, "statm").split()[1]) for pid in self.processes())
        return pages * os.sysconf("SC_PAGE_SIZE") / MIB

    def peak_mib(self):
        return sum(int(self._status(pid, "VmHWM").split()[0]) for pid in self.processes()) / 1024

    def forget_peak(self):
        for pid in self.processes():
            Path(f"/proc/{pid}/clear_refs").write_text("5")

    def cpu_s(self):
        """Seconds of processor time of the server's processes and of their children."""
        own = self.processes()
        living = (pid for pid, _ in _children(own) if pid not in own)
        ticks = 0
        for pid, places in (
            *((pid, (0, 1, 2, 3)) for pid in own),
            *((pid, (0, 1)) for pid in living),
        ):
            with suppress(OSError):  # it has ended meanwhile
                times = _proc(pid, "stat").rpartition(")")[2].split()[11:15]
                ticks += sum(int(times[place]) for place in places)
        return ticks / os.sysconf("SC_CLK_TCK")

    def num_threads(self):
        return sum(int(self._status(pid, "Threads")) for pid in self.processes())

    def num_descriptors(self):
        return sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in self.processes())

    def children(self):
        """Process id and state of the processes that decode files."""
        own = self.processes()
        return {pid: state for pid, state in _children(own) if pid not in own}

    def raw(self, content, *, end=False, timeout_s=60.0):
        """Send bytes and read until the server hangs up: (status or None, all that came)."""
        came = b""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout_s) as stream:
            with suppress(ConnectionError):
                stream.sendall(content)
                if end:
                    stream.shutdown(socket.SHUT_WR)
            with suppress(ConnectionError, TimeoutError):
                while piece := stream.recv(1 << 16):
                    came += piece
        return (int(came.split(b" ", 2)[1]) if came.startswith(b"HTTP/1.1 ") else None), came

    def drip(self, head, drop, *, every_s=0.1, for_s=60.0):
        """Send a head, then a few bytes again and again, and read the response, as `raw` does."""
        came, until_s = b"", time.monotonic() + for_s
        with socket.create_connection(("127.0.0.1", self.port), timeout=every_s) as stream:
            stream.sendall(head)
            with suppress(ConnectionError):
                while time.monotonic() < until_s:
                    with suppress(TimeoutError):
                        if not (piece := stream.recv(1 << 16)):
                            break
                        came += piece
                        continue
                    stream.sendall(drop)
        return (int(came.split(b" ", 2)[1]) if came.startswith(b"HTTP/1.1 ") else None), came

    def _status(self, pid, name):
        return _proc(pid, "status").split(f"{name}:", 1)[1].split("\n", 1)[0].strip()


def _children(parents):
    """Process id and state of every child of these processes."""
    for parent in parents:
        # each thread has its own; to look through all processes would take far longer
        for listed in Path(f"/proc/{parent}/task").glob("*/children"):
            with suppress(OSError):  # the parent or its thread has ended
                for pid in listed.read_text().split():
                    with suppress(OSError):
                        yield int(pid), _proc(pid, "stat").rpartition(")")[2].split()[0]


def _command(pid):
    try:
        return _proc(pid, "cmdline")
    except OSError:
        return ""


def _proc(pid, name):
    return Path(f"/proc/{pid}/{name}").read_text()


@contextmanager
def served(folder, *options, verify=None, **environ):
    """Start a server, wait until it is ready, and finally stop it; over TLS with `verify`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log, url = folder / "server.log", f"http{'s' * (verify is not None)}://127.0.0.1:{port}"
    start = "from izwi_api.cli.run import main; main()"
    command = [sys.executable, "-c", start, "serve", "--port", str(port)]
    command += ["--device", "cpu", "--dtype", "float32", "--kv-mib", "36", "--host-mib", "0"]
    command += options
    usual = {"IZWI_HOME": str(folder / "home"), "IZWI_DECODE_WORKERS": "1"}
    environ = os.environ | usual | environ
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=environ)
    try:
        until_s = time.monotonic() + 120
        while True:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until_s, log.read_text()
            with suppress(httpx.TransportError):
                ready = httpx.get(f"{url}/readyz", verify=True if verify is None else verify)
                if ready.status_code == 200:
                    break
            time.sleep(0.1)
        yield Served(process, url, log)
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
