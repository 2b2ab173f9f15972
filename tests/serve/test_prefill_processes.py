"""Two engine processes of which one computes long prompts: the answers of one engine."""

from __future__ import annotations

import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx
import pytest

from izwi_api.serve.operator_socket import ReadMetrics, ask_supervisor
from tests.api.conftest import wait_for
from tests.api.served import served
from tests.serve.test_replica_processes import replicas, replicated

pytestmark = pytest.mark.slow
CHAT = ("--model", "izwi-tiny-chat")
APART = ("--prefill-replicas", "1", "--prefill-positions", "64")
WORDS = "The house is near the river, the road is long and the trees are old. "


def answer(server, number):
    """Return an answer with the probability of each token."""
    system = {"role": "system", "content": f"Number {number}. Answer in one short sentence."}
    body = {
        "model": "izwi-tiny-chat",
        "messages": [system, {"role": "user", "content": WORDS * 4 + "What is old?"}],
        "max_tokens": 8,
        "seed": number,
        "temperature": 0.8,
        "logprobs": True,
    }
    response = httpx.post(server.url + "/v1/chat/completions", json=body, timeout=120)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


def num_steps(server, replica):
    metrics = ask_supervisor(server.port, ReadMetrics()).text
    name = rf'^izwi_engine_steps_total{{.*replica="{replica}".*}} (\S+)$'
    return sum(map(float, re.findall(name, metrics, re.MULTILINE)))


def test_answers_are_those_of_one_engine_and_outlive_the_one_that_computes_prompts(tmp_path):
    folders = [tmp_path / name for name in ("alone", "apart")]
    for folder in folders:
        folder.mkdir()
    with ThreadPoolExecutor(4) as threads:
        with served(folders[0], *CHAT) as server:
            expected = list(threads.map(partial(answer, server), range(8)))
        with replicated(folders[1], *CHAT, *APART) as server:
            first = replicas(server)[0]
            found = list(threads.map(partial(answer, server), range(4)))
            assert found == expected[:4]
            wait_for(lambda: num_steps(server, 0) > 0)
            later = [threads.submit(answer, server, number) for number in range(4, 8)]
            os.kill(first.pid, signal.SIGKILL)
            assert [one.result() for one in later] == expected[4:]
