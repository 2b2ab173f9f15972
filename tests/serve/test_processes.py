"""API servers and engine as processes: if any is killed, nothing hangs and all recover."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, closing, suppress
from http.client import HTTPConnection
from pathlib import Path
from types import ModuleType

import httpx
import pytest
from websockets.sync.client import connect

from izwi.recording.line import read_recording
from izwi_api.serve.api_server_process import api_server_config
from izwi_api.serve.child import Backoff
from izwi_api.serve.control import ApiServerSpec
from izwi_api.serve.listen_sockets import open_listen_sockets, url_of
from izwi_api.settings import Settings
from tests.api.conftest import wait_for
from tests.api.served import served
from tests.serve.test_live_sessions import REALTIME, STREAM, end_of, opened

SPEECH = "/v1/audio/speech"
ASK = {"model": "izwi-tiny-tts", "voice": "amber", "response_format": "pcm"}
SENTENCE = "The house is near the river and the road is long. "
LONG = ASK | {"input": SENTENCE * 3}
ESTABLISHED = "01"  # in /proc/net/tcp
PIECES = 3  # requests that the long text is cut into
SHORT = ASK | {"input": "Hello there, my friend.", "seed": 5}
BRIEF = SHORT | {"max_new_tokens": 2}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    options = ("--model", "izwi-tiny-tts", "--api-servers", "2")
    with served(folder, *options, IZWI_DECODE_WORKERS="1") as running:
        yield running


@pytest.fixture(scope="module")
def hasty(tmp_path_factory):
    """A server whose processes are killed when they do not respond for 4 s."""
    with served(tmp_path_factory.mktemp("hasty"), IZWI_HUNG_AFTER_S="4") as running:
        yield running


@pytest.fixture(scope="module")
def said(server):
    """The audio of the short text."""
    return say(server)


def say(server):
    answer = httpx.post(server.url + SPEECH, json=SHORT, timeout=60)
    assert answer.status_code == 200, answer.text
    return hashlib.sha256(answer.content).hexdigest()


def is_ready(server):
    with suppress(httpx.TransportError):
        return httpx.get(server.url + "/readyz").status_code == 200
    return False


class Listener:
    """Reads a long answer in a thread of its own."""

    def __init__(self, server, ask=LONG):
        self.num_bytes, self.is_whole, self.audio = 0, None, hashlib.sha256()
        self.leaves = False
        self.thread = threading.Thread(target=self._read, args=(server, ask))
        self.thread.start()
        wait_for(lambda: self.num_bytes or self.is_whole is not None)

    def _read(self, server, ask):
        try:
            with httpx.stream("POST", server.url + SPEECH, json=ask, timeout=60) as answer:
                for piece in answer.iter_raw():
                    self.num_bytes += len(piece)
                    self.audio.update(piece)
                    if self.leaves:
                        break
            self.is_whole = answer.status_code == 200
        except httpx.HTTPError:
            self.is_whole = False

    def join(self):
        self.thread.join(240)  # a busy machine speaks slower than it plays
        assert not self.thread.is_alive(), "it hangs"


def links_of(pid):
    """What a process's descriptors are."""
    links = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since it was listed
            links.append(str(entry.readlink()))
    return links


def connections_of(pid):
    """How many clients a process serves."""
    links = links_of(pid)
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[3] == ESTABLISHED and f"socket:[{row[9]}]" in links for row in rows)


def figure(server, name, model="izwi-tiny-tts"):
    text = httpx.get(server.url + "/metrics").text
    wanted = f'izwi_engine_{name}{{model="{model}"}} '
    lines = [line for line in text.splitlines() if line.startswith(wanted)]
    assert len(lines) <= 1, "the engine's figures are there once"
    return float(lines[0].rpartition(" ")[2]) if lines else None


def test_two_api_servers_before_one_engine(server, said):
    assert len(server.processes("api_server")) == 2
    assert len(server.processes("engine")) == 1
    assert say(server) == said
    for pid in server.processes("api_server"):
        assert "torch" not in Path(f"/proc/{pid}/maps").read_text()
    for kind in ("api_server", "engine"):  # keys and settings come by the control socket
        for pid in server.processes(kind):
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            assert words[1:-1] == ["-P", "-m", f"izwi_api.serve.{kind}_process"]


def test_requests_are_counted_over_all_api_servers(server, said):
    wanted = f'izwi_http_requests_total{{route="{SPEECH}",status="200"}} '

    def total():
        text = httpx.get(server.url + "/metrics").text
        return sum(
            float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(wanted)
        )

    def settled():
        """The count, once it stays the same: a request counts when its answer has been sent."""
        counts = [total()]
        while len(counts) < 5 or len(set(counts[-5:])) > 1:
            time.sleep(0.1)
            counts.append(total())
        return counts[-1]

    before = settled()
    for _ in range(6):
        assert httpx.post(server.url + SPEECH, json=BRIEF, timeout=60).status_code == 200
    assert settled() == before + 6
    assert figure(server, "steps_total") > 0


