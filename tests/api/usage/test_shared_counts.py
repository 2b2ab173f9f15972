"""Limits of a key hold across all API-server processes, and a broken file stops no request."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from types import SimpleNamespace

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from izwi.errors import QuotaExceeded, RateLimited
from izwi_api.serve.app import create_app
from izwi_api.settings import Access, Settings
from izwi_api.usage import shared_counts
from izwi_api.usage.keys import add_key
from izwi_api.usage.limits import DAY_S, Clocks, KeyLimits, Meter
from izwi_api.usage.shared_counts import CountsFile
from tests.api.conftest import FakeEngine, FakeRegistry, FakeSpeech, listening
from tests.api.usage.test_limits import Clock

LIMITS = KeyLimits(requests_per_minute=300, characters_per_day=1000)
# Takes what it can get, in a day in which no time passes, and says how much it was.
GREEDY = """
import sys
from pathlib import Path
from izwi.errors import RateLimited
from izwi_api.usage.limits import Clocks, KeyLimits, Meter
from izwi_api.usage import shared_counts
from izwi_api.usage.shared_counts import CountsFile
shared_counts._LOCK_WAIT_S = 5.0  # this machine may be busy: who has the lock may be put aside
clock = lambda: 1_000_000.0
meter = Meter(KeyLimits(300, 1000), Clocks(clock, clock), CountsFile(Path(sys.argv[1]), "ann"))
print("ready", flush=True)
sys.stdin.readline()
requests = characters = 0
for _ in range(400):
    try:
        meter.admit()
        requests += 1
        meter.charge({"characters": 5})
        characters += 5
    except RateLimited:
        pass
