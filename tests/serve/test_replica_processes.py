"""Several engine processes behind one server: streams outlive the engine that began them."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import tempfile
import threading
from contextlib import contextmanager

import httpx
import pytest

from izwi.errors import IzwiError
from izwi_api.schemas.warm_file import WarmFile, WarmVoice
from izwi_api.serve.operator_socket import (
    DrainReplica,
    ListReplicas,
    LoadServed,
    ReadMetrics,
    RestartReplicas,
    ResumeReplica,
    WarmReplicas,
    ask_supervisor,
)
from tests.api.conftest import wait_for
from tests.api.served import served

SPEECH = "/v1/audio/speech"
ASK = {"model": "izwi-tiny-tts", "voice": "amber", "response_format": "pcm"}
WAYS = ("kill", "drain", "restart", "stop")
TEXT = "The house is near the river and the road is long."


@contextmanager
def replicated(folder, *options, **environ):
    """A server with two engines, whose socket for operators is in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="izwi-") as runtime, pytest.MonkeyPatch.context() as m:
        m.setenv("XDG_RUNTIME_DIR", runtime)  # short, as paths of sockets must be
        with served(folder, "--replicas", "2", "--min-ready", "2", *options, **environ) as server:
            yield server


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    options = ("--model", "izwi-tiny-tts")
    folder = tmp_path_factory.mktemp("replicas")
    with replicated(folder, *options, IZWI_DECODE_WORKERS="0") as running:
        yield running


class Listener:
    """Reads an answer in a thread of its own."""

    def __init__(self, server, seed, num_frames):
        self.audio, self.num_bytes, self.status = hashlib.sha256(), 0, None
        ask = ASK | {"input": TEXT, "seed": seed, "max_new_tokens": num_frames}
        self._thread = threading.Thread(target=self._read, args=(server.url, ask))
        self._thread.start()

    def _read(self, url, ask):
        try:
            with httpx.stream("POST", url + SPEECH, json=ask, timeout=120) as answer:
                for piece in answer.iter_raw():
                    self.audio.update(piece)
                    self.num_bytes += len(piece)
            self.status = answer.status_code
        except httpx.HTTPError as error:
            self.status = repr(error)

    def join(self):
        self._thread.join(240)
        assert not self._thread.is_alive(), "it hangs"
        return self.status, self.num_bytes, self.audio.hexdigest()


def listen(server, num_streams, num_frames):
    return [Listener(server, seed, num_frames) for seed in range(num_streams)]


def replicas(server):
    return ask_supervisor(server.port, ListReplicas()).replicas


def are_ready(server):
    return [one.status for one in replicas(server)] == ["ready", "ready"]


def num_moved(server):
    """Requests that went on elsewhere, by replica."""
    found = re.findall(r"(\d+) requests of replica (\d+) go on elsewhere", server.log.read_text())
    return [sum(int(count) for count, one in found if one == str(number)) for number in range(2)]


def disturb(server, how):
    """Take an engine's requests away while streams run."""
    first = replicas(server)[0]
    if how == "kill":
        os.kill(first.pid, signal.SIGKILL)
    elif how == "stop":
        os.kill(first.pid, signal.SIGSTOP)
    elif how == "drain":
        assert ask_supervisor(server.port, DrainReplica(0)).replicas[0].status == "drained"
    else:
        ask_supervisor(server.port, RestartReplicas())


def mend(server, how, pid, before):
    """Make both engines ready again."""
    if how == "stop":
        wait_for(lambda: replicas(server)[0].status == "unresponsive")
        os.kill(pid, signal.SIGCONT)
    elif how == "drain":
        ask_supervisor(server.port, ResumeReplica(0))
    elif how == "restart":
        wait_for(lambda: all(one.num_starts > before[one.replica] for one in replicas(server)))
    wait_for(lambda: are_ready(server))


def heard_when_disturbed(server, how, num_streams, num_frames):
    """Return what listeners hear of streams whose engine is lost in their midst."""
    wait_for(lambda: are_ready(server))
    before, pid = num_moved(server)[0], replicas(server)[0].pid
    starts = [one.num_starts for one in replicas(server)]
    listeners = listen(server, num_streams, num_frames)
    wait_for(lambda: all(one.num_bytes for one in listeners))
    disturb(server, how)
    heard = [one.join() for one in listeners]
    assert num_moved(server)[0] > before
    if how != "kill":  # it is replaced by itself
        mend(server, how, pid, starts)
    return heard


@pytest.fixture(scope="module")
def undisturbed(server):
    return [one.join() for one in listen(server, 4, 32)]


@pytest.mark.parametrize(
    "how", ["kill", *(pytest.param(how, marks=pytest.mark.slow) for how in WAYS[1:])]
)
def test_streams_of_a_lost_engine_go_on_at_the_same_byte(server, undisturbed, how):
    heard = heard_when_disturbed(server, how, 4, 32)
    assert heard == undisturbed
    assert all(status == 200 and num_bytes > 100_000 for status, num_bytes, _ in heard)


def test_an_operator_reads_metrics_and_warms_without_http(server):
    text = ask_supervisor(server.port, ReadMetrics()).text
    ready = [line for line in text.splitlines() if line.startswith("izwi_replica{")]
    assert len(ready) >= 2
    wanted = WarmFile(voice=(WarmVoice("izwi-tiny-tts", "amber"),))
    warmed = ask_supervisor(server.port, WarmReplicas(wanted, 1)).text
    assert warmed == "replica 1: 1 of 1"
    with pytest.raises(IzwiError, match="--manage-models"):
        ask_supervisor(server.port, LoadServed("izwi-tiny-asr"))


@pytest.mark.slow
@pytest.mark.parametrize("how", WAYS)
def test_twenty_streams_outlive_their_engine(tmp_path_factory, how):
    """Twice as many as one engine batches at ease; each part of each is the same."""
    with replicated(tmp_path_factory.mktemp("twenty"), "--api-servers", "2") as server:
        expected = [one.join() for one in listen(server, 20, 60)]
        listeners = listen(server, 20, 60)
        wait_for(lambda: all(one.num_bytes for one in listeners))
        disturb(server, how)
        assert [one.join() for one in listeners] == expected
        if how in ("kill", "stop"):
            assert num_moved(server)[0] > 0
