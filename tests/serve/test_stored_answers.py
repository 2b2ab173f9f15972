"""Earlier answers are found by every API server, also after the one that stored them has died."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack

import httpx
import pytest

from tests.api.conftest import wait_for
from tests.api.served import served
from tests.models.tiny_chat import write_tiny_chat
from tests.models.tiny_lfm2_audio import CALM, write_tiny_lfm2_audio
from tests.serve.test_processes import connections_of

FIRST = {"role": "user", "content": "Who is there?"}
ALOUD = {
    "model": "s2s",
    "modalities": ["text", "audio"],
    "audio": {"voice": "any", "format": "pcm16"},
    "max_completion_tokens": 12,
    "seed": 1,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("kept")
    folders = (write_tiny_lfm2_audio(root / "s2s", loudness=CALM), write_tiny_chat(root / "chat"))
    models = [word for folder in folders for word in ("--model", str(folder))]
    options = ("--api-servers", "2", "--device", "cpu", *models)
    with served(root, *options, IZWI_DECODE_WORKERS="1") as running:
        yield running


def clients_of_both(server, stack: ExitStack) -> dict[int, httpx.Client]:
    """A client of each API server, by its process: they stay connected."""
    clients: dict[int, httpx.Client] = {}
    for _ in range(60):
        before = {pid: connections_of(pid) for pid in server.processes("api_server")}
        client = stack.enter_context(httpx.Client(base_url=server.url, timeout=60))
        client.get("/livez")
        for pid, count in before.items():
            if connections_of(pid) > count:
                clients.setdefault(pid, client)
        if len(clients) == 2:
            return clients
    raise AssertionError("all connections go to one API server")


def post(client: httpx.Client, path: str, **body):
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.mark.slow  # tests/api has the same with one API server
def test_either_api_server_finds_what_the_other_answered(server):
    with ExitStack() as stack:
        (first_pid, first), (_, second) = clients_of_both(server, stack).items()
        path = "/v1/chat/completions"
        said = post(first, path, messages=[FIRST], **ALOUD)["choices"][0]["message"]["audio"]
        given = {"role": "assistant", "audio": {"id": said["id"]}}
        turns = [FIRST, given, FIRST]
        after = [post(client, path, messages=turns, **ALOUD) for client in (first, second)]
        clips = [answer["choices"][0]["message"]["audio"]["data"] for answer in after]
        assert clips[0] == clips[1]
        ask = {"model": "chat", "max_output_tokens": 4}
        response = post(first, "/v1/responses", input="One.", **ask)
        for client in (second, first):
            post(client, "/v1/responses", input="Two.", previous_response_id=response["id"], **ask)
        # who answered is gone, what it answered is not
        os.kill(first_pid, signal.SIGKILL)
        wait_for(lambda: first_pid not in server.processes("api_server"))
        wait_for(lambda: len(server.processes("api_server")) == 2)
        again = post(second, path, messages=turns, **ALOUD)
        assert again["choices"][0]["message"]["audio"]["data"] == clips[0]
        for client in clients_of_both(server, stack).values():
            again = post(client, path, messages=turns, **ALOUD)
            assert again["choices"][0]["message"]["audio"]["data"] == clips[0]