print(requests, characters)
"""


def meter_of(folder, clock, limits=LIMITS):
    return Meter(limits, Clocks(clock, clock), CountsFile(folder, "ann"))


def take_all(meter):
    count = 0
    while True:
        try:
            meter.admit()
        except RateLimited:
            return count
        count += 1


@contextmanager
def locked(path):
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def test_two_processes_share_one_limit(tmp_path):
    command = [sys.executable, "-c", GREEDY, str(tmp_path / "counts")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    both = [subprocess.Popen(command, **pipes) for _ in range(2)]
    for process in both:
        assert process.stdout.readline() == "ready\n"
    for process in both:
        process.stdin.write("go\n")
        process.stdin.flush()
    taken = [list(map(int, process.communicate(timeout=60)[0].split())) for process in both]
    assert [sum(of) for of in zip(*taken, strict=True)] == [300, 1000]


OPS = st.tuples(st.integers(0, 1), st.sampled_from(["admit", "charge", "back"]), st.floats(0, 40))


@given(st.lists(OPS, max_size=60))
def test_two_that_share_are_as_one_alone(tmp_path_factory, ops):
    folder, clock = tmp_path_factory.mktemp("counts"), Clock(10.5 * DAY_S)
    limits = KeyLimits(requests_per_minute=5, characters_per_day=50)
    alone = Meter(limits, Clocks(clock, clock))
    both = [meter_of(folder, clock, limits) for _ in range(2)]

    def refuses(meter, op):
        try:
            if op == "admit":
                meter.admit()
            elif op == "charge":
                meter.charge({"characters": 7})
            else:
                meter.refund({"characters": 7})
        except RateLimited as error:
            return type(error)
        return None

    for who, op, gap_s in ops:
        clock.now_s += gap_s
        assert refuses(both[who], op) is refuses(alone, op)


def test_api_servers_share_limits_over_http(tmp_path):
    key = add_key(tmp_path / "keys.toml", "ann", KeyLimits(requests_per_minute=3))
    settings = Settings(home=tmp_path, access=Access(api_keys_file=tmp_path / "keys.toml"))
    apps = [create_app(FakeEngine(), FakeRegistry(tts=FakeSpeech()), settings) for _ in range(2)]
    with listening(apps[0]) as one, listening(apps[1]) as other:
        ask = {"headers": {"authorization": f"Bearer {key}"}}
        ports = (one, other, one, other, one)
        answers = [httpx.get(f"http://127.0.0.1:{port}/v1/models", **ask) for port in ports]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
    left = [answer.headers["x-ratelimit-remaining-requests"] for answer in answers]
    assert left == ["2", "1", "0", "0", "0"]


def test_a_server_that_starts_again_knows_what_was_used(tmp_path):
    clock = Clock(10 * DAY_S)
    meter_of(tmp_path, clock).charge({"characters": 900})
    with pytest.raises(QuotaExceeded):
        meter_of(tmp_path, clock).charge({"characters": 101})
    clock.now_s += DAY_S
    meter_of(tmp_path, clock).charge({"characters": 1000})


def test_a_limit_that_is_gone_for_a_while_forgets_nothing(tmp_path):
    clock = Clock(10 * DAY_S)
    meter_of(tmp_path, clock).charge({"characters": 900})
    meter_of(tmp_path, clock, KeyLimits(requests_per_minute=9)).admit()
    meter_of(tmp_path, clock, KeyLimits(characters_per_day=1000)).charge({"characters": 1})
    again = meter_of(tmp_path, clock)
    again.admit()
    with pytest.raises(QuotaExceeded):
        again.charge({"characters": 100})
    assert again.headers()["x-ratelimit-remaining-requests"] == "298"


def test_a_locked_file_stops_no_request_and_counts_are_added_later(tmp_path, monkeypatch):
    clock = Clock()
    first, second = meter_of(tmp_path, clock), meter_of(tmp_path, clock)
    first.admit()
    second.admit()
    (path,) = tmp_path.iterdir()
    with locked(path):
        begun_s = time.monotonic()
        assert take_all(first) == 299  # what it saw last, and never more than its whole limit
        assert time.monotonic() - begun_s < 30  # 299 waits for the lock would be minutes
        for _ in range(10):
            second.admit()
    later = SimpleNamespace(monotonic=lambda: begun_s + 60, sleep=time.sleep)
    monkeypatch.setattr(shared_counts, "time", later)
    assert take_all(second) == 300 - 12
    assert take_all(first) == 0


def test_a_killed_process_releases_the_lock(tmp_path):
    clock = Clock()
    meter_of(tmp_path, clock).admit()
    (path,) = tmp_path.iterdir()
    hold = (
        f"import fcntl; f = open({str(path)!r}); fcntl.flock(f, 2); print(1, flush=True); input()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", hold], **pipes) as holder:
        holder.stdout.readline()
        holder.kill()
        holder.wait()
        meter = meter_of(tmp_path, clock)
        assert take_all(meter) == 299


def counts(**fields):
    known = {"format": 1, "key": "ann", "spent_at_s": 1e6, "spent": 1.0, "day": 11, "used": {}}
    return json.dumps(known | fields).encode()


DAMAGED = {
    "noise": os.urandom(512),
    "half": counts()[:40],
    "zeros": bytes(512),
    "a list": b"[]",
    "another format": counts(format=2),
    "a missing field": b'{"format": 1}',
    "not a number": counts(spent=float("nan")),
    "infinite": counts(spent=float("inf")),
    "below zero": counts(used={"characters": -5}),
    "a word": counts(spent="many"),
    "used is a list": counts(used=[1]),
    "of next year": counts(spent_at_s=1e6 + 365 * DAY_S),
    "of a later day": counts(day=400),
    "nested": b"[" * 512,
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_replaced(tmp_path, name, caplog):
    clock = Clock()
    path = CountsFile(tmp_path, "ann").path
    path.write_bytes(DAMAGED[name])
    meter = meter_of(tmp_path, clock)
    assert take_all(meter) == 300
    assert "damaged" in caplog.text
    assert take_all(meter_of(tmp_path, clock)) == 0  # it is whole again
    assert json.loads(path.read_bytes())["spent"] == 300


def folder_in_its_place(path):
    path.mkdir(parents=True)


def file_for_the_folder(path):
    path.parent.write_text("")


def link_elsewhere(path):
    path.parent.mkdir()
    path.symlink_to(path.parent.parent / "elsewhere")


@pytest.mark.parametrize("spoil", [folder_in_its_place, file_for_the_folder, link_elsewhere])
def test_where_no_file_can_be_each_counts_alone(tmp_path, spoil, caplog):
    clock, folder = Clock(), tmp_path / "counts"
    spoil(CountsFile(folder, "ann").path)
    assert take_all(meter_of(folder, clock)) == 300
    assert take_all(meter_of(folder, clock)) == 300
    assert not (tmp_path / "elsewhere").exists()
    assert caplog.text.count("counts alone") == 2  # once each


def test_a_full_disk_stops_no_request(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    assert take_all(meter_of(tmp_path, Clock())) == 300


def test_files_are_for_their_owner_and_names_do_not_lead_elsewhere(tmp_path):
    meter = Meter(LIMITS, Clocks(Clock(), Clock()), CountsFile(tmp_path / "counts", "../x"))
    meter.admit()
    (path,) = (tmp_path / "counts").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "counts").stat().st_mode & 0o777 == 0o700


def test_after_a_lock_that_it_did_not_get_it_tries_again_soon_and_then_less_often(
    tmp_path, monkeypatch, caplog
):
    now_s = 0.0

    def sleep(seconds):
        nonlocal now_s
        now_s += seconds

    monkeypatch.setattr(
        shared_counts, "time", SimpleNamespace(monotonic=lambda: now_s, sleep=sleep)
    )
    counts = CountsFile(tmp_path, "ann")

    def can_be_used():
        with counts.locked(1e6) as found:
            return found is not None

    assert can_be_used()
    with locked(counts.path):
        assert not can_be_used()
    now_s += 0.005
    assert not can_be_used()
    now_s += 0.006
    assert can_be_used()
    with locked(counts.path):
        for _ in range(10):
            assert not can_be_used()
            now_s += 1.0
        assert not can_be_used()
    assert caplog.text.count("counts alone") == 1  # not for locks that are free again soon
    now_s += 0.9
    assert not can_be_used()
    now_s += 0.2
    assert can_be_used()
