"""`izwi serve --tensor-parallel 2`: a rank dies or hangs, its engine ends, and streams go on."""

from __future__ import annotations

import os
import re
import signal

import httpx
import pytest

from tests.api.conftest import wait_for
from tests.api.served import served
from tests.serve.test_replica_processes import Listener

OPTIONS = ("--model", "izwi-tiny-tts", "--tensor-parallel", "2")
RANKS = re.compile(r"ranks on cpu, cpu: processes \[(\d+)\]")


def ranks(server):
    """Processes of the other ranks so far, one for each engine that was started."""
    return list(map(int, RANKS.findall(server.log.read_text())))


def is_gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_streams_go_on_after_a_rank_is_lost(tmp_path, how):
    environ = {"IZWI_DECODE_WORKERS": "0", "IZWI_HUNG_AFTER_S": "6"}
    with served(tmp_path, *OPTIONS, **environ) as server:
        expected = [Listener(server, seed, 24) for seed in range(3)]
        expected = [one.join() for one in expected]
        assert {status for status, _, _ in expected} == {200}
        listeners = [Listener(server, seed, 24) for seed in range(3)]
        wait_for(lambda: all(one.num_bytes for one in listeners))
        os.kill(ranks(server)[0], how)
        assert [one.join() for one in listeners] == expected
        assert len(ranks(server)) == 2, "the engine was started again, with its ranks"
        wait_for(lambda: is_gone(ranks(server)[0]))  # also the one that hung: rank 0 is gone
        assert httpx.get(server.url + "/readyz").status_code == 200
        last = ranks(server)[1]
    wait_for(lambda: is_gone(last))


@pytest.mark.slow
def test_a_model_that_cannot_be_split_ends_the_start_with_a_message(tmp_path):
    options = ("--model", "izwi-tiny-chat", "--tensor-parallel", "3")
    with (
        pytest.raises(AssertionError, match="3 ranks cannot share this model equally"),
        served(tmp_path, *options),
    ):
        pytest.fail("it has four heads")
