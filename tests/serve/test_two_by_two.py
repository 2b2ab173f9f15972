"""Two API servers before two engines: each fault of a process costs what it must, and no more."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress

import httpx
import pytest

from izwi_api.serve.operator_socket import ListReplicas, RestartReplicas, ask_supervisor
from tests.api.conftest import wait_for
from tests.api.http.test_faults import tone
from tests.serve.test_processes import (
    ASK,
    BRIEF,
    SENTENCE,
    SPEECH,
    Listener,
    connections_of,
    is_running,
    open_answer,
    say,
)
from tests.serve.test_replica_processes import are_ready, replicas, replicated

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

WRITE = "/v1/audio/transcriptions"
MODELS = ("--model", "izwi-tiny-tts", "--model", "izwi-tiny-asr")
TEXT = ASK | {"input": SENTENCE * 2, "seed": 3}
# Requests that the queues of two engines have no room for: each runs 64 and queues 512.
TOO_MANY = 2 * (64 + 512) + 100


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Its processes are killed when they do not respond for 4 s."""
    folder = tmp_path_factory.mktemp("two")
    environ = {"IZWI_DECODE_WORKERS": "1", "IZWI_HUNG_AFTER_S": "4"}
    with replicated(folder, *MODELS, "--api-servers", "2", **environ) as running:
        yield running


@pytest.fixture(scope="module")
def said(server):
    return say(server)


@pytest.fixture(scope="module")
def whole(server):
    """What an undisturbed listener hears."""
    listener = Listener(server, TEXT)
    listener.join()
    assert listener.is_whole
    return listener.audio.digest()


