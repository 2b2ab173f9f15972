"""A real run changes each metric of /metrics, except those that are the same on any CPU."""

from __future__ import annotations

import base64
import json
import os
import signal
import tempfile
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from izwi.audio.pcm import to_s16le
from izwi.metrics import LOAD_KEYS
from izwi_api.http.metrics import EngineFigures, HttpMetrics
from izwi_api.serve.operator_socket import ListReplicas, ask_supervisor
from tests.api.conftest import wait_for
from tests.api.served import served
from tests.realtime.world import recorded

pytestmark = pytest.mark.slow

TTS, ASR, CHAT = "izwi-tiny-tts", "izwi-tiny-asr", "izwi-tiny-chat"
LONG = "The house is near the river and the road is long, and the water is cold today. " * 2
# Metrics that are the same from the start of a server to its end, and why.
CONSTANT = {
    "izwi_engine_pages": "the memory plan",
    "izwi_engine_page_bytes": "the memory plan",
    "izwi_engine_page_positions": "an option",
}
# Metrics that are 0 on a CPU, and why; tests/serve/test_gpu_metrics.py has them on a GPU.
ZERO = {
    "izwi_engine_weight_bytes": "a CPU has no memory of its own to plan",
    "izwi_engine_state_bytes": "as above",
    "izwi_engine_graph_bytes": "as above",
    "izwi_engine_shared_bytes": "as above",
    "izwi_engine_compilations": "no kernel is compiled",
    "izwi_engine_graph_captures": "no graph is captured",
}
# Metrics of what this run does not have, and the test that has it.
ELSEWHERE = {
    "izwi_webhooks": "tests/api/batches/test_webhooks.py",
    "izwi_replica_circuit": "tests/api/http/test_replica_reports.py",
    "izwi_engine_resumes": "tests/engine/test_pause.py: an answer may be made before a cough",
    "izwi_engine_saved_state_bytes": "tests/engine/test_pause.py, as more streams than 64 must run",
}


class Several:
    """An engine of several, as an API server sees it."""

    load = {"tts": dict.fromkeys(LOAD_KEYS, 1.0)}  # noqa: RUF012


def all_names() -> set[str]:
    """Return the names of all metrics of a server with several engines on a CPU."""
    registry = HttpMetrics().registry
    registry.register(EngineFigures(Several()))
    names = {family.name for family in registry.collect()}
    return names | {"izwi_replica", "izwi_replica_circuit"}


class Watch:
    """Reads /metrics again and again, and notes which metrics have had several values."""

    def __init__(self, url: str):
        self._url, self._ends = url, threading.Event()
        self._seen: dict[str, dict[tuple, set[float]]] = defaultdict(lambda: defaultdict(set))
        self.last: dict[str, float] = {}
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Watch:
        self.read()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        self.read()

    def _run(self) -> None:
        while not self._ends.wait(0.1):
            self.read()

    def read(self) -> None:
        text = httpx.get(f"{self._url}/metrics", timeout=60).text
        totals: dict[str, float] = defaultdict(float)
        for family in text_string_to_metric_families(text):
            for one in family.samples:
                if not one.name.endswith("_created"):
                    labels = (one.name, *sorted(one.labels.items()))
                    self._seen[family.name][labels].add(one.value)
                    totals[one.name] += one.value
        self.last = totals

    def changed(self) -> set[str]:
        """Return the metrics with a series that had two values, or that came with a count."""
        return {
            name
            for name, series in self._seen.items()
            if any(
                len(values) > 1 or (labels[0].endswith(("_total", "_bucket")) and max(values) > 0)
                for labels, values in series.items()
            )
        }

    def values(self, name: str) -> set[float]:
        """Return all values of all series of a metric."""
        return set().union(*self._seen[name].values())


def speak(url: str, seed: int, text: str = LONG, **more: object) -> tuple[int, bytes]:
    body = {"model": TTS, "voice": "amber", "input": text, "seed": seed, "response_format": "wav"}
    done = httpx.post(f"{url}/v1/audio/speech", json=body | more, timeout=300)
    return done.status_code, done.content


def stream(url: str, seed: int, during=None, text: str = LONG) -> int:
    """Stream speech; call `during` once audio has come."""
    body = {"model": TTS, "voice": "amber", "input": text, "seed": seed, "response_format": "pcm"}
    with httpx.stream("POST", f"{url}/v1/audio/speech", json=body, timeout=300) as answer:
        for number, _ in enumerate(answer.iter_raw()):
            if number == 1 and during is not None:
                during()
    return answer.status_code


def transcribe(url: str, clip: bytes) -> None:
    files = {"file": ("clip.wav", clip)}
    done = httpx.post(
        f"{url}/v1/audio/transcriptions", data={"model": ASR}, files=files, timeout=300
    )
    assert done.status_code == 200


