"""izwi on a local Ray cluster: streams outlive the actor that began them."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from websockets.sync.client import connect

from izwi.errors import InvalidRequest
from tests.api.conftest import wait_for

pytest.importorskip("ray", reason="needs izwi[ray]")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SPEECH = "/v1/audio/speech"
TEXT = "The house is near the river and the road is long."
ASK = {"model": "izwi-tiny-tts", "voice": "amber", "response_format": "pcm", "input": TEXT}
NUM_STREAMS = 20
FILE = """
models: [izwi-tiny-tts, izwi-tiny-asr, izwi-tiny-chat]
engine_gpus: 0
engine_cpus: 0.1
api_server_cpus: 0.1
engines: 2
api_servers: 2
"""
SCALING = """
models: [izwi-tiny-tts]
engine_gpus: 0
engine_cpus: 0.1
api_server_cpus: 0.1
engines: 1
max_engines: 3
streams_each: 2
least_slack_ms: 0
upscale_delay_s: 1
downscale_delay_s: 5
"""


class Cluster:
    def __init__(self, process, url, home):
        self.process, self.url, self._home = process, url, home

    def actors(self):
        """Ids of the actors of engines: the parents of their processes."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                is_engine = b"engine_process" in (folder / "cmdline").read_bytes()
                if is_engine and self._home.encode() in (folder / "environ").read_bytes():
                    status = (folder / "stat").read_text().rpartition(")")[2].split()
                    found.append(int(status[1]))
        return sorted(found)

    def ready(self):
        """Engines that accept requests."""
        try:
            answer = httpx.get(f"{self.url}/readyz", timeout=20).json()
        except (httpx.HTTPError, ValueError):  # Ray's own page, while it starts
            return []
        replicas = answer.get("replicas", [])
        return [one["replica"] for one in replicas if one["status"] == "ready"]


@contextmanager
def deployed(folder, text):
    """A cluster of this machine, with an application."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    file = folder / "app.yaml"
    file.write_text(f"{text}\nport: {port}\n", encoding="utf-8")
    environ = os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "IZWI_DECODE_WORKERS": "0"}
    environ |= {"IZWI_HOME": str(folder / "home"), "HOME": str(folder)}
    command = [sys.executable, "-c", "from izwi_api.cli.run import main; main()"]
    command += ["ray", "deploy", str(file), "--address", "local"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, env=environ, stdout=log, stderr=log)
    try:
        yield Cluster(process, f"http://127.0.0.1:{port}", str(folder / "home"))
    except BaseException:
        print((folder / "log").read_text(encoding="utf-8")[-20_000:])
        raise
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with deployed(tmp_path_factory.mktemp("ray"), FILE) as running:
        wait_for(lambda: len(running.ready()) == 2, 300)
        yield running


class Listener:
    """Reads an answer in a thread of its own."""

    def __init__(self, url, seed, num_frames=60):
        self.audio, self.num_bytes, self.status = hashlib.sha256(), 0, None
        ask = ASK | {"seed": seed, "max_new_tokens": num_frames}
        self._thread = threading.Thread(target=self._read, args=(url, ask))
        self._thread.start()

    def _read(self, url, ask):
        try:
            with httpx.stream("POST", url + SPEECH, json=ask, timeout=300) as answer:
                for piece in answer.iter_raw():
                    self.audio.update(piece)
                    self.num_bytes += len(piece)
            self.status = answer.status_code
        except httpx.HTTPError as error:
            self.status = repr(error)

    def result(self):
        self._thread.join(400)
        assert not self._thread.is_alive(), "it hangs"
        return self.status, self.num_bytes, self.audio.hexdigest()


def test_streams_of_a_killed_actor_go_on_at_the_same_byte(cluster):
    wanted = [one.result() for one in [Listener(cluster.url, n) for n in range(NUM_STREAMS)]]
    assert {status for status, _, _ in wanted} == {200}
    listeners = [Listener(cluster.url, seed) for seed in range(NUM_STREAMS)]
    wait_for(lambda: all(one.num_bytes for one in listeners), 120)
    before = cluster.actors()
    assert len(before) == 2
    assert any(one.status is None for one in listeners), "some are in flight"
    os.kill(before[0], signal.SIGKILL)
    assert [one.result() for one in listeners] == wanted
    wait_for(lambda: len(cluster.ready()) == 2, 300)  # Ray has replaced it
    assert before[0] not in cluster.actors()


def test_a_live_session_speaks_through_the_proxy(cluster):
    url = cluster.url.replace("http", "ws", 1) + "/v1/realtime?model=izwi-tiny-chat"
    content = [{"type": "input_text", "text": "What is the capital of France?"}]
    item = {"type": "message", "role": "user", "content": content}
    num_audio, said = 0, ""
    with connect(url, open_timeout=60) as live:
        live.send(json.dumps({"type": "conversation.item.create", "item": item}))
        live.send(json.dumps({"type": "response.create"}))
        for message in live:
            event = json.loads(message)
            assert event["type"] != "error", event
            num_audio += event["type"] == "response.output_audio.delta"
            if event["type"] == "response.output_audio_transcript.done":
                said = event["transcript"]
            if event["type"] == "response.done":
                break
    assert num_audio > 1
    assert "Paris" in said


def test_requests_of_one_session_reach_the_api_server_that_stores_its_answers(cluster):
    """Of two API servers: without the header, a session would survive by chance only."""
    with httpx.Client(base_url=cluster.url, timeout=120) as http:
        for number in range(8):
            headers = {"x-session-id": f"session-{number}"}
            ask = {"model": "izwi-tiny-chat", "input": "What is the capital of France?"}
            for _ in range(3):
                answer = http.post("/v1/responses", json=ask, headers=headers)
                assert answer.status_code == 200, answer.text
                ask |= {"previous_response_id": answer.json()["id"]}


def test_engines_come_and_go_with_the_load_without_an_error(tmp_path):
    with deployed(tmp_path, SCALING) as cluster:
        wait_for(lambda: len(cluster.ready()) == 1, 300)
        wanted = [Listener(cluster.url, seed, 40).result() for seed in range(6)]
        assert {status for status, _, _ in wanted} == {200}
        grown, results = threading.Event(), [[] for _ in wanted]

        def ask_again_and_again(seed):
            while not grown.is_set():
                results[seed].append(Listener(cluster.url, seed, 40).result())

        callers = [threading.Thread(target=ask_again_and_again, args=(n,)) for n in range(6)]
        for one in callers:
            one.start()
        try:
            wait_for(lambda: len(cluster.ready()) == 3, 300)
        finally:
            grown.set()
            for one in callers:
                one.join(400)
        # one more of each, while engines are given up
        rest = [Listener(cluster.url, seed, 40) for seed in range(6)]
        for seed, one in enumerate(rest):
            results[seed].append(one.result())
        wait_for(lambda: len(cluster.ready()) == 1, 300)
        wait_for(lambda: len(cluster.actors()) == 1, 120)
        for seed, heard in enumerate(results):
            assert set(heard) == {wanted[seed]}


@pytest.mark.filterwarnings("ignore")  # Ray's own, of its imports
def test_an_app_for_a_running_cluster_is_not_built_without_a_key(monkeypatch):
    from izwi_api.serve.ray_app import build

    for name in ("IZWI_API_KEY", "IZWI_API_KEYS"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InvalidRequest, match="without a key"):
        build({"engine_gpus": 0})