def level(server, name):
    """Requests of both engines at a level, as one API server sees them; None: not known."""
    text = httpx.get(server.url + "/metrics", timeout=60).text
    lines = [one for one in text.splitlines() if one.startswith(f"izwi_engine_{name}{{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines) if lines else None


def is_idle(server):
    return level(server, "running") == level(server, "waiting") == 0


def settled(server, said):
    """Everything is there again, nothing is left, and requests are answered as before."""
    wait_for(lambda: len(server.processes("api_server")) == 2)
    wait_for(lambda: are_ready(server))
    wait_for(lambda: is_idle(server))
    assert {say(server) for _ in range(4)} == {said}


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_an_api_server_that_is_gone_costs_its_own_listeners(server, said, whole, how):
    listeners = [Listener(server, TEXT) for _ in range(6)]
    served_by = {pid: connections_of(pid) for pid in server.processes("api_server")}
    gone = max(served_by, key=served_by.get)
    os.kill(gone, how)
    for one in listeners:
        one.join()
    kept = [one for one in listeners if one.is_whole]
    assert len(kept) >= 6 - served_by[gone]
    assert {one.audio.digest() for one in kept} <= {whole}
    wait_for(lambda: gone not in server.processes("api_server"))
    settled(server, said)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_an_engine_that_is_gone_costs_nothing_and_is_replaced(server, said, whole, how):
    wait_for(lambda: are_ready(server))
    listeners = [Listener(server, TEXT) for _ in range(6)]
    gone = replicas(server)[0].pid
    os.kill(gone, how)
    for one in listeners:
        one.join()
    assert {one.audio.digest() for one in listeners} == {whole}
    wait_for(lambda: gone not in server.processes("engine"))
    settled(server, said)


def test_an_engine_and_an_api_server_that_die_together_cost_the_listeners_of_one(
    server, said, whole
):
    listeners = [Listener(server, TEXT) for _ in range(6)]
    served_by = {pid: connections_of(pid) for pid in server.processes("api_server")}
    gone = max(served_by, key=served_by.get)
    os.kill(gone, signal.SIGKILL)
    os.kill(replicas(server)[1].pid, signal.SIGKILL)
    for one in listeners:
        one.join()
    kept = [one for one in listeners if one.is_whole]
    assert len(kept) == 6 - served_by[gone]
    assert {one.audio.digest() for one in kept} <= {whole}
    settled(server, said)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_decoders_that_are_gone_cost_at_most_the_requests_they_had(server, said, how):
    def write():
        files, form = {"file": ("a.wav", tone(2.0))}, {"model": "izwi-tiny-asr"}
        return httpx.post(server.url + WRITE, data=form, files=files, timeout=120)

    before = [write() for _ in range(4)]
    assert {one.status_code for one in before} == {200}
    gone = list(server.children())
    assert len(gone) >= 2, "each API server has a decoder"
    for pid in gone:
        os.kill(pid, how)
    if how == signal.SIGSTOP:  # each costs one file, which may be the cause, after its time limit
        with suppress(httpx.TransportError):
            answers = [write() for _ in range(4)]
            assert {one.status_code for one in answers} <= {200, 400}
    else:
        wait_for(lambda: not set(server.children()) & set(gone) or all_dead(server, gone))
    after = [write() for _ in range(6)]
    assert [one.status_code for one in after] == [200] * 6, after[0].text
    assert {one.json()["text"] for one in after} == {before[0].json()["text"]}
    settled(server, said)


def all_dead(server, pids):
    states = server.children()
    return all(states.get(pid, "Z") == "Z" for pid in pids)


def test_clients_that_read_nothing_delay_no_others(server, said, whole):
    with ExitStack() as clients:
        slow = [open_answer(server, clients) for _ in range(6)]
        listeners = [Listener(server, TEXT) for _ in range(4)]
        for one in listeners:
            one.join()
        assert {one.audio.digest() for one in listeners} == {whole}
        for one in slow:
            one.shutdown(socket.SHUT_RDWR)
    settled(server, said)


async def burst(url, count):
    """Send so many requests at once, and leave once some are refused; count what they get."""
    seen, refused = Counter(), asyncio.Event()
    ask = TEXT | {"input": SENTENCE, "max_new_tokens": 60}
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits) as http:

        async def one(number):
            async with http.stream("POST", SPEECH, json=ask | {"seed": number}) as answer:
                seen[answer.status_code] += 1
                if answer.status_code != 200:
                    assert 1 <= int(answer.headers["retry-after"]) <= 120
                    error = httpx.Response(answer.status_code, content=await answer.aread()).json()
                    assert error["error"]["code"] == "overloaded"
                    refused.set()

        tasks = [asyncio.create_task(one(number)) for number in range(count)]
        await asyncio.wait_for(refused.wait(), 300)
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    errors = [one for one in results if isinstance(one, Exception)]
    assert not errors, errors[:3]
    return seen


def test_full_queues_of_both_engines_refuse_and_forget_those_that_leave(server, said):
    seen = asyncio.run(burst(server.url, TOO_MANY))
    assert set(seen) <= {200, 503}
    assert seen[503] > 0
    wait_for(lambda: is_idle(server), 120)
    settled(server, said)


def test_requests_that_begin_while_all_engines_are_replaced_one_by_one_are_answered(
    server, said, whole
):
    wait_for(lambda: are_ready(server))
    starts = [one.num_starts for one in replicas(server)]
    pids = set(server.processes("engine"))
    done, heard = threading.Event(), []

    def ask_again_and_again():
        while not done.is_set():
            listener = Listener(server, TEXT)
            listener.join()
            heard.append(listener)

    callers = [threading.Thread(target=ask_again_and_again) for _ in range(3)]
    for one in callers:
        one.start()
    try:
        ask_supervisor(server.port, RestartReplicas())
        wait_for(lambda: all(one.num_starts > starts[one.replica] for one in replicas(server)), 240)
        wait_for(lambda: are_ready(server), 240)
    finally:
        done.set()
        for one in callers:
            one.join(240)
    assert not pids & set(server.processes("engine"))
    assert {one.audio.digest() for one in heard} == {whole}
    settled(server, said)


def test_a_server_that_is_asked_to_leave_finishes_what_it_has(tmp_path):
    with replicated(tmp_path, *MODELS, "--api-servers", "2", "--drain-s", "200") as server:
        undisturbed = Listener(server, TEXT)
        undisturbed.join()
        listeners = [Listener(server, TEXT) for _ in range(6)]
        server.signal()
        deadline_s = time.monotonic() + 60
        while time.monotonic() < deadline_s:  # new requests are refused, or reach nobody
            try:
                answer = httpx.post(server.url + SPEECH, json=BRIEF, timeout=60)
            except httpx.TransportError:
                break
            if answer.status_code == 503:
                assert answer.headers["connection"] == "close"
                break
        for one in listeners:
            one.join()
        assert {one.audio.digest() for one in listeners} == {undisturbed.audio.digest()}
        assert server.process.wait(120) == 0


def test_without_its_supervisor_nothing_stays(tmp_path):
    with replicated(tmp_path, *MODELS, "--api-servers", "2", IZWI_DECODE_WORKERS="1") as server:
        assert len(ask_supervisor(server.port, ListReplicas()).replicas) == 2
        own = server.processes() + list(server.children())
        assert len(own) >= 7  # the supervisor, two and two, and a decoder of each API server
        listeners = [Listener(server, ASK | {"input": SENTENCE * 40}) for _ in range(3)]
        server.process.kill()
        for one in listeners:
            one.join()
            assert not one.is_whole
        wait_for(lambda: not any(is_running(pid) for pid in own))