def chat(url: str, text: str) -> None:
    body = {"model": CHAT, "messages": [{"role": "user", "content": text}], "seed": 1}
    assert httpx.post(f"{url}/v1/chat/completions", json=body, timeout=300).status_code == 200


class Session:
    """A live session that sends its microphone in real time."""

    def __init__(self, socket):
        self._socket = socket
        self.tell("session.update", session={"audio": {"input": {"transcription": {}}}})

    def tell(self, kind: str, **fields: object) -> None:
        self._socket.send(json.dumps({"type": kind, **fields}))

    def until(self, kind: str) -> dict:
        while True:
            event = json.loads(self._socket.recv(120))
            assert event["type"] != "error", event
            if event["type"] == kind:
                return event

    def ask(self, text: str) -> None:
        content = [{"type": "input_text", "text": text}]
        item = {"type": "message", "role": "user", "content": content}
        self.tell("conversation.item.create", item=item)
        self.tell("response.create")

    def hear(self, samples) -> None:
        data = to_s16le(np.asarray(samples, np.float32))
        for start in range(0, len(data), 4800):
            audio = base64.b64encode(data[start : start + 4800]).decode()
            self.tell("input_audio_buffer.append", audio=audio)
            time.sleep(0.1)


def converse(url: str, pids: list[int]) -> None:
    """Ask aloud, cough over an answer, and talk over another one; pages last for one answer.

    The engines stop for a while in the first answer.
    """
    silence = np.zeros(24_000, np.float32)
    question = recorded("question")
    for over in (None, recorded("short/noise-cough-1"), question):
        with connect(f"{url.replace('http', 'ws', 1)}/v1/realtime?model={CHAT}") as socket:
            session = Session(socket)
            if over is None:
                session.hear(np.concatenate([silence, question, silence]))
                session.until("response.output_audio.delta")
                stall(*pids)
            else:
                session.ask("When does the train leave?")  # a long answer
                session.until("response.output_audio.delta")
                session.hear(np.concatenate([over, silence, silence]))
            session.until("response.done")


def overload(url: str, watch: Watch) -> None:
    """Send long texts until some have taken pages from others, and some did not start in time."""
    for start in range(0, 240, 24):
        with ThreadPoolExecutor(24) as pool:
            answers = list(pool.map(lambda seed: speak(url, seed)[0], range(start, start + 24)))
        assert set(answers) <= {200, 503}
        watch.read()
        if all(watch.last[f"izwi_engine_{name}_total"] for name in ("preempted", "refused")):
            return
    raise AssertionError("no engine was overloaded")


def refuse_a_session(url: str) -> None:
    with pytest.raises(InvalidStatus), connect(f"{url.replace('http', 'ws', 1)}/v1/none"):
        pass


def stall(*pids: int) -> None:
    """Stop engines for longer than what their listeners have to play."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(6.0)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


def run(server, watch: Watch) -> None:
    """Do all that a server can do, one after the other."""
    url = server.url
    status, clip = speak(url, 1, "The train leaves at seven.")
    assert status == 200
    assert stream(url, 2, text="Yes.") == 200, "too short for a gap"
    transcribe(url, clip)
    for _ in range(2):
        chat(url, "Spell garden, then spell garden again, then spell garden a third time.")
    overload(url, watch)
    refuse_a_session(url)
    replicas = ask_supervisor(server.port, ListReplicas()).replicas
    converse(url, [one.pid for one in replicas])
    with ThreadPoolExecutor(4) as pool:  # one of them on each engine
        list(
            pool.map(lambda seed: stream(url, seed, lambda: stall(replicas[seed % 2].pid)), (1, 2))
        )
        killed = threading.Event()

        def kill() -> None:
            if not killed.is_set():
                killed.set()
                os.kill(replicas[0].pid, signal.SIGKILL)

        assert set(pool.map(lambda seed: stream(url, seed, kill), range(4))) == {200}
    wait_for(lambda: ask_supervisor(server.port, ListReplicas()).replicas[0].status == "ready")
    wait_for(lambda: watch.last["izwi_restarts_total"] == 1)


def test_each_metric_changes_in_a_run(tmp_path, monkeypatch) -> None:
    options = [word for model in (TTS, ASR, CHAT) for word in ("--model", model)]
    options += ["--replicas", "2", "--min-ready", "2", "--speculate", "ngram"]
    options += ["--max-queue-s", "1", "--kv-mib", "3", "--host-mib", "4", "--disk-mib", "16"]
    with tempfile.TemporaryDirectory(prefix="izwi-") as runtime:
        monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)  # short, as paths of sockets must be
        with served(tmp_path, *options) as server, Watch(server.url) as watch:
            run(server, watch)
    missing = all_names() - watch.changed() - CONSTANT.keys() - ZERO.keys() - ELSEWHERE.keys()
    assert missing == set(), "no series of these has changed"
    for name in CONSTANT:
        assert 0.0 not in watch.values(name), name
    for name in ZERO:
        assert watch.values(name) == {0.0}, name
