"""Two engine processes of which one computes prompts: listeners hear what one engine says."""

from __future__ import annotations

import os
import re
import signal

import pytest

from izwi_api.serve.operator_socket import ReadMetrics, ask_supervisor
from tests.api.conftest import wait_for
from tests.api.served import served
from tests.serve.test_replica_processes import are_ready, listen, replicas, replicated

pytestmark = pytest.mark.slow
SPEAKS = ("--model", "izwi-tiny-tts")
APART = ("--prefill-replicas", "1", "--prefill-positions", "32")
FRAMES = 16


def num_steps(server, replica):
    metrics = ask_supervisor(server.port, ReadMetrics()).text
    found = re.findall(
        rf'^izwi_engine_steps_total{{.*replica="{replica}".*}} (\S+)$', metrics, re.M
    )
    return sum(map(float, found))


def test_listeners_hear_one_engine_and_outlive_the_one_that_computes_prompts(tmp_path):
    folders = [tmp_path / name for name in ("alone", "apart")]
    for folder in folders:
        folder.mkdir()
    with served(folders[0], *SPEAKS) as server:
        expected = [one.join() for one in listen(server, 4, FRAMES)]
    with replicated(folders[1], *SPEAKS, *APART) as server:
        first = replicas(server)[0]
        listeners = listen(server, 4, FRAMES)
        assert [one.join() for one in listeners] == expected
        wait_for(lambda: num_steps(server, 0) > 0)
        assert num_steps(server, 1) > num_steps(server, 0)
        wait_for(lambda: are_ready(server))
        listeners = listen(server, 4, FRAMES)
        os.kill(first.pid, signal.SIGKILL)
        assert [one.join() for one in listeners] == expected