def test_disconnect_frees_the_engine(server, said):
    longer = LONG | {"input": LONG["input"] * 4}
    with httpx.stream("POST", server.url + SPEECH, json=longer) as answer:
        pieces = answer.iter_raw()
        next(pieces)
        wait_for(lambda: figure(server, "running") > 0)
        began = figure(server, "steps_total")
    wait_for(lambda: figure(server, "running") == 0)
    assert figure(server, "steps_total") - began < 40  # the whole text takes twice as many


def test_a_killed_api_server_costs_its_listeners_alone(server, said):
    listeners = [Listener(server) for _ in range(3)]
    api_servers = server.processes("api_server")
    served_by = {pid: connections_of(pid) for pid in api_servers}
    assert sum(served_by.values()) == 3
    killed = max(api_servers, key=served_by.get)
    os.kill(killed, signal.SIGKILL)
    # those of the other API server, if it has any, hear all of it; the engine has let go of the
    # rest
    others = PIECES * (3 - served_by[killed])
    wait_for(lambda: figure(server, "running") + figure(server, "waiting") <= others)
    for listener in listeners:
        listener.join()
    assert sum(listener.is_whole for listener in listeners) == 3 - served_by[killed]
    wait_for(lambda: len(server.processes("api_server")) == 2)
    assert say(server) == said


@pytest.mark.slow
def test_streams_outlive_the_deaths_of_engines_between_which_they_get_on(server, said):
    ask = ASK | {"input": SENTENCE * 2}
    undisturbed = Listener(server, ask)
    undisturbed.join()
    listeners = [Listener(server, ask) for _ in range(2)]
    longer = Listener(server, ASK | {"input": SENTENCE * 72})  # goes on after the second death
    (engine,) = server.processes("engine")
    os.kill(engine, signal.SIGKILL)
    # while it is away the API servers say so to who comes new
    wait_for(lambda: not is_ready(server))
    assert httpx.get(server.url + "/livez").status_code == 200
    refused = httpx.post(server.url + SPEECH, json=SHORT)
    assert refused.status_code in (200, 503)
    if refused.status_code == 503:
        assert 1 <= int(refused.headers["retry-after"]) <= 120
        assert refused.json()["error"]["code"] == "engine_stopped"
    for listener in listeners:
        listener.join()
        assert listener.is_whole
        assert listener.audio.digest() == undisturbed.audio.digest()
    wait_for(lambda: is_ready(server))
    # it got on, so that it is not the cause of the first death
    before = longer.num_bytes
    wait_for(lambda: longer.num_bytes > before + 200_000)
    (engine,) = server.processes("engine")
    os.kill(engine, signal.SIGKILL)
    wait_for(lambda: not is_ready(server))
    wait_for(lambda: is_ready(server))
    before = longer.num_bytes
    wait_for(lambda: longer.num_bytes > before)
    longer.leaves = True
    longer.join()
    assert say(server) == said


@pytest.mark.slow  # test_heartbeats.py and test_supervisor_times.py have its parts
def test_a_hung_process_is_killed_and_restarted(hasty, said):
    """Stopped, a process neither works nor dies."""
    wait_for(lambda: is_ready(hasty))
    before = hasty.log.read_text().count("has not responded for")
    own = set(hasty.processes())
    time.sleep(6)  # who has nothing to do does not hang
    assert set(hasty.processes()) == own
    for kind in ("engine", "api_server"):
        (process,) = hasty.processes(kind)
        listener = Listener(hasty)
        assert listener.num_bytes
        os.kill(process, signal.SIGSTOP)
        listener.join()
        assert listener.is_whole == (kind == "engine")  # the next engine goes on
        wait_for(lambda: is_ready(hasty))
        assert process not in hasty.processes(kind)
        assert say(hasty) == said
    assert hasty.log.read_text().count("has not responded for") == before + 2


# one that hangs is killed, after 4 s
@pytest.mark.slow  # test_engine_restart.py has its parts
@pytest.mark.parametrize("ending", ["hangs", "dies"])
def test_requests_whose_clients_left_are_not_brought_back(hasty, ending):
    """Clients leave while the engine does not read; its successor runs none of their requests."""
    wait_for(lambda: is_ready(hasty))
    before = len(hasty.log.read_text())
    with ExitStack() as clients:
        leave = [open_session(hasty, clients) for _ in range(3)]
        leave += [open_answer(hasty, clients) for _ in range(3)]
        wait_for(lambda: figure(hasty, "running") + figure(hasty, "waiting") > 6)
        (engine,) = hasty.processes("engine")
        os.kill(engine, signal.SIGSTOP)
        for client in leave:
            client.shutdown(socket.SHUT_RDWR)
        (api_server,) = hasty.processes("api_server")
        wait_for(lambda: not connections_of(api_server))
        if ending == "dies":
            os.kill(engine, signal.SIGKILL)
        wait_for(lambda: hasty.processes("engine") not in ([], [engine]))
        wait_for(lambda: figure(hasty, "running") is not None)  # it was welcomed
    assert "on the next engine" not in hasty.log.read_text()[before:]
    for name in ("running", "waiting", "paused", "steps_total"):
        assert figure(hasty, name) == 0


def open_session(server, clients):
    """A session that has written half a sentence, and waits: its socket."""
    url = server.url.replace("http", "ws") + SPEECH + "/stream"
    session = clients.enter_context(connect(url, proxy=None))
    config = {"model": "izwi-tiny-tts", "voice": "amber", "response_format": "pcm"}
    session.send(json.dumps({"type": "session.config"} | config))
    session.send(json.dumps({"type": "input.text", "text": "The house is near the "}))
    return session.socket


def open_answer(server, clients):
    """A long answer that has begun: its socket."""
    connection = clients.enter_context(closing(HTTPConnection("127.0.0.1", server.port)))
    headers = {"content-type": "application/json"}
    connection.request("POST", SPEECH, json.dumps(LONG), headers)
    stream = connection.sock
    assert connection.getresponse().read(1)
    return stream


@pytest.mark.slow
def test_a_trace_is_written_and_with_its_parent_gone_nothing_stays(tmp_path):
    """The supervisor is killed: the API server ends by itself, and says so to live sessions."""
    recording = tmp_path / "trace.jsonl"
    with served(tmp_path, "--record", str(recording), IZWI_DECODE_WORKERS="1") as server:
        say(server)
        wait_for(lambda: recording.read_bytes().endswith(b"\n"))
        (line,) = read_recording(recording)
        assert (line.ask.text, line.ask.seed) == (SHORT["input"], SHORT["seed"])
        own = server.processes() + list(server.children())
        assert len(own) >= 4
        (engine,) = server.processes("engine")
        folder = folder_of_sockets(engine)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        with ExitStack() as stack:
            sockets = [stack.enter_context(opened(server, path)) for path in (STREAM, REALTIME)]
            server.process.kill()
            assert [end_of(socket) for socket in sockets] == [1012, 1012]
        wait_for(lambda: not any(is_running(pid) for pid in own))
        wait_for(lambda: not folder.exists())


def folder_of_sockets(pid):
    links = links_of(pid)
    rows = [row.split() for row in Path("/proc/net/unix").read_text().splitlines()[1:]]
    mine = [row[7] for row in rows if len(row) > 7 and f"socket:[{row[6]}]" in links]
    return Path(next(path for path in mine if "/izwi-" in path)).parent


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        pytest.param(("--device", "cuda:99"), 2, "not available", marks=pytest.mark.slow),
        (("--port", "PORT"), 3, "in use"),
    ],
)
def test_server_that_cannot_start_exits_with_a_reason(server, tmp_path, options, code, said):
    command = [sys.executable, "-c", "from izwi_api.cli.run import main; main()", "serve"]
    command += ["--port", "0", "--kv-mib", "36"]
    command += [str(server.port) if option == "PORT" else option for option in options]
    environ = os.environ | {"IZWI_HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environ)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert done.stderr.count(said) == 1


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", ""])
def test_listeners_share_a_port_that_is_taken_then(host):
    listeners = open_listen_sockets(host, 0)
    try:
        (port,) = {listener.getsockname()[1] for listener in listeners}
        assert url_of(host, listeners) == f"http://{host or '0.0.0.0'}:{port}"
        with pytest.raises(OSError, match="in use"):
            open_listen_sockets("127.0.0.1", port)
    finally:
        for listener in listeners:
            listener.close()


def test_deaths_one_after_the_other_wait_longer():
    backoff = Backoff()
    waits = [backoff.after(worked_s=1.0) for _ in range(12)]
    assert waits == sorted(waits)
    assert (waits[0], waits[-1]) == (0.25, 30.0)
    assert backoff.after(worked_s=600.0) == 0.25


async def nothing(scope, receive, send):
    del scope, receive, send


@pytest.mark.parametrize("num_api_servers", [1, 2])
def test_api_servers_that_share_a_port_accept_with_asyncio_where_uvloop_is(
    monkeypatch, tmp_path, num_api_servers
):
    """uvloop listens anew, with a queue as short as what is accepted in one go."""
    uvloop = ModuleType("uvloop")
    uvloop.new_event_loop = asyncio.new_event_loop
    monkeypatch.setitem(sys.modules, "uvloop", uvloop)
    metrics = tmp_path if num_api_servers > 1 else None
    spec = ApiServerSpec("api-server-0", tmp_path, (), {}, Settings(), 0.0, False, metrics, None)
    config = api_server_config(nothing, spec)
    assert (config.backlog == 1) == (num_api_servers > 1)
    if num_api_servers > 1:
        assert config.get_loop_factory() is asyncio.SelectorEventLoop
    else:
        assert config.get_loop_factory() is uvloop.new_event_loop
